"""values: restore values of live tasks, withdraw terminations of running ones, and return from rewinds."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.operations.audit_log import AuditEntry, record
from runner.operations.lock import LockedTask, change, reschedule
from runner.operations.results import Actor, Result
from runner.operations.rewind import copy_checkpoint
from runner.operations.undo.entries import UndoableChange, former_values


async def set_values(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Restore the values of live tasks.

    Args:
        tx: a writing transaction.
        pairs: the changes that can be undone, and their locked tasks.
        by: the author.
    """
    values_by_id = {task.id: former_values(change, change.before) for change, task in pairs}
    times = {id: values["run_at"] for id, values in values_by_id.items() if list(values) == ["run_at"]}
    await reschedule(tx, {id: moment for id, moment in times.items() if isinstance(moment, datetime)})
    same: dict[tuple[tuple[str, object], ...], list[int]] = {}
    for id, values in values_by_id.items():
        if id not in times:
            same.setdefault(tuple(values.items()), []).append(id)
    for items, ids in same.items():
        await change(tx, ids, **dict(items))
    await record(tx, by, [_entry(change, task, values_by_id[task.id]) for change, task in pairs])
    return Result([task.id for _, task in pairs])


def _entry(change: UndoableChange, task: LockedTask, values: dict[str, object]) -> AuditEntry:
    before = {name: getattr(task, name) for name in values}
    return AuditEntry("edit", before, values, task.id, undo_of=change.id)


async def undo_rewind(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Return to the checkpoints before rewinds, unless the tasks have stored others since.

    Args:
        tx: a writing transaction.
        pairs: the changes that can be undone, and their locked tasks.
        by: the author.
    """
    result, entries = Result(), list[AuditEntry]()
    for rewound, task in pairs:
        before, after = int(rewound.before["checkpoint"]), int(rewound.after["checkpoint"])
        if (entry := await copy_checkpoint(tx, task, before, result, after)) is not None:
            entries.append(entry._replace(undo_of=rewound.id))
    await record(tx, by, entries)
    return result


async def withdraw(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Withdraw terminations of running tasks; see `runner.policy.verdict` for one that takes effect concurrently.

    Args:
        tx: a writing transaction.
        pairs: the changes that can be undone, and their locked tasks.
        by: the author.
    """
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
