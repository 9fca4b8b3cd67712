"""retry: run tasks now or again."""

import random
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from runner.db.transaction import Transaction, clock
from runner.model.task import MOVES
from runner.operations.audit_log import AuditEntry, record
from runner.operations.edit_values import check_against
from runner.operations.lock import LockedTask, change, lock_targets, reschedule
from runner.operations.results import Actor, Result, Target
from runner.operations.unique_keys import assign_keys, lock_keys
from runner.store import history

NOTHING: Mapping[str, Any] = MappingProxyType({})


async def retry_now(tx: Transaction, targets: Iterable[Target], by: Actor, spread: float = 0.0) -> Result:
    """Make waiting tasks due now, and requeue dead and cancelled ones with all their attempts.

    A task that lost runners is no longer a suspect. A task whose unique key another task holds is skipped; the others
    hold their keys again until they finish.

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
    finished = [task.id for task in tasks if task.state.final]
    if finished:
        await history.requeue(tx, finished)
    now = await clock(tx)
    delays = {task.id: timedelta(seconds=random.uniform(0, spread)) for task in tasks}  # noqa: S311 - guards nothing
    times = await reschedule(tx, {id: now + delay for id, delay in delays.items()}, rescues=0)
    if values and tasks:
        await change(tx, [task.id for task in tasks], **values)
    await record(tx, by, [_entry(verb, task, times, values) for task in tasks])
    result.changed = [task.id for task in tasks]
    return result


def _entry(verb: str, task: LockedTask, times: Mapping[int, object], values: Mapping[str, Any]) -> AuditEntry:
    new = {name: value for name, value in values.items() if getattr(task, name) != value}
    before: dict[str, Any] = {"run_at": task.run_at, **{name: getattr(task, name) for name in new}}
    after: dict[str, Any] = {"run_at": times[task.id], **new}
    if task.state.final:
        before |= {"state": task.state, "attempt": task.attempt, "rescues": task.rescues, "fence": task.fence}
        after |= {"state": MOVES["requeue"].target, "attempt": 0, "rescues": 0, "fence": task.fence}
    return AuditEntry(verb, before, after, task.id)
