"""retry, delay and rewind: run tasks now, again, later, or from an earlier checkpoint."""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from runner.db.schema import is_state, state_literal
from runner.db.transaction import Transaction, clock
from runner.db.types import LATEST, db_now, next_version
from runner.errors import InvalidEdit
from runner.model.duration import LONGEST_SECONDS
from runner.model.task import HIGHEST_FENCE, MOST_ATTEMPTS, MOVES
from runner.operations.audit_log import AuditEntry, record
from runner.operations.edit_values import check_against
from runner.operations.results import Actor, Result, Skipped, Target
from runner.operations.targets import LockedTask, change, lock_targets, reschedule
from runner.operations.unique_keys import assign_keys, lock_keys
from runner.store import history
from runner.store.minute_statistics import NO_RUNNER

TOO_LATE = f"it would be due after the year {LATEST.year - 1}"


async def delay(tx: Transaction, targets: Iterable[Target], seconds: float, by: Actor) -> Result:
    """Postpone waiting tasks by a number of seconds, counted from their due time, or from now if that is past.

    Args:
        tx: a writing transaction.
        targets: the tasks, with the versions that the operator saw.
        seconds: the delay in seconds, greater than zero.
        by: the author.

    Raises:
        InvalidEdit: the delay is not a positive number of seconds.
    """
    if not (math.isfinite(seconds) and 0 < seconds < LONGEST_SECONDS):
        raise InvalidEdit(field="the delay", value=seconds, why="it must be a positive number of seconds")
    tasks, result = await lock_targets(tx, "delay", targets)
    now, delta = await clock(tx), timedelta(seconds=seconds)
    times = {task.id: max(task.run_at or now, now) for task in tasks}
    late_ids = [id for id, run_at in times.items() if LATEST - run_at <= delta]
    result.skipped += [Skipped(id, TOO_LATE) for id in late_ids]
    stored = await reschedule(tx, {id: run_at + delta for id, run_at in times.items() if id not in late_ids})
    changed: list[LockedTask] = [task for task in tasks if task.id in stored]
    await record(
        tx, by, [AuditEntry("delay", {"run_at": task.run_at}, {"run_at": stored[task.id]}, task.id) for task in changed]
    )
    result.changed = [task.id for task in changed]
    return result


RESTARTS = HIGHEST_FENCE // 10, HIGHEST_FENCE // 2
"""The range of the next fence of a task whose fence is at its bound. Claims do not count as far as that."""

NOTHING: Mapping[str, Any] = MappingProxyType({})


async def retry_now(tx: Transaction, targets: Iterable[Target], by: Actor, spread: float = 0.0) -> Result:
    """Make waiting tasks due now, and requeue dead and cancelled ones with all their attempts.

    A task that lost runners is no longer a suspect. If the attempts or the fence of a task have the highest possible
    value, both start over, so that a runner can claim it. A task whose unique key another task holds is skipped;
    the others hold their keys again until they finish.

    Args:
        tx: a writing transaction.
        targets: the tasks, with the versions that the operator saw.
        by: the author.
        spread: seconds over which the due times are spread at random, to avoid a burst.
    """
    return await _retry(tx, "retry_now", targets, by, spread)


async def requeue(tx: Transaction, targets: Iterable[Target], by: Actor, spread: float = 0.0) -> Result:
    """Requeue dead and cancelled tasks with all their attempts; see `retry_now` for unique keys.

    Args:
        tx: a writing transaction.
        targets: the tasks, with the versions that the operator saw.
        by: the author.
        spread: seconds over which the due times are spread at random.
    """
    return await _retry(tx, "requeue", targets, by, spread)


async def requeue_with(tx: Transaction, target: Target, values: Mapping[str, Any], by: Actor) -> Result:
    """Requeue a dead or cancelled task with new values; runners see it only with these values.

    Args:
        tx: a writing transaction.
        target: the task, with the version that the operator saw.
        values: the validated values by column.
        by: the author.

    Raises:
        InvalidEdit: a value is not allowed for this task; nothing was changed.
    """
    return await _retry(tx, "requeue", [target], by, 0.0, values)


async def _retry(
    tx: Transaction, verb: str, targets: Iterable[Target], by: Actor, spread: float, values: Mapping[str, Any] = NOTHING
) -> Result:
    target_list = list(targets)
    keys = await lock_keys(tx, [target.id for target in target_list])
    locked, result = await lock_targets(tx, verb, target_list)
    tasks = await assign_keys(tx, keys, locked, result)
    for task in tasks:
        check_against(values, task._replace(attempt=0))
    fence = random.randrange(*RESTARTS)  # noqa: S311 - avoids the fences of earlier claims, guards nothing
    await _shelve(tx, [task for task in tasks if _stuck(task)])
    if moved := [task.id for task in tasks if task.state.final or _stuck(task)]:
        await _move_back(tx, moved, fence)
    now = await clock(tx)
    delays = {task.id: timedelta(seconds=random.uniform(0, spread)) for task in tasks}  # noqa: S311 - guards nothing
    times = await reschedule(tx, {id: now + delay for id, delay in delays.items()}, rescues=0)
    if values and tasks:
        await change(tx, [task.id for task in tasks], **values)
    await record(tx, by, [_entry(verb, task, times, values, fence) for task in tasks])
    result.changed = [task.id for task in tasks]
    return result


def _stuck(task: LockedTask) -> bool:
    """True for a live task that no claim takes, because its attempts or its fence are at the bound of their column."""
    return not task.state.final and (task.attempt >= MOST_ATTEMPTS or task.fence >= HIGHEST_FENCE)


