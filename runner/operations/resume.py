"""resume: end the pause of a queue or a handler."""

from runner.db.transaction import Transaction
from runner.operations.audit_log import AuditEntry, record
from runner.operations.pause import PauseTarget, pause_of, pause_set
from runner.operations.results import Actor


async def resume(tx: Transaction, target: PauseTarget, by: Actor) -> bool:
    """Hand out tasks of a queue or handler again.

    Args:
        target: the queue or handler.

    Returns:
        False if it was not paused, and nothing was changed.
    """
    before = await pause_of(tx, target)
    if before:
        await pause_set(tx, target, {})
        await record(tx, by, [AuditEntry("resume", before, {}, target=str(target))])
    return bool(before)
