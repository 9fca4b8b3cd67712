"""rewind: let a task continue from an earlier checkpoint."""

from collections.abc import Iterable

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor, Result, Skipped, Target
from runner.operations.targets import LockedTask, change, lock_targets
from runner.operations.written_rows import write_rows


async def rewind(tx: Transaction, targets: Iterable[Target], number: int, by: Actor) -> Result:
    """Store copies of earlier checkpoints as the last ones: the next attempts continue from them.

    No checkpoint is deleted, so that a second rewind returns to the present one.

    Args:
        targets: the tasks, with the versions that the operator saw. A running task is skipped, because its handler
            continues from memory.
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
        task: the locked task.
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
    await write_rows(tx, sa.insert(table).from_select(["task_id", "number", "fence", "attempt", "state"], copied))
    if not task.state.final:
        await change(tx, [task.id])
    result.changed.append(task.id)
    return AuditEntry("rewind", {"checkpoint": last}, {"checkpoint": last + 1, "copy_of": number}, task.id)