async def _shelve(tx: Transaction, tasks: Sequence[LockedTask]) -> None:
    """Move live tasks to the history, from where they are requeued like finished ones.

    Operators may move tasks, but only runners may update a fence.
    """
    if not tasks:
        return
    ids = [task.id for task in tasks]
    # A foreign client may have left a runner's id in a row that is not running.
    await change(tx, ids, **history.UNASSIGNED)
    await history.delete_stale_history(tx, ids)
    await history.finish(tx, "cancel", NO_RUNNER, [history.FinishedTask(task.id, task.fence) for task in tasks])


def _entry(
    verb: str, task: LockedTask, times: Mapping[int, object], values: Mapping[str, Any], fence: int
) -> AuditEntry:
    new = {name: value for name, value in values.items() if getattr(task, name) != value}
    before: dict[str, Any] = {"run_at": task.run_at, **{name: getattr(task, name) for name in new}}
    after: dict[str, Any] = {"run_at": times[task.id], **new}
    restarted = fence if task.fence >= HIGHEST_FENCE else task.fence
    if task.state.final:
        before |= {"state": task.state, "attempt": task.attempt, "rescues": task.rescues, "fence": task.fence}
        # The new live row forgets these; undo writes them back.
        ending = {name: getattr(task, name) for name in ("finished_at", "claimed_at", "runner_id", "duration")}
        before |= {name: value for name, value in ending.items() if value is not None}
        after |= {"state": MOVES["requeue"].target, "attempt": 0, "rescues": 0, "fence": restarted}
        if task.interruptions:
            before |= {"interruptions": task.interruptions}
            after |= {"interruptions": 0}
    elif _stuck(task):
        before |= {"attempt": task.attempt, "fence": task.fence}
        after |= {"attempt": 0, "fence": restarted}
    return AuditEntry(verb, before, after, task.id)


async def rewind(tx: Transaction, targets: Iterable[Target], number: int, by: Actor) -> Result:
    """Store copies of earlier checkpoints as the last ones: the next attempts continue from them.

    No checkpoint is deleted, so that a second rewind returns to the present one.

    Args:
        tx: a writing transaction.
        targets: the tasks, with the versions that the operator saw. A running task is skipped, because its handler
            continues from memory.
        number: the number of the checkpoint.
        by: the author.
    """
    tasks, result = await lock_targets(tx, "rewind", targets)
    entries = [await copy_checkpoint(tx, task, number, result) for task in tasks]
    await record(tx, by, [entry for entry in entries if entry is not None])
    return result


async def copy_checkpoint(
    tx: Transaction, task: LockedTask, number: int, result: Result, last_known: int | None = None
) -> AuditEntry | None:
    """Store a copy of an earlier checkpoint as the last one.

    Args:
        tx: a writing transaction.
        task: the locked task.
        number: the number of the checkpoint.
        result: receives the task, or the reason why it is skipped.
        last_known: skip the task if this is not its last checkpoint; None for any.

    Returns:
        The entry for the audit; None if the task is skipped.
    """
    table = tx.tables.checkpoint
    statement = sa.select(table.c.number).where(table.c.task_id == task.id).order_by(table.c.number)
    numbers = [row.number for row in await tx.rows(statement)]
    if number not in numbers:
        numbers_text = ", ".join(map(str, numbers)) or "none"
        result.skipped.append(Skipped(task.id, f"it has no checkpoint {number}; its checkpoints: {numbers_text}"))
        return None
    last = numbers[-1]
    if last_known not in (None, last):
        result.skipped.append(Skipped(task.id, f"it has stored checkpoint {last} since"))
        return None
    if number == last:
        result.skipped.append(Skipped(task.id, f"checkpoint {number} is its last one already"))
        return None
    copied = sa.select(table.c.task_id, sa.literal(last + 1), table.c.fence, table.c.attempt, table.c.state)
    copied = copied.where(table.c.task_id == task.id, table.c.number == number)
    await tx.execute(sa.insert(table).from_select(["task_id", "number", "fence", "attempt", "state"], copied))
    if not task.state.final:
        await change(tx, [task.id])
    result.changed.append(task.id)
    return AuditEntry("rewind", {"checkpoint": last}, {"checkpoint": last + 1, "copy_of": number}, task.id)


async def _move_back(tx: Transaction, ids: list[int], restart: int) -> set[int]:
    """Move tasks from the history back to the live table, due now and with all their attempts.

    Args:
        tx: an open transaction.
        ids: ids of tasks; tasks in other states than MOVES allows stay in the history. The caller ensures that no other
            tasks hold their unique keys.
        restart: the new fence of tasks whose fence has the highest possible value; the others keep theirs.

    Returns:
        The ids of the moved tasks.
    """
    task, past = tx.tables.task, tx.tables.history
    move = MOVES["requeue"]
    old = {name: past.c[name] for name in history.shared(tx.tables)} | {"error": past.c.error}
    cleared = {"runner_id": sa.null(), "claimed_at": sa.null(), "attempt": sa.literal_column("0")}
    new = {"state": state_literal(move.target), "run_at": db_now(), "rescues": sa.literal_column("0")}
    new["interruptions"] = sa.literal_column("0")
    fence = sa.case((past.c.fence < HIGHEST_FENCE, past.c.fence), else_=restart)
    # An operator who runs an expired task again wants it to start.
    expiry = sa.case((past.c.expires_at > db_now(), past.c.expires_at))
    values: dict[str, Any] = old | cleared | new
    values |= {"fence": fence, "version": next_version(past.c.version), "expires_at": expiry}
    is_selected = past.c.id.in_(ids) & is_state(past.c.state, *(state for state in move.sources if state))
    copy = (
        sa.insert(task).from_select(list(values), sa.select(*values.values()).where(is_selected)).returning(task.c.id)
    )
    moved = {row[0] for row in await tx.rows(copy)}
    await tx.execute(sa.delete(past).where(past.c.id.in_(moved)))
    return moved
