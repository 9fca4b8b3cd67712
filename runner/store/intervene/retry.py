"""retry: run tasks now, or again."""

import random
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from runner.store import move
from runner.store.intervene.answers import By, Result, Target
from runner.store.intervene.changes import check_against
from runner.store.intervene.keys import keep_apart, lock_keys
from runner.store.intervene.locking import Held, change, hold, reschedule
from runner.store.intervene.record import Entry, record
from runner.store.observe.legible import clock
from runner.store.transaction import Transaction
from runner.task import MOVES

NOTHING: Mapping[str, Any] = MappingProxyType({})


async def retry_now(tx: Transaction, targets: Iterable[Target], by: By, over: float = 0.0) -> Result:
    """Make waiting tasks due now, and take dead and cancelled ones back with all their attempts.

    One whose unique key another task has by now is left alone; the others hold theirs again until they are finished.

    Args:
        tx: a writing transaction.
        targets: the tasks, as the operator saw them.
        by: who does it.
        over: seconds over which they are spread at random, so that a herd does not return at once.
    """
    return await _again(tx, "retry_now", targets, by, over)


async def requeue(tx: Transaction, targets: Iterable[Target], by: By, over: float = 0.0) -> Result:
    """Take dead and cancelled tasks back, with all their attempts; see `retry_now` for unique keys.

    Args:
        tx: a writing transaction.
        targets: the tasks, as the operator saw them.
        by: who does it.
        over: seconds over which they are spread at random.
    """
    return await _again(tx, "requeue", targets, by, over)


async def requeue_with(tx: Transaction, target: Target, given: Mapping[str, Any], by: By) -> Result:
    """Take a dead or cancelled task back with other values: no runner sees it before it has them.

    Args:
        tx: a writing transaction.
        target: the task, as the operator saw it.
        given: the values by column, checked already.
        by: who does it.

    Raises:
        InvalidEdit: a value is not allowed for this task; nothing was changed.
    """
    return await _again(tx, "requeue", [target], by, 0.0, given)


async def _again(
    tx: Transaction, verb: str, targets: Iterable[Target], by: By, over: float, given: Mapping[str, Any] = NOTHING
) -> Result:
    chosen = list(targets)
    keys = await lock_keys(tx, [target.id for target in chosen])
    locked, answer = await hold(tx, verb, chosen)
    held = await keep_apart(tx, keys, locked, answer)
    for task in held:
        check_against(given, task._replace(attempt=0))
    past = [task.id for task in held if task.state.final]
    if past:
        await move.requeue(tx, past)
    now = await clock(tx)
    delays = {task.id: timedelta(seconds=random.uniform(0, over)) for task in held}  # noqa: S311 - guards nothing
    times = await reschedule(tx, {id: now + delay for id, delay in delays.items()})
    if given and held:
        await change(tx, [task.id for task in held], **given)
    await record(tx, by, [_entry(verb, task, times, given) for task in held])
    answer.changed = [task.id for task in held]
    return answer


def _entry(verb: str, task: Held, times: Mapping[int, object], given: Mapping[str, Any]) -> Entry:
    new = {name: value for name, value in given.items() if getattr(task, name) != value}
    before: dict[str, Any] = {"run_at": task.run_at, **{name: getattr(task, name) for name in new}}
    after: dict[str, Any] = {"run_at": times[task.id], **new}
    if task.state.final:
        before |= {"state": task.state, "attempt": task.attempt, "rescues": task.rescues, "fence": task.fence}
        after |= {"state": MOVES["requeue"].target, "attempt": 0, "rescues": 0, "fence": task.fence}
    return Entry(verb, before, after, task.id)
