"""Undo operations on tasks: unblocks, terminations, retries, and edits of values."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import same_id
from runner.db.schema import GONE, is_state, state_literal
from runner.db.transaction import Transaction
from runner.db.types import Instant, next_version
from runner.model.task import MOVES, State
from runner.operations.audit_log import AuditEntry, record
from runner.operations.blocking import block_again, close, forget_ends, recall_ends, reopen
from runner.operations.failed_steps import FAILED_STEPS, forget_failures, restore_failures
from runner.operations.results import Actor, Result, Skipped
from runner.operations.rewind import copy_checkpoint
from runner.operations.signal import STARTED, withdraw_signal
from runner.operations.targets import LockedTask, change, read_tasks, reschedule
from runner.operations.undo.entries import UndoableChange, edited_columns, former_values
from runner.operations.unique_keys import Locked, assign_keys
from runner.store.dependencies.parents import is_gone
from runner.store.history import UNASSIGNED, FinishedTask, finish, refuse_reused, require_all, shared
from runner.store.minute_statistics import NO_RUNNER, count_unclaimed
from runner.store.signals import starting

NO_DEPENDENCIES = "its dependencies no longer exist"


async def reblock(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Reopen the dependencies that an operator removed; the next sweep handles parents that have ended since."""
    dependencies = {task.id: _unblocked(change) for change, task in pairs}
    reopened = await _open(tx, dependencies)
    eligible = [(change, task) for change, task in pairs if task.id in reopened]
    await block_again(tx, [task.id for _, task in eligible])
    times = {task.id: change.before["run_at"] for change, task in eligible if _is_rescheduled_by(change, task)}
    await reschedule(tx, times)
    await record(tx, by, [_reblock_entry(change, task, times) for change, task in eligible])
    return Result(
        [task.id for _, task in eligible],
        skipped=[Skipped(id, NO_DEPENDENCIES) for id in sorted(dependencies) if id not in reopened],
    )


async def _open(tx: Transaction, dependencies: dict[int, set[int]]) -> set[int]:
    """Reopen the given dependencies that an operator removed, and return their tasks."""
    dependency = tx.tables.dependency
    dependency_ids = sorted({dependency_id for ids in dependencies.values() for dependency_id in ids})
    in_change = tx.dialect.one_of(dependency.c.id, dependency_ids) & tx.dialect.one_of(
        dependency.c.task_id, list(dependencies)
    )
    reopen = (
        sa.update(dependency)
        .where(in_change, dependency.c.satisfied_by.is_not(None))
        .values(satisfied_at=None, satisfied_by=None)
    )
    return {row.task_id for row in await tx.rows(reopen.returning(dependency.c.task_id))}


def _is_rescheduled_by(change: UndoableChange, task: LockedTask) -> bool:
    """True if the due time of a task is that of its unblock."""
    return isinstance(change.before.get("run_at"), datetime) and task.run_at == change.after.get("run_at")


def _reblock_entry(change: UndoableChange, task: LockedTask, times: Mapping[int, datetime]) -> AuditEntry:
    before: dict[str, Any] = {"state": task.state, "waited_for": []}
    after = {"state": MOVES["reblock"].target, "waited_for": change.before.get("waited_for", [])}
    if task.id in times:
        before["run_at"], after["run_at"] = task.run_at, times[task.id]
    return AuditEntry("reblock", before, after, task.id, undo_of=change.id)


class Restored(NamedTuple):
    """The tasks to restore.

    Args:
        keys: the locked unique keys of these tasks, and of tasks that cannot be restored.
    """

    keys: Locked
    pairs: Sequence[tuple[UndoableChange, LockedTask]]


async def restore(tx: Transaction, restored: Restored, by: Actor) -> Result:
    """Move cancelled tasks back to the live table with their due times, attempts and errors, blocked ones as blocked.

    A task whose unique key another task holds is skipped.
    """
    result = Result()
    changes = {task.id: change for change, task in restored.pairs}
    # A key for a time does not depend on the life of its task.
    tasks = await assign_keys(tx, restored.keys, [task for _, task in restored.pairs], result, expired=False)
    ids = [task.id for task in tasks]
    if ids:
        await _move_back(tx, [(id, changes[id].before.get("error")) for id in ids])
        await count_unclaimed(tx, ids, times=-1)
        await forget_ends(tx, ids)
        blocked = [id for id in ids if changes[id].before["state"] == State.BLOCKED]
        await reopen(tx, blocked)
        # A rewind since then may have removed the dependencies of a call.
        blocked_again = await block_again(tx, blocked)
        entries = [_restore_entry(changes[task.id], task, blocked=task.id in blocked_again) for task in tasks]
        await record(tx, by, entries)
    result.changed = ids
    return result


