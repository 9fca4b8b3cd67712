"""extend: create ranges of the history ahead of the ids."""

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.schema.partitions import SUCCEEDED, full_name, range_name
from runner.db.transaction import Transaction
from runner.model.task import State
from runner.policy.partitions import Range, beyond, next_range
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
