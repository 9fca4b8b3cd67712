"""terminate: end tasks before they have ended by themselves."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from runner.storable import to_storable
from runner.store.intervene.answers import By, Result, Target
from runner.store.intervene.locking import Held, change, hold
from runner.store.intervene.record import REASON_LIMIT, Entry, record
from runner.store.move import IN_NO_HANDS, NOBODY, Ending, finish
from runner.store.statistics import count_unclaimed
from runner.store.transaction import Transaction
from runner.task import MOVES, State


async def terminate(tx: Transaction, targets: Iterable[Target], by: By) -> Result:
    """Cancel tasks: those that wait at once, those that run by asking their runners to end them.

    A running task is cancelled when its runner settles it, unless it has succeeded by then.

    Args:
        tx: a writing transaction.
        targets: the tasks, as the operator saw them.
        by: who does it.

    Returns:
        What was done; for a running task "changed" means that its end has been asked for.
    """
    held, answer = await hold(tx, "terminate", targets)
    running = [task for task in held if task.state is State.RUNNING]
    idle = [task for task in held if task.state is not State.RUNNING]
    if running:
        await change(tx, [task.id for task in running], cancel_requested=sa.true())
    if idle:
        # A foreign client may have left a runner's number in a row that no runner has in hand.
        await change(tx, [task.id for task in idle], **IN_NO_HANDS)
        await count_unclaimed(tx, [task.id for task in idle])
        await finish(tx, "cancel", NOBODY, [Ending(task.id, task.fence, error=_why(by)) for task in idle])
    await record(tx, by, [_entry(task) for task in held])
    answer.changed = [task.id for task in held]
    return answer


def _why(by: By) -> str:
    reason = f": {by.reason}" if by.reason else ""
    return to_storable(f"terminated by {by.operator}{reason}", REASON_LIMIT)


def _entry(task: Held) -> Entry:
    if task.state is State.RUNNING:
        run = {"fence": task.fence}
        return Entry("terminate", {"cancel_requested": False} | run, {"cancel_requested": True} | run, task.id)
    before: dict[str, Any] = {"state": task.state, "version": task.version}
    # The history has no room for the one, and keeps why it ended in the place of the other.
    before |= {name: value for name in ("progress", "error") if (value := getattr(task, name)) is not None}
    after = {"state": MOVES["cancel"].target, "version": task.version + RAISED}
    return Entry("terminate", before, after, task.id)


RAISED = 2
"""By so much ending a task that waits raises its version: it is taken out of all hands, and moved."""
