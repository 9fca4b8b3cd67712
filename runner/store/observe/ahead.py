"""ahead: who goes before a task, and how fast they go."""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from runner.columns import db_later, db_now, seconds_until
from runner.policy.selection import Lane
from runner.schema import Tables
from runner.store.dialects import by_column
from runner.store.eligible import has_attempts_left, is_due, is_suspect
from runner.store.observe.tallies import LANE_COLUMNS, Count, capped
from runner.store.transaction import Transaction

WINDOW = 600.0
"""Seconds over which the present rate is taken."""

MINUTE = 60.0


async def ahead(tx: Transaction, id: int, priority: int, lanes: Sequence[Lane], cap: int) -> Count:
    """Count the due tasks that a claim takes before this one.

    Args:
        tx: an open transaction.
        id: of a due task.
        priority: its.
        lanes: that the same slots serve.
        cap: the most tasks to count.
    """
    own = tx.tables.task.alias("own")
    place = [sa.select(own.c[name]).where(own.c.id == id).scalar_subquery() for name in ("run_at", "id")]
    row = tx.tables.task.alias("before")
    earlier = sa.tuple_(row.c.run_at, row.c.id) < sa.tuple_(*place)
    higher = await _walked(tx, row, [lane for lane in lanes if lane.priority > priority], sa.true(), cap + 1)
    same = [lane for lane in lanes if lane.priority == priority]
    return capped(higher + await _walked(tx, row, same, earlier, cap + 1 - higher), cap)


async def _walked(tx: Transaction, row: Any, lanes: Sequence[Lane], only: Any, limit: int) -> int:
    """Count in lanes, each in one walk along the index `ready`; all of them together up to the limit."""
    if not lanes or limit <= 0:
        return 0
    lane = sa.select(tx.dialect.rows("lane", LANE_COLUMNS)).cte("lane")
    here = [row.c[name] == lane.c[name] for name in LANE_COLUMNS]
    walked = sa.select(row.c.id).select_from(lane.join(row, sa.and_(*here)))
    walked = walked.where(is_due(row), only, has_attempts_left(row), ~is_suspect(row)).limit(limit)
    counted = sa.select(sa.func.count()).select_from(walked.subquery())
    return int(await tx.scalar(counted, tx.dialect.parameters("lane", by_column(LANE_COLUMNS, lanes))))


async def suspects_ahead(tx: Transaction, id: int, cap: int) -> Count:
    """Count the due tasks that are run apart, one at a time, before this one: a walk along the index `rescued`."""
    own, row = tx.tables.task.alias("own"), tx.tables.task.alias("before")
    place = [sa.select(own.c[name]).where(own.c.id == id).scalar_subquery() for name in ("run_at", "id")]
    walked = sa.select(row.c.id).where(
        is_due(row), row.c.rescues > sa.literal_column("0"), is_suspect(row), has_attempts_left(row)
    )
    earlier = sa.tuple_(row.c.run_at, row.c.id) < sa.tuple_(*place)
    counted = sa.select(sa.func.count()).select_from(walked.where(earlier).limit(cap + 1).subquery())
    return capped(int(await tx.scalar(counted)), cap)


async def pace(tx: Transaction, lanes: Iterable[Lane]) -> float:
    """Tell how many attempts of these lanes' queues and handlers ended in a second, lately."""
    places = {(lane.queue, lane.handler) for lane in lanes}
    minute = tx.tables.minute.c
    columns = (minute.queue, minute.handler, _attempts(tx.tables), seconds_until(sa.func.min(minute.minute)))
    lately = minute.minute >= db_later(db_now(), -WINDOW)
    rows = await tx.rows(sa.select(*columns).where(lately).group_by(minute.queue, minute.handler))
    mine = [row for row in rows if (row[0], row[1]) in places]
    # Whoever began to work two minutes ago is as fast as in these two.
    span = max((-row[3] for row in mine), default=0.0)
    return float(sum(row[2] for row in mine) / min(max(span, MINUTE), WINDOW))


def _attempts(tables: Tables) -> sa.ColumnElement[int]:
    minute = tables.minute.c
    return sa.func.sum(minute.succeeded + minute.retried + minute.died + minute.cancelled)
