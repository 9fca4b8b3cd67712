"""deeds: what operators did, of which all that was done together counts as one."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from runner.store.observe.audit import STRETCH, Audited, audit, audited_row
from runner.store.observe.legible import legible
from runner.store.observe.tallies import Count, capped
from runner.store.transaction import Transaction

CAP = 10_000
"""Changes of one deed that are counted at most."""


class Deed(NamedTuple):
    """One thing that an operator did.

    Args:
        entry: of the audit; the latest of those that were made together.
        number: how many were made together; one for a change that was made alone.
    """

    entry: Audited
    number: Count


async def deeds(tx: Transaction, limit: int = 50, batch: str | None = None) -> list[Deed]:
    """List what operators did, the latest first.

    Args:
        tx: an open transaction; one statement is executed, or two.
        limit: the most deeds.
        batch: list the changes that were made together under this word, one by one.
    """
    if batch is not None:
        return [Deed(entry, Count(1)) for entry in await audit(tx, limit=limit, batch=batch)]
    found = await _latest(tx, limit)
    numbers = await _numbers(tx, [entry.id for entry in found if entry.batch])
    return [Deed(entry, numbers.get(entry.id, Count(1))) for entry in found]


async def _latest(tx: Transaction, limit: int) -> list[Audited]:
    """The latest entry of each deed, among the latest STRETCH of all."""
    table, other = tx.tables.audit, tx.tables.audit.alias("together")
    edge = sa.select(table.c.id).order_by(table.c.id.desc()).offset(STRETCH - 1).limit(1).scalar_subquery()
    last = sa.select(sa.func.max(other.c.id)).where(other.c.batch == table.c.batch).correlate(table).scalar_subquery()
    chosen = (table.c.id >= sa.func.coalesce(edge, 0)) & (table.c.batch.is_(None) | (table.c.id == last))
    statement = sa.select(*legible(tx, table.c)).where(chosen).order_by(table.c.id.desc()).limit(limit)
    return [audited_row(row) for row in (await tx.execute(statement)).mappings().all()]


async def _numbers(tx: Transaction, entries: Sequence[int]) -> Mapping[int, Count]:
    if not entries:
        return {}
    table, other = tx.tables.audit, tx.tables.audit.alias("together")
    some = sa.select(other.c.id).where(other.c.batch == table.c.batch).limit(CAP + 1).correlate(table).subquery()
    number = sa.select(sa.func.count()).select_from(some).correlate(table).scalar_subquery()
    chosen = tx.dialect.one_of(table.c.id, entries)
    return {id: capped(count, CAP) for id, count in await tx.rows(sa.select(table.c.id, number).where(chosen))}
