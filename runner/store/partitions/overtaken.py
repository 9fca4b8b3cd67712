"""overtaken: have the ids left the ranges behind?"""

import sqlalchemy as sa

from runner.schema import is_state
from runner.store.transaction import Transaction
from runner.task import State


async def overtaken(tx: Transaction, end: int) -> bool:
    """Tell whether succeeded tasks stand beyond all ranges of the history.

    Args:
        tx: an open transaction.
        end: the end of the last range.
    """
    past = tx.tables.history.c
    there = sa.select(past.id).where(is_state(past.state, State.SUCCEEDED), past.id >= end).exists()
    return bool(await tx.scalar(sa.select(there)))