BACK_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "error": sa.Text}
"""The id of a task, and its error before it was cancelled, which the history does not keep."""


async def _move_back(tx: Transaction, back: Sequence[tuple[Any, ...]]) -> None:
    """Move cancelled tasks with locks from the history to the live table; see BACK_COLUMNS."""
    task, history, lost = tx.tables.task, tx.tables.history, tx.dialect.rows("back", BACK_COLUMNS)
    target = MOVES["restore"]
    values: dict[str, Any] = {name: history.c[name] for name in shared(tx.tables)} | {
        "state": state_literal(target.target),
        "error": lost.c.error,
        "version": next_version(history.c.version),
    }
    is_selected = (history.c.id == lost.c.id) & is_state(history.c.state, *(state for state in target.sources if state))
    rows = sa.select(*values.values()).select_from(history.join(lost, is_selected))
    parameters = tx.dialect.row_parameters("back", BACK_COLUMNS, back)
    moved = await tx.rows(sa.insert(task).from_select(list(values), rows).returning(task.c.id), parameters)
    is_moved = tx.dialect.one_of(history.c.id, [row.id for row in moved])
    removed = await tx.rows(sa.delete(history).where(is_moved).returning(history.c.id))
    require_all(len(back), len(removed))


async def consequences(tx: Transaction, ends: Iterable[UndoableChange]) -> dict[int, int]:
    """Find one dependent per terminated task that was cancelled or released because of the termination.

    A runner that judges a dependency at this moment uses the end that it has read, as with a requeue.
    """
    dependency = tx.tables.dependency
    since = {change.subject: change.at for change in ends}
    is_cancelled = tx.dialect.one_of(dependency.c.parent_id, list(since)) & (
        dependency.c.parent_state == State.CANCELLED.value
    )
    # A dependency that only waits is closed by the termination of its own task, never by that of the parent.
    is_consequence = (
        is_cancelled
        & (dependency.c.on_failure != "wait")
        & dependency.c.satisfied_at.is_not(None)
        & dependency.c.satisfied_by.is_(None)
    )
    rows = await tx.rows(
        sa.select(dependency.c.parent_id, dependency.c.task_id, dependency.c.satisfied_at).where(is_consequence)
    )
    pairs = [(row.parent_id, row.task_id, since[row.parent_id], row.satisfied_at) for row in rows]
    return {parent: child for parent, child, end, closed in pairs if end is None or closed >= end}


async def pruned_parents(tx: Transaction, changes: Sequence[UndoableChange]) -> dict[int, int]:
    """Find one parent per terminated or unblocked task that was pruned since, so that its end is unknown.

    Args:
        changes: the terminations and unblocks.

    Returns:
        The ids of the parents by the ids of the changes.
    """
    dependency = tx.tables.dependency
    closed = tx.dialect.one_of(dependency.c.task_id, [change.subject for change in changes])
    closed &= dependency.c.satisfied_at.is_not(None) & (dependency.c.on_failure != "run")
    unknown = sa.func.coalesce(dependency.c.parent_state, sa.literal_column("''")).not_in((State.SUCCEEDED.value, GONE))
    columns = [dependency.c[name] for name in ("id", "task_id", "parent_id", "satisfied_by")]
    rows = await tx.rows(sa.select(*columns).where(closed, unknown, is_gone(tx.tables, dependency)))
    by_task: dict[int, list[Any]] = {}
    for row in rows:
        by_task.setdefault(row.task_id, []).append(row)
    return {
        change.id: row.parent_id
        for change in changes
        for row in by_task.get(change.subject, ())
        if (row.satisfied_by is None if change.verb == "terminate" else row.id in _unblocked(change))
    }


def _unblocked(change: UndoableChange) -> set[int]:
    """The ids of the dependencies that an unblock removed."""
    return _ids(change, "dependencies")


def _ids(change: UndoableChange, name: str) -> set[int]:
    """The ids of recorded dependencies; empty if unreadable."""
    ids = change.before.get(name)
    return {id for id in ids if isinstance(id, int)} if isinstance(ids, list) else set()


def _restore_entry(change: UndoableChange, task: LockedTask, *, blocked: bool) -> AuditEntry:
    verb = "reblock" if blocked else "restore"
    return AuditEntry(verb, {"state": task.state}, {"state": MOVES[verb].target}, task.id, undo_of=change.id)


TRAIL = ("attempt", "rescues", "interruptions")
TRAIL_COLUMNS: dict[str, Any] = {"id": sa.BigInteger} | dict.fromkeys(TRAIL, sa.Integer)

MOVES_TO = {MOVES[verb].target: verb for verb in ("undo_retry", "cancel")}
"""The move to each state that a task can be requeued from."""


