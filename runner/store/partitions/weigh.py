"""weigh: find out what is known of a range before its fate is decided."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.policy.ranges import FEW, Range, Weighed
from runner.schema import Tables, is_state
from runner.store.transaction import Transaction
from runner.task import State


async def weigh(tx: Transaction, part: Range, next_id: int, before: datetime, soon: datetime) -> Weighed:
    """Find out how old the rows of a range are, and how many may still come.

    Args:
        tx: an open transaction; one statement is executed, which looks at FEW rows of each table at most.
        part: of the history.
        next_id: the id that will be handed out next.
        before: what finished before then is old.
        soon: what finished before then will be old after the leeway.
    """
    past, task = tx.tables.history.c, tx.tables.task.c
    finished = sa.select(past.finished_at).where(*within(tx.tables, part))
    oldest = finished.order_by(past.finished_at).limit(1).scalar_subquery()
    youngest = finished.order_by(past.finished_at.desc()).offset(FEW).limit(1).scalar_subquery()
    live = sa.select(task.id).where(task.id >= part.first, task.id < part.end).limit(FEW + 1).subquery()
    number = sa.select(sa.func.count()).select_from(live).scalar_subquery()
    statement = sa.select(number <= FEW, oldest < before, youngest < before, youngest < soon)
    (found,) = await tx.rows(statement)
    return Weighed(part.end <= next_id, *found)


def within(tables: Tables, part: Range) -> tuple[sa.ColumnElement[bool], ...]:
    """The conditions that a finished task stands in a range."""
    past: Any = tables.history.c
    return is_state(past.state, State.SUCCEEDED), past.id >= part.first, past.id < part.end
