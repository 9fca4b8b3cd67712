"""restore: return archived tasks to the history."""

from collections.abc import Sequence

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.store.task_records import Record, write_records


async def restore(tx: Transaction, records: Sequence[Record]) -> list[int]:
    """Insert archived tasks into the history, with the rows that belong to them.

    Returns:
        The ids of the restored tasks; those that exist, live or finished, are left out.
    """
    ids = [record["id"] for record in records]
    existing = set[int]()
    for table in (tx.tables.task, tx.tables.history):
        existing |= {row.id for row in await tx.rows(sa.select(table.c.id).where(tx.dialect.one_of(table.c.id, ids)))}
    new = [record for record in records if record["id"] not in existing]
    await write_records(tx, tx.tables.history, new)
    return [record["id"] for record in new]
