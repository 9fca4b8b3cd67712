"""ahead: who goes before a task, and how fast they go."""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from runner.columns import db_later, db_now, seconds_until
from runner.policy.selection import Lane
from runner.schema import Tables, is_state
from runner.store.dialects import by_column
from runner.store.eligible import has_attempts_left, is_due, is_suspect
from runner.store.observe.tallies import LANE_COLUMNS, Count, capped
from runner.store.transaction import Transaction
from runner.task import State

WINDOW = 600.0
"""Seconds over which the present rate is taken."""

MINUTE = 60.0


async def ahead(tx: Transaction, id: int, run_at: Any, priority: int, lanes: Sequence[Lane], cap: int) -> Count:
    """Count the due tasks that a claim takes before this one.

    Args:
        tx: an open transaction.
        id: of a task.
        run_at: its, in the database's own form; None for a task that becomes due now, behind all that are.
        priority: its, or one that it might have.
        lanes: that the same slots serve.
        cap: the most tasks to count.
    """
    row = tx.tables.task.alias("before")
    walks = [([lane for lane in lanes if lane.priority > priority], is_due(row))]
    same = [lane for lane in lanes if lane.priority == priority]
    walks += [(same, only) for only in ([is_due(row)] if run_at is None else _earlier(row, id, run_at))]
    counted = 0
    for some, only in walks:
        counted += await _walked(tx, row, some, only, cap + 1 - counted)
    return capped(counted, cap)


def _earlier(row: Any, id: int, run_at: Any) -> list[sa.ColumnElement[bool]]:
    """What goes before a task of the same priority: what comes before one that is due is due.

    Two walks rather than one by (run_at, id): SQLite would search by the time alone, which a bulk has in common.
    """
    time = sa.literal(run_at, sa.Text() if isinstance(run_at, str) else sa.DateTime(timezone=True))
    waits = is_state(row.c.state, State.WAITING)
    return [waits & (row.c.run_at < time), waits & (row.c.run_at == time) & (row.c.id < id)]


async def _walked(tx: Transaction, row: Any, lanes: Sequence[Lane], only: Any, limit: int) -> int:
    """Count in lanes, each in one walk along the index `ready`; all of them together up to the limit."""
    if not lanes or limit <= 0:
        return 0
    lane = sa.select(tx.dialect.rows("lane", LANE_COLUMNS)).cte("lane")
    here = sa.and_(*(row.c[name] == lane.c[name] for name in LANE_COLUMNS))
    walk = sa.select(row.c.id).where(only, here, has_attempts_left(row), ~is_suspect(row)).correlate(lane)
    # In the order of the index, lane by lane, so that no planner reads all of the table instead.
    found, each = tx.dialect.for_each(lane, walk.order_by(row.c.run_at, row.c.id).limit(limit), tx.tables.task)
    counted = sa.select(sa.func.count()).select_from(sa.select(each.id).select_from(found).limit(limit).subquery())
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
