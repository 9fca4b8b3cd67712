"""signal: send a signal to tasks, which they wait for or will wait for."""

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import JsonText, db_now
from runner.errors import InvalidInput
from runner.model.text_limits import LONGEST_NAME, require_json
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor, Result, Skipped, Target
from runner.operations.targets import LockedTask, lock_targets, read_tasks
from runner.operations.written_rows import write_rows
from runner.store.signals import starting


async def signal(tx: Transaction, targets: Iterable[Target], name: str, payload: str | None, by: Actor) -> Result:
    """Send a signal to live tasks. A task that waits for it is due now; another one receives it when it waits.

    Args:
        payload: JSON text; None without one.

    Raises:
        InvalidInput: the name is empty, too long or not printable, or the payload is not JSON.
    """
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise InvalidInput(why=f"a signal has a name of 1 to {LONGEST_NAME} printable characters, not {name[:30]!r}")
    if payload is not None:
        require_json("the payload of the signal", payload)
    tasks, result = await lock_targets(tx, "signal", targets)
    ids = [task.id for task in tasks]
    if ids:
        sent = await _insert(tx, ids, name, payload, by.operator)
        rows = await tx.rows(starting(tx.tables, tx.dialect.one_of(tx.tables.task.c.id, ids)))
        started = await read_tasks(tx, sorted(row.id for row in rows), locked=False)
        await record(tx, by, [_entry(task, started.get(task.id), name, sent[task.id]) for task in tasks])
    result.changed = ids
    return result


STARTED = ("state", "fence", "run_at")
"""The values in the audit entries of tasks that a signal has started, for its undo."""


def _entry(task: LockedTask, started: LockedTask | None, name: str, id: int) -> AuditEntry:
    before, after = (
        {} if started is None else {name: getattr(row, name) for name in STARTED} for row in (task, started)
    )
    return AuditEntry("signal", before, after | {"signal": name, "signal_id": id}, task.id)


async def _insert(tx: Transaction, ids: Sequence[int], name: str, payload: str | None, actor: str) -> Mapping[int, int]:
    """Insert a signal for each task, noticed because its task is locked; return their ids by task."""
    task, table = tx.tables.task, tx.tables.signal
    given = sa.literal(name), sa.cast(sa.literal(payload, sa.Text), JsonText), sa.literal(actor), db_now()
    rows = sa.select(task.c.id, *given).where(tx.dialect.one_of(task.c.id, ids)).order_by(task.c.id)
    insert = sa.insert(table).from_select(["task_id", "name", "payload", "actor", "noticed_at"], rows)
    return {
        row.task_id: row.id for row in await write_rows(tx, insert.returning(table.c.task_id, table.c.id), len(ids))
    }


async def withdraw_signal(tx: Transaction, task: LockedTask, id: int, result: Result) -> bool:
    """Delete a signal that its task has not received; otherwise skip the task."""
    table = tx.tables.signal
    unread = (table.c.id == id) & (table.c.task_id == task.id) & table.c.received_at.is_(None)
    if await tx.scalar(sa.select(table.c.id).where(unread)) is None:
        result.skipped.append(Skipped(task.id, "it has received the signal since"))
        return False
    await write_rows(tx, sa.delete(table).where(unread))
    result.changed.append(task.id)
    return True
