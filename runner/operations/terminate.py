"""terminate: cancel live tasks."""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.model.task import MOVES, State
from runner.operations.audit_log import AuditEntry, record
from runner.operations.blocking import close
from runner.operations.results import Actor, Result, Target
from runner.operations.targets import LockedTask, change, lock_targets
from runner.store.history import UNASSIGNED, FinishedTask, finish
from runner.store.minute_statistics import NO_RUNNER, count_unclaimed
from runner.store.terminations import termination_text


async def terminate(tx: Transaction, targets: Iterable[Target], by: Actor) -> Result:
    """Cancel tasks: waiting and blocked ones immediately, running ones through their runners.

    A running task is cancelled when its runner settles it, unless it has succeeded by then.

    Returns:
        The result; a running task is "requested" as well as "changed".
    """
    tasks, result = await lock_targets(tx, "terminate", targets)
    running = [task for task in tasks if task.state is State.RUNNING]
    idle = [task for task in tasks if task.state is not State.RUNNING]
    if running:
        await change(tx, [task.id for task in running], cancel_requested=sa.true())
    await cancel(tx, idle, by)
    await record(tx, by, [_entry(task) for task in tasks])
    result.changed = [task.id for task in tasks]
    result.requested = [task.id for task in running]
    return result


async def cancel(tx: Transaction, tasks: Sequence[LockedTask], by: Actor) -> None:
    """Cancel locked tasks that are waiting or blocked, without an audit entry."""
    if tasks:
        # A foreign client may have left a runner's id in a row that is not running.
        await change(tx, [task.id for task in tasks], **UNASSIGNED)
        await count_unclaimed(tx, [task.id for task in tasks])
        why = termination_text(by.operator, by.reason)
        await finish(tx, "cancel", NO_RUNNER, [FinishedTask(task.id, task.fence, error=why) for task in tasks])
        await close(tx, [task.id for task in tasks if task.state is State.BLOCKED])


def _entry(task: LockedTask) -> AuditEntry:
    if task.state is State.RUNNING:
        attempt = {"fence": task.fence}
        return AuditEntry(
            "terminate", {"cancel_requested": False} | attempt, {"cancel_requested": True} | attempt, task.id
        )
    before: dict[str, Any] = {"state": task.state, "version": task.version}
    if task.error is not None:  # The error column of the history holds the reason for the end.
        before["error"] = task.error
    after = {"state": MOVES["cancel"].target, "version": task.version + VERSION_STEPS}
    return AuditEntry("terminate", before, after, task.id)


VERSION_STEPS = 2
"""The version rises by this number: once to release the task, and once to move it."""
