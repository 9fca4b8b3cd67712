"""ahead: the tasks that are claimed before a given one, and the rate at which such tasks end."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from runner.db.schema import Tables, is_state
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now, seconds_until
from runner.model.task import State
from runner.policy.claim_facts import ClaimScope
from runner.policy.claim_order import STRICT, ClaimOrder
from runner.policy.claim_policy import CLAIM_POLICY
from runner.policy.lanes import Lane
from runner.queries.counting import LANE_COLUMNS, Count, capped

WINDOW = 600.0
"""The period of the current rate, in seconds."""

MINUTE = 60.0


async def ahead(
    tx: Transaction, id: int, run_at: Any, priority: int, lanes: Sequence[Lane], cap: int, order: ClaimOrder = STRICT
) -> Count:
    """Count the due tasks that a claim takes before this one.

    Args:
        run_at: its due time in the database's own form; None for a task that becomes due now, after all due tasks.
        priority: its priority in the order, or another one to try.
        lanes: the lanes that the same slots serve.
        cap: maximum number of tasks to count.
        order: the order in which the runners claim.
    """
    row = tx.tables.task.alias("before")
    levels: dict[int, list[Lane]] = defaultdict(list)
    for lane in lanes:
        levels[order.level(lane.priority_in(order), priority)].append(lane)
    position = None if run_at is None else _literal(run_at)
    walks = [
        _walked(tx, row, levels[level], condition, cap + 1)
        for level in levels
        for condition in order.ahead_of(row.c, level, id, position)
    ]
    return capped(sum(await tx.gather(*walks)), cap)


def _literal(run_at: Any) -> sa.ColumnElement[Any]:
    return sa.literal(run_at, sa.Text() if isinstance(run_at, str) else sa.DateTime(timezone=True))


async def _walked(tx: Transaction, row: Any, lanes: Sequence[Lane], condition: Any, limit: int) -> int:
    """Count the tasks of lanes, with one walk per lane along the index `ready`, up to a common limit."""
    lane = sa.select(tx.dialect.rows("lane", LANE_COLUMNS)).cte("lane")
    same_lane = sa.and_(*(row.c[name] == lane.c[name] for name in LANE_COLUMNS))
    scope = ClaimScope(tx.tables)
    rest = [*CLAIM_POLICY.of_task(row.c, scope), *CLAIM_POLICY.isolation.of_task(row.c, scope)]
    walk = sa.select(row.c.id).where(condition, same_lane, *rest).correlate(lane)
    # In the order of the index, lane by lane, so that no planner reads the whole table.
    walk = walk.order_by(*CLAIM_POLICY.order.within_lane(row.c)).limit(limit)
    lateral, lane_row = tx.dialect.for_each(lane, walk, tx.tables.task)
    count = sa.select(sa.func.count()).select_from(sa.select(lane_row.id).select_from(lateral).limit(limit).subquery())
    return int(await tx.scalar(count, tx.dialect.row_parameters("lane", LANE_COLUMNS, lanes)))


async def suspects_ahead(tx: Transaction, id: int, cap: int) -> Count:
    """Count the due suspects that are older than this one: a walk along the index `rescued`."""
    own, row = tx.tables.task.alias("own"), tx.tables.task.alias("before")
    position = [sa.select(own.c[name]).where(own.c.id == id).scalar_subquery() for name in ("run_at", "id")]
    suspects = sa.select(row.c.id).where(*CLAIM_POLICY.suspects(row.c, ClaimScope(tx.tables)))
    earlier = CLAIM_POLICY.isolation.before(row.c, sa.tuple_(*position))
    count = sa.select(sa.func.count()).select_from(suspects.where(earlier).limit(cap + 1).subquery())
    return capped(int(await tx.scalar(count)), cap)


SAMPLE = 1_000
"""Finished tasks to read for the share of tasks that overtook others."""

FAR = 1e9
"""Seconds after which a task becomes due that always overtakes."""


async def arrivals(tx: Transaction, lanes: Sequence[Lane], priority: int, order: ClaimOrder, rate: float) -> float:
    """Estimate the tasks per second that become due and are claimed before the waiting ones of a priority.

    The share of such tasks comes from the last finished ones. An order in which later tasks stop overtaking has none.

    Args:
        tx: an open transaction; two statements are executed, each along an index.
        lanes: the lanes that the same slots serve.
        order: the order in which the runners claim.
        rate: attempts per second that end in these lanes, see `pace`.
    """
    above = [lane for lane in lanes if order.level(lane.priority_in(order), priority) > 0]
    if not above or order.lane_key(above[0].priority_in(order), FAR) > order.lane_key(priority, 0.0):
        return 0.0
    past, start = tx.tables.history.c, db_later(db_now(), -WINDOW)
    newest = sa.select(past.queue, past.handler, past.priority, (past.run_at >= start).label("recent"))
    newest = newest.where(past.finished_at >= start).order_by(past.finished_at.desc(), past.id.desc()).limit(SAMPLE)
    sample = newest.subquery()
    row = tx.tables.task.alias("before")
    waits = is_state(row.c.state, State.WAITING) & row.c.run_at.between(start, db_now())
    finished = tx.rows(sa.select(sample, sa.func.count()).group_by(*sample.c))
    waiting: int
    groups, waiting = await tx.gather(finished, _walked(tx, row, above, waits, SAMPLE))
    work_keys = {(lane.queue, lane.handler) for lane in lanes}
    total = overtaking = 0
    for queue, handler, other, recent, number in groups:
        if (queue, handler) in work_keys:
            total += number
            overtaking += number if recent and order.level(order.effective(other, False), priority) > 0 else 0
    return rate * overtaking / total + waiting / WINDOW if total else waiting / WINDOW


async def pace(tx: Transaction, lanes: Iterable[Lane]) -> float:
    """The attempts per second that ended recently, over the queues and handlers of these lanes."""
    work_keys = {(lane.queue, lane.handler) for lane in lanes}
    minute = tx.tables.minute.c
    columns = (minute.queue, minute.handler, _attempts(tx.tables), seconds_until(sa.func.min(minute.minute)))
    recent = minute.minute >= db_later(db_now(), -WINDOW)
    rows = await tx.rows(sa.select(*columns).where(recent).group_by(minute.queue, minute.handler))
    own_rows = [row for row in rows if (row[0], row[1]) in work_keys]
    # If the first statistics are two minutes old, the rate covers these two minutes.
    span = max((-row[3] for row in own_rows), default=0.0)
    return float(sum(row[2] for row in own_rows) / min(max(span, MINUTE), WINDOW))


def _attempts(tables: Tables) -> sa.ColumnElement[int]:
    minute = tables.minute.c
    return sa.func.sum(minute.succeeded + minute.retried + minute.died + minute.cancelled)
