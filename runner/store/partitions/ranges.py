"""ranges: create ranges of the history ahead of the ids, and drop old ones as a whole."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.schema.partitions import SUCCEEDED, full_name, range_name
from runner.db.transaction import Transaction
from runner.model.task import State
from runner.policy.partitions import Fate, Range, beyond, fate, next_range
from runner.store.partitions.forecast import assess, within
from runner.store.partitions.layout import Layout, attempt_change, lock_partitions, read_layout

MAX_SKIPPED = 10
"""Maximum number of ranges to skip because the default partition already contains rows of them."""


async def extend(tx: Transaction) -> Range | None:
    """Create one range if there are too few beyond the next id.

    Args:
        tx: a writing transaction.

    Returns:
        The new range; call again in another transaction. None if there are enough ranges, if this role may not create
        any, or if the caller must try again later.
    """
    layout = await read_layout(tx)
    if layout is None or not layout.may_change or not await lock_partitions(tx):
        return None
    new_range = await _next_free(
        tx, await read_layout(tx) or layout
    )  # another runner may have created it before the lock
    return new_range if new_range and await _create(tx, new_range) else None


async def _next_free(tx: Transaction, layout: Layout) -> Range | None:
    """Return the range to create; the default partition must not contain a row of it."""
    new_range, past = next_range(list(layout.ranges), layout.next_id), tx.tables.history.c
    for _ in range(MAX_SKIPPED):
        if new_range is None:
            break
        within = is_state(past.state, State.SUCCEEDED) & (past.id >= new_range.first) & (past.id < new_range.end)
        highest_id = await tx.scalar(sa.select(sa.func.max(past.id)).where(within))
        if highest_id is None:
            return new_range
        new_range = beyond(new_range, highest_id)
    return None


async def _create(tx: Transaction, new_range: Range) -> bool:
    whole = full_name(tx.tables.history, SUCCEEDED)
    table = full_name(tx.tables.history, range_name(new_range.first))
    async with attempt_change(tx) as attempt:
        # Create a table and attach it: PARTITION OF would wait for every settle and reader, and they for it.
        await tx.execute(sa.text(f"CREATE TABLE {table} (LIKE {whole} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"))
        values = f"FROM ({new_range.first}) TO ({new_range.end})"
        await tx.execute(sa.text(f"ALTER TABLE {whole} ATTACH PARTITION {table} FOR VALUES {values}"))
    return not attempt.failed


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dropped range.

    Args:
        part: its ids.
        tasks: number of succeeded tasks in it, as far as the server had counted them.
    """

    part: Range
    tasks: int


async def drop(tx: Transaction, part: Range, before: datetime) -> Dropped | None:
    """Drop a range of the history if all but a few of its rows are old; these few move to the default partition.

    Args:
        tx: a writing transaction.
        part: the range, stripped.
        before: tasks that finished before this time are old.

    Returns:
        The dropped range; None if the caller must try again later, or if another runner dropped it.
    """
    if not await lock_partitions(tx):
        return None
    layout = await read_layout(tx)
    if layout is None or part not in layout.ranges:
        return None
    if fate(await assess(tx, part, layout.next_id, before, before)) is not Fate.DROP:
        return None
    estimate = layout.ranges[part]
    tasks = await _count(tx, part) if estimate is None else estimate
    async with attempt_change(tx) as attempt:
        moved = await _drop(tx, part, before)
    return None if attempt.failed else Dropped(part, max(0, tasks - moved))


async def _count(tx: Transaction, part: Range) -> int:
    """Count the rows of a range without server statistics; such a range is small."""
    past = tx.tables.history
    return int(await tx.scalar(sa.select(sa.func.count()).select_from(past).where(*within(tx.tables, part))))


async def _drop(tx: Transaction, part: Range, before: datetime) -> int:
    """Drop the range and return the number of rows that were kept."""
    history = tx.tables.history
    whole, table = (full_name(history, name) for name in (SUCCEEDED, range_name(part.first)))
    await tx.execute(sa.text(f"ALTER TABLE {whole} DETACH PARTITION {table}"))
    names = [column.name for column in history.c]
    apart = sa.table(f"{history.name}_{range_name(part.first)}", *map(sa.column, names), schema=history.schema)
    young = sa.select(*apart.c).where(apart.c.finished_at >= before)
    moved = await tx.rows(sa.insert(history).from_select(names, young).returning(history.c.id))
    await tx.execute(sa.text(f"DROP TABLE {table}"))
    return len(moved)


async def strip(tx: Transaction, part: Range, before: datetime, limit: int = 1_000) -> Range | None:
    """Delete attempts, audit entries, dependencies and notes of the old tasks of a range, in small steps.

    Rows of other tasks with ids in the range stay: these are dead, live, or not old yet.

    Args:
        tx: a writing transaction.
        part: the range to drop, or the rest from the last call.
        before: tasks that finished before this time are old.
        limit: maximum number of rows to read in each table.

    Returns:
        The rest of the range for another transaction; None at the end.
    """
    columns = [table.c.task_id for table in tx.tables.of_tasks]
    first = min([await _strip(tx, column, part, before, limit) for column in columns])
    return Range(first, part.end) if first < part.end else None


async def _strip(tx: Transaction, column: Any, part: Range, before: datetime, limit: int) -> int:
    """Strip the rows of one table and return the id to continue with."""
    here = (column >= part.first, column < part.end)
    met = [row[0] for row in await tx.rows(sa.select(column).where(*here).order_by(column).limit(limit))]
    upto = Range(part.first, met[-1] + 1 if len(met) == limit else part.end)
    past = tx.tables.history.c
    old = (*within(tx.tables, upto), past.finished_at < before, tx.dialect.one_of(past.id, sorted(set(met))))
    ids = [row.id for row in await tx.rows(sa.select(past.id).where(*old))] if met else []
    if ids:
        await tx.execute(sa.delete(column.table).where(tx.dialect.one_of(column, ids)))
    return upto.end
