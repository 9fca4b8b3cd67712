"""deaths: the tasks that died in a period and are still dead, by handler."""

from datetime import datetime

import sqlalchemy as sa

from runner.db.schema.task import is_final_state
from runner.db.transaction import Transaction
from runner.model.task import State
from runner.queries.counting import Count
from runner.queries.rows import as_text

MOST_DEAD = 10_000
"""Dead tasks that are counted."""


async def dead_by_handler(tx: Transaction, since: datetime | None = None) -> dict[str, Count]:
    """Count the latest MOST_DEAD dead tasks by handler, along the index `ended`.

    Args:
        tx: an open transaction; one statement is executed.
        since: only those that died since then, aware; None for all.
    """
    past = tx.tables.history.c
    window = sa.select(past.handler).where(is_final_state(past.state, State.DEAD))
    if since is not None:
        window = window.where(past.finished_at >= since)
    latest = window.order_by(past.finished_at.desc()).limit(MOST_DEAD).subquery()
    tasks = sa.func.count()
    statement = sa.select(latest.c.handler, tasks).group_by(latest.c.handler).order_by(tasks.desc(), latest.c.handler)
    rows = await tx.rows(statement)
    more = sum(row[1] for row in rows) >= MOST_DEAD
    return {as_text(name): Count(number, more) for name, number in rows}
