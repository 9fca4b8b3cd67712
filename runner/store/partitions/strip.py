"""strip: delete what is kept beside the tasks of a range, before it is dropped."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.policy.ranges import Range
from runner.store.partitions.weigh import within
from runner.store.transaction import Transaction


async def strip(tx: Transaction, part: Range, before: datetime, limit: int = 1_000) -> Range | None:
    """Delete attempts, audit entries and edges of the old tasks of a range, a little at a time.

    Those of other tasks with ids of the range stay: they are dead, live, or not old yet.

    Args:
        tx: a writing transaction.
        part: that will be dropped, or what was left of it the last time.
        before: what finished before then is old.
        limit: the most rows to look at, in each table.

    Returns:
        What is left to do, in another transaction; None when all is done.
    """
    columns = [table.c.task_id for table in (tx.tables.attempt, tx.tables.audit, tx.tables.dependency)]
    first = min([await _strip(tx, column, part, before, limit) for column in columns])
    return Range(first, part.end) if first < part.end else None


async def _strip(tx: Transaction, column: Any, part: Range, before: datetime, limit: int) -> int:
    """Strip what one table holds of some tasks; return the id to go on with."""
    here = (column >= part.first, column < part.end)
    met = [row[0] for row in await tx.rows(sa.select(column).where(*here).order_by(column).limit(limit))]
    upto = Range(part.first, met[-1] + 1 if len(met) == limit else part.end)
    past = tx.tables.history.c
    old = (*within(tx.tables, upto), past.finished_at < before, tx.dialect.one_of(past.id, sorted(set(met))))
    ids = [row.id for row in await tx.rows(sa.select(past.id).where(*old))] if met else []
    if ids:
        await tx.execute(sa.delete(column.table).where(tx.dialect.one_of(column, ids)))
    return upto.end
