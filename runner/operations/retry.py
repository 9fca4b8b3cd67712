"""retry: run tasks again now."""

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import is_state, state_literal
from runner.db.transaction import Transaction, clock
from runner.db.types import db_now, next_version
from runner.model.task import HIGHEST_FENCE, MOST_ATTEMPTS, MOVES, State
from runner.operations.audit_log import AuditEntry, record
from runner.operations.blocking import forget_ends, wait_again
from runner.operations.edit_values import check_against
from runner.operations.failed_steps import FAILED_STEPS, forget_failures
from runner.operations.results import Actor, Result, Target
from runner.operations.targets import LockedTask, change, lock_targets, reschedule
from runner.operations.unique_keys import assign_keys, lock_keys
from runner.store import history
from runner.store.hosts import bound_hosts
from runner.store.minute_statistics import NO_RUNNER, count_unclaimed

RESTARTS = HIGHEST_FENCE // 10, HIGHEST_FENCE // 2
"""The range of the next fence of a task whose fence is at its bound. Claims do not count as far as that."""

NOTHING: Mapping[str, Any] = MappingProxyType({})


async def retry_now(tx: Transaction, targets: Iterable[Target], by: Actor, spread: float = 0.0) -> Result:
    """Make waiting tasks due now, and requeue dead and cancelled ones with all their attempts.

    A task that lost runners is no longer a suspect. If the attempts or the fence of a task have the highest possible
    value, both start over, so that a runner can claim it. A task whose unique key another task holds is skipped;
    the others hold their keys again until they finish, or until they start if they held them so. A cancelled task of a
    workflow waits again for its parents. A failed step has all its retries.

    Args:
        spread: seconds over which the due times are spread at random, to avoid a burst.
    """
    return await _retry(tx, "retry_now", targets, by, spread)


async def requeue(tx: Transaction, targets: Iterable[Target], by: Actor, spread: float = 0.0) -> Result:
    """Requeue dead and cancelled tasks with all their attempts; see `retry_now` for unique keys.

    Args:
        spread: seconds over which the due times are spread at random.
    """
    return await _retry(tx, "requeue", targets, by, spread)


async def requeue_with(tx: Transaction, target: Target, values: Mapping[str, Any], by: Actor) -> Result:
    """Requeue a dead or cancelled task with new values; runners see it only with these values.

    Args:
        target: the task, with the version that the operator saw.

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
        await count_unclaimed(tx, [task.id for task in tasks if task.state.final], times=-1)
    failures = await forget_failures(tx, [task.id for task in tasks])
    now = await clock(tx)
    delays = {task.id: timedelta(seconds=random.uniform(0, spread)) for task in tasks}  # noqa: S311 - guards nothing
    times = await reschedule(tx, {id: now + delay for id, delay in delays.items()}, rescues=0)
    if values and tasks:
        await change(tx, [task.id for task in tasks], **values)
    blocked = await wait_again(tx, [task.id for task in tasks if task.state is State.CANCELLED])
    awaiting = await forget_ends(tx, [task.id for task in tasks if task.state.final])
    move_of = {
        task.id: Requeued(fence, task.id in blocked, awaiting.get(task.id, ()), failures.get(task.id, ()))
        for task in tasks
    }
    await record(tx, by, [_entry(verb, task, times, values, move_of[task.id]) for task in tasks])
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
    await history.refuse_reused(tx, ids)
    await history.finish(tx, "cancel", NO_RUNNER, [history.FinishedTask(task.id, task.fence) for task in tasks])


class Requeued(NamedTuple):
    """The requeue of a task, for its audit entry.

    Args:
        restart: the new fence if the former one has the highest possible value.
        blocked: True if it waits for its parents again.
        awaited_by: the ids of the dependencies whose rule its next failure applies again.
        failures: the rows of its failed steps.
    """

    restart: int
    blocked: bool
    awaited_by: Sequence[int]
    failures: Sequence[Mapping[str, Any]]


def _entry(
    verb: str, task: LockedTask, times: Mapping[int, object], values: Mapping[str, Any], requeued: Requeued
) -> AuditEntry:
    new = {name: value for name, value in values.items() if getattr(task, name) != value}
    before: dict[str, Any] = {"run_at": task.run_at, **{name: getattr(task, name) for name in new}}
    after: dict[str, Any] = {"run_at": times[task.id], **new}
    if requeued.failures:
        before[FAILED_STEPS] = requeued.failures
    restarted = requeued.restart if task.fence >= HIGHEST_FENCE else task.fence
    if task.state.final:
        before |= {"state": task.state, "attempt": task.attempt, "rescues": task.rescues, "fence": task.fence}
        # The new live row forgets these; undo writes them back.
        ending = {
            name: getattr(task, name) for name in ("finished_at", "claimed_at", "runner_id", "duration", "expires_at")
        }
        before |= {name: value for name, value in ending.items() if value is not None}
        move = MOVES["reblock" if requeued.blocked else "requeue"]
        after |= {"state": move.target, "attempt": 0, "rescues": 0, "fence": restarted}
        if requeued.awaited_by:
            before["awaited_by"] = sorted(requeued.awaited_by)
        if task.interruptions:
            before |= {"interruptions": task.interruptions}
            after |= {"interruptions": 0}
    elif _stuck(task):
        before |= {"attempt": task.attempt, "fence": task.fence}
        after |= {"attempt": 0, "fence": restarted}
    elif task.rescues:
        before |= {"rescues": task.rescues}
        after |= {"rescues": 0}
    return AuditEntry(verb, before, after, task.id)


async def _move_back(tx: Transaction, ids: list[int], restart: int) -> None:
    """Move tasks from the history back to the live table, due now and with all their attempts.

    Args:
        ids: ids of tasks; tasks in other states than MOVES allows stay in the history. The caller ensures that no other
            tasks hold their unique keys.
        restart: the new fence of tasks whose fence has the highest possible value; the others keep theirs.

    Raises:
        DatabaseRefused: a trigger skips a row; the transaction must not commit.
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
    values["hosts"] = sa.case((is_state(past.c.state, State.DEAD), bound_hosts(past.c)), else_=past.c.hosts)
    values |= {"fence": fence, "version": next_version(past.c.version), "expires_at": expiry}
    is_selected = past.c.id.in_(ids) & is_state(past.c.state, *(state for state in move.sources if state))
    copy = (
        sa.insert(task).from_select(list(values), sa.select(*values.values()).where(is_selected)).returning(task.c.id)
    )
    moved = {row[0] for row in await tx.rows(copy)}
    removed = await tx.rows(sa.delete(past).where(past.c.id.in_(moved)).returning(past.c.id))
    history.require_all(len(ids), len(removed))
