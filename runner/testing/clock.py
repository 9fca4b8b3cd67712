"""clock: let time pass for everything that is stored.

The clock of the database cannot be moved, but what it is compared with can: when every stored time lies ten minutes
earlier, it is ten minutes later for all of them.
"""

import sqlalchemy as sa

from runner.columns import Instant, db_later
from runner.schema import Tables
from runner.store.transaction import Transaction


async def advance(tx: Transaction, seconds: float) -> None:
    """Let time pass: what was due in a while is due then, ages grow, keys that are kept for a time expire.

    Args:
        tx: an open transaction.
        seconds: how much; not negative.
    """
    for table in _timed(tx.tables):
        times = [column for column in table.c if isinstance(column.type, Instant)]
        await tx.execute(sa.update(table).values({column.name: db_later(column, -seconds) for column in times}))


def _timed(tables: Tables) -> list[sa.Table]:
    """Everything with times, but for the leases of runners, who live on, and the minutes, which are whole ones."""
    return [tables.task, tables.history, tables.attempt, tables.unique, tables.dependency, tables.audit]
