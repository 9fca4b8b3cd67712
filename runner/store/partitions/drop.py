"""drop: take an old range away as a whole."""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.policy.ranges import Fate, Range, fate
from runner.schema.partitions import SUCCEEDED, full_name, range_name
from runner.store.partitions.look import look
from runner.store.partitions.turn import take, trying
from runner.store.partitions.weigh import weigh, within
from runner.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Dropped:
    """A range that is gone.

    Args:
        part: its ids.
        tasks: succeeded tasks that went with it, as far as the server had counted them.
    """

    part: Range
    tasks: int


async def drop(tx: Transaction, part: Range, before: datetime) -> Dropped | None:
    """Drop a range of the history, if all but a few of its rows are old; these few move to the default partition.

    Args:
        tx: a writing transaction.
        part: the range, stripped.
        before: what finished before then is old.

    Returns:
        What is gone; None when it must be tried again later, or when somebody else has done it.
    """
    if not await take(tx):
        return None
    layout = await look(tx)
    if layout is None or part not in layout.ranges:
        return None
    if fate(await weigh(tx, part, layout.next_id, before, before)) is not Fate.DROP:
        return None
    known = layout.ranges[part]
    tasks = await _count(tx, part) if known is None else known
    async with trying(tx) as attempt:
        moved = await _drop(tx, part, before)
    return None if attempt.failed else Dropped(part, max(0, tasks - moved))


async def _count(tx: Transaction, part: Range) -> int:
    """Count what the server has not counted yet, and which is little therefore."""
    past = tx.tables.history
    return int(await tx.scalar(sa.select(sa.func.count()).select_from(past).where(*within(tx.tables, part))))


async def _drop(tx: Transaction, part: Range, before: datetime) -> int:
    """Take the range away, and return how many of its rows were kept."""
    history = tx.tables.history
    whole, table = (full_name(history, name) for name in (SUCCEEDED, range_name(part.first)))
    await tx.execute(sa.text(f"ALTER TABLE {whole} DETACH PARTITION {table}"))
    names = [column.name for column in history.c]
    apart = sa.table(f"{history.name}_{range_name(part.first)}", *map(sa.column, names), schema=history.schema)
    young = sa.select(*apart.c).where(apart.c.finished_at >= before)
    moved = await tx.rows(sa.insert(history).from_select(names, young).returning(history.c.id))
    await tx.execute(sa.text(f"DROP TABLE {table}"))
    return len(moved)
