"""extend: create ranges of the history ahead of the ids."""

import sqlalchemy as sa

from runner.policy.ranges import Range, beyond, next_range
from runner.schema import is_state
from runner.schema.partitions import SUCCEEDED, full_name, range_name
from runner.store.partitions.look import Layout, look
from runner.store.partitions.turn import take, trying
from runner.store.transaction import Transaction
from runner.task import State

TRIES = 10
"""Ranges that are passed over, at most, because rows with ids of theirs stand in the default partition already."""


async def extend(tx: Transaction) -> Range | None:
    """Create one range, if there are not enough beyond the id that will be handed out next.

    Args:
        tx: a writing transaction.

    Returns:
        What was created; do it again, in another transaction. None when there are enough, when this role may not
        create any, or when it must be tried again later.
    """
    layout = await look(tx)
    if layout is None or not layout.may_change or not await take(tx):
        return None
    wanted = await _free(tx, await look(tx) or layout)  # anew: somebody may have created it before it was our turn
    return wanted if wanted and await _created(tx, wanted) else None


async def _free(tx: Transaction, layout: Layout) -> Range | None:
    """The range to create; the default partition must not hold a row that would belong into it."""
    wanted, past = next_range(list(layout.ranges), layout.next_id), tx.tables.history.c
    for _ in range(TRIES):
        if wanted is None:
            break
        within = is_state(past.state, State.SUCCEEDED) & (past.id >= wanted.first) & (past.id < wanted.end)
        taken = await tx.scalar(sa.select(sa.func.max(past.id)).where(within))
        if taken is None:
            return wanted
        wanted = beyond(wanted, taken)
    return None


async def _created(tx: Transaction, wanted: Range) -> bool:
    whole = full_name(tx.tables.history, SUCCEEDED)
    table = full_name(tx.tables.history, range_name(wanted.first))
    async with trying(tx) as attempt:
        # Created apart and attached: PARTITION OF would wait for every settle and every reader, and they for it.
        await tx.execute(sa.text(f"CREATE TABLE {table} (LIKE {whole} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"))
        values = f"FROM ({wanted.first}) TO ({wanted.end})"
        await tx.execute(sa.text(f"ALTER TABLE {whole} ATTACH PARTITION {table} FOR VALUES {values}"))
    return not attempt.failed