async def undo_requeue(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Make requeued tasks dead or cancelled again, at their former times; their unique keys become free."""
    await _restore_attempts(tx, [retry for retry, _ in pairs])
    for retry, task in pairs:
        if names := edited_columns(retry):
            await change(tx, [task.id], **former_values(retry, names))
    await refuse_reused(tx, [task.id for _, task in pairs])
    await close(tx, [task.id for _, task in pairs if task.state is State.BLOCKED])
    await count_unclaimed(tx, [task.id for _, task in pairs])
    for state, verb in MOVES_TO.items():
        endings = [FinishedTask(task.id, task.fence) for retry, task in pairs if retry.before["state"] == state]
        if endings:
            await finish(tx, verb, NO_RUNNER, endings, fails=False)
    await recall_ends(tx, {id for retry, _ in pairs for id in _ids(retry, "awaited_by")})
    await _restore_endings(tx, [_ending(retry, task) for retry, task in pairs])
    await restore_failures(tx, {task.id: retry.before.get(FAILED_STEPS) for retry, task in pairs})
    await record(tx, by, [_requeue_entry(retry, task) for retry, task in pairs])
    return Result([task.id for _, task in pairs])


async def _restore_attempts(tx: Transaction, changes: Sequence[UndoableChange]) -> None:
    """Restore the counts that the requeue reset."""
    rows = [(change.subject, *(_count(change, name) for name in TRAIL)) for change in changes]
    task = tx.tables.task
    counts, match = tx.dialect.one_by_one(tx.dialect.rows("trail", TRAIL_COLUMNS), task, same_id)
    values = {name: counts.c[name] for name in TRAIL} | UNASSIGNED
    statement = sa.update(task).where(match).values(values)
    await tx.execute(statement, tx.dialect.row_parameters("trail", TRAIL_COLUMNS, rows))


def _count(change: UndoableChange, name: str) -> int:
    value = change.before.get(name)
    return value if isinstance(value, int) and value >= 0 else 0


def _ending(change: UndoableChange, task: LockedTask) -> tuple[Any, ...]:
    """The times, the runner and the duration before the retry; the present due time if it is unknown."""
    times = {name: _moment(change.before.get(name)) for name in ("run_at", "finished_at", "claimed_at", "expires_at")}
    runner_id, duration = change.before.get("runner_id"), change.before.get("duration")
    return (
        *(task.id, times["run_at"] or task.run_at, times["finished_at"], times["claimed_at"]),
        *(runner_id if isinstance(runner_id, int) else None, duration if isinstance(duration, float) else None),
        times["expires_at"],
    )


def _moment(recorded: object) -> datetime | None:
    """A recorded time; None if it is missing or unreadable."""
    if isinstance(recorded, datetime):
        return recorded
    with suppress(ValueError):
        moment = datetime.fromisoformat(recorded) if isinstance(recorded, str) else None
        return moment if moment is not None and moment.tzinfo is not None else None
    return None


def _requeue_entry(change: UndoableChange, task: LockedTask) -> AuditEntry:
    state = change.before["state"]
    verb = next(verb for target, verb in MOVES_TO.items() if target == state)
    names = edited_columns(change)
    values = {name: getattr(task, name) for name in names}
    before = values | {"state": task.state, "run_at": task.run_at}
    after = former_values(change, names) if names else {}
    after |= {"state": state, "run_at": _ending(change, task)[1]}
    if task.expires_at is None and (expires_at := _moment(change.before.get("expires_at"))) is not None:
        before["expires_at"], after["expires_at"] = None, expires_at
    return AuditEntry(verb, before, after, task.id, undo_of=change.id)


async def set_values(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Restore the values of live tasks."""
    values_by_id = {task.id: former_values(change, change.before) for change, task in pairs}
    times = {id: values["run_at"] for id, values in values_by_id.items() if list(values) == ["run_at"]}
    await reschedule(tx, {id: moment for id, moment in times.items() if isinstance(moment, datetime)})
    same: dict[tuple[tuple[str, object], ...], list[int]] = {}
    for id, values in values_by_id.items():
        if id not in times:
            same.setdefault(tuple(values.items()), []).append(id)
    for items, ids in same.items():
        await change(tx, ids, **dict(items))
    # The undo of an undone retry forgets the failures again.
    forgotten = await forget_failures(tx, [task.id for change, task in pairs if FAILED_STEPS in change.after])
    await restore_failures(tx, {task.id: change.before.get(FAILED_STEPS) for change, task in pairs})
    entries = [_edit_entry(change, task, values_by_id[task.id], forgotten.get(task.id)) for change, task in pairs]
    await record(tx, by, entries)
    return Result([task.id for _, task in pairs])


def _edit_entry(
    change: UndoableChange, task: LockedTask, values: Mapping[str, Any], forgotten: Sequence[Mapping[str, Any]] | None
) -> AuditEntry:
    before: dict[str, Any] = {name: getattr(task, name) for name in values}
    if forgotten:
        before[FAILED_STEPS] = forgotten
    restored = {name: failures for name, failures in change.before.items() if name == FAILED_STEPS}
    return AuditEntry("edit", before, {**values, **restored}, task.id, undo_of=change.id)


async def undo_rewind(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Return to the checkpoints before rewinds, unless the tasks have stored others since."""
    result, entries = Result(), list[AuditEntry]()
    for rewound, task in pairs:
        before, after = int(rewound.before["checkpoint"]), int(rewound.after["checkpoint"])
        if (entry := await copy_checkpoint(tx, task, before, result, after)) is not None:
            entries.append(entry._replace(undo_of=rewound.id))
    await record(tx, by, entries)
    return result


async def undo_signal(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Withdraw signals, unless their tasks have received them since; the tasks that they started wait again."""
    result = Result()
    withdrawn = [
        (sent, task) for sent, task in pairs if await withdraw_signal(tx, task, int(sent.after["signal_id"]), result)
    ]
    waiting = await _wait_again(tx, [(sent, task) for sent, task in withdrawn if _is_started_by(sent, task)])
    entries = []
    for sent, task in withdrawn:
        before = {**sent.after, **{name: getattr(task, name) for name in STARTED if task.id in waiting}}
        after = {name: getattr(waiting[task.id], name) for name in STARTED if task.id in waiting}
        entries.append(AuditEntry("withdraw_signal", before, after, task.id, undo_of=sent.id))
    await record(tx, by, entries)
    return result


def _is_started_by(sent: UndoableChange, task: LockedTask) -> bool:
    """True if a task is due because of a signal, and has neither started nor changed since."""
    unchanged = (task.state, task.fence, task.run_at) == tuple(
        sent.after.get(name) for name in ("state", "fence", "run_at")
    )
    return unchanged and isinstance(sent.before.get("run_at"), datetime)


async def _wait_again(tx: Transaction, started: Sequence[tuple[UndoableChange, LockedTask]]) -> dict[int, LockedTask]:
    """Let tasks wait that a withdrawn signal has started, unless another signal or a child starts them.

    Returns:
        The tasks as they are now.
    """
    ids = sorted(task.id for _, task in started)
    calling = {task.id for sent, task in started if sent.before.get("state") == State.BLOCKED}
    ended = calling - await block_again(tx, sorted(calling))
    await reschedule(tx, {task.id: sent.before["run_at"] for sent, task in started if task.id not in ended})
    if ids:
        await tx.execute(starting(tx.tables, tx.dialect.one_of(tx.tables.task.c.id, ids)))
    return await read_tasks(tx, ids, locked=False)


async def withdraw(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Withdraw terminations of running tasks; `runner.policy.attempt_verdict` has the concurrent ones."""
    await change(tx, [task.id for _, task in pairs], cancel_requested=sa.false())
    await record(
        tx,
        by,
        [
            AuditEntry("withdraw", {"cancel_requested": True}, {"cancel_requested": False}, task.id, undo_of=change.id)
            for change, task in pairs
        ],
    )
    return Result([task.id for _, task in pairs])


RESTORED_COLUMNS: dict[str, Any] = {
    "id": sa.BigInteger,
    "run_at": Instant,
    "finished_at": Instant,
    "claimed_at": Instant,
    "runner_id": sa.BigInteger,
    "duration": sa.Float,
    "expires_at": Instant,
}
"""The id of a task, and the values of its former ending."""


async def _restore_endings(tx: Transaction, endings: Sequence[tuple[Any, ...]]) -> None:
    """Write the former endings of tasks that returned to the history.

    Args:
        endings: the values as in RESTORED_COLUMNS; without a `finished_at`, the task keeps the present one. The present
            `expires_at` wins, because the retry has cleared only a past one.
    """
    history = tx.tables.history
    restored = tx.dialect.rows("ending", RESTORED_COLUMNS)
    ending, match = tx.dialect.one_by_one(restored, history, same_id, compared=("id",))
    values: dict[str, Any] = {name: ending.c[name] for name in RESTORED_COLUMNS if name != "id"}
    values["finished_at"] = sa.func.coalesce(ending.c.finished_at, history.c.finished_at)
    values["expires_at"] = sa.func.coalesce(history.c.expires_at, ending.c.expires_at)
    # The partitions of the history repeat addresses, so the id must match too.
    statement = sa.update(history).where(match, history.c.id == ending.c.id).values(values)
    await tx.execute(statement, tx.dialect.row_parameters("ending", RESTORED_COLUMNS, endings))
