"""delay: postpone tasks."""

import math
from collections.abc import Iterable
from datetime import timedelta

from runner.db.transaction import Transaction, clock
from runner.db.types import LATEST
from runner.errors import InvalidEdit
from runner.model.duration import LONGEST_SECONDS
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor, Result, Skipped, Target
from runner.operations.targets import LockedTask, lock_targets, reschedule

TOO_LATE = f"it would be due after the year {LATEST.year - 1}"


async def delay(tx: Transaction, targets: Iterable[Target], seconds: float, by: Actor) -> Result:
    """Postpone waiting tasks by a number of seconds, counted from their due time, or from now if that is past.

    Args:
        seconds: the delay in seconds, greater than zero.

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
