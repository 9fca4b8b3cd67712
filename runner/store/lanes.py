"""survey: find the lanes with waiting tasks, and the time at which the first task of each is due."""

from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.schema import Tables, is_state
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, db_now, seconds_until
from runner.model.task import State
from runner.policy.claim_conditions import ClaimScope
from runner.policy.claim_order import CLAIM_POLICY, PAUSED
from runner.policy.lanes import Head, Lane


async def survey(tx: Transaction) -> list[Head]:
    """Return every lane with waiting tasks and the time of its first task.

    The cost grows with the number of lanes, not of tasks: one index look-up per lane.

    Args:
        tx: an open transaction.

    Returns:
        One head per lane, of any handler, paused or not.
    """
    rows = await tx.run(_prepared(tx.tables, tx.driver), {})
    return [Head(Lane(*row[:3]), row[3], float(row[4]), bool(row[5])) for row in rows]


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect) -> Prepared:
    return Prepared(survey_statement(tables, DIALECTS[driver.name]), driver)


def survey_statement(tables: Tables, dialect: Dialect) -> sa.Select[Any]:
    """Walk the index of waiting tasks from lane to lane, a "loose index scan".

    Neither database skips within an index by itself (SELECT DISTINCT reads all of it), so a recursive query asks for
    the first row behind the lane of the last one.
    """
    earliest, beyond = tables.task.alias("earliest"), tables.task.alias("beyond")
    head = sa.select(_first_of(earliest).label("id")).cte("head", recursive=True)
    last, here = _looked_up(head, tables.task, dialect)
    heads = head.union_all(sa.select(_first_behind(beyond, here)).select_from(last))
    queue, handler = tables.queue, tables.handler
    found, task = _looked_up(heads, tables.task, dialect)
    found = found.outerjoin(queue, queue.c.name == task.queue).outerjoin(handler, handler.c.name == task.handler)
    paused = PAUSED.is_paused(queue) | PAUSED.is_paused(handler)
    columns = (task.queue, task.handler, task.priority, task.run_at)
    return sa.select(*columns, seconds_until(task.run_at), paused).select_from(found)


def _looked_up(heads: sa.CTE, task: sa.Table, dialect: Dialect) -> tuple[sa.FromClause, Any]:
    """The first tasks of lanes, each looked up by its id; in a join a planner might read the whole table for them."""
    row = task.alias("here")
    columns = (row.c.id, row.c.queue, row.c.handler, row.c.priority, row.c.run_at)
    one = sa.select(*columns).where(row.c.id == heads.c.id).offset(NO_JOIN).correlate(heads)
    return dialect.for_each(heads, one, task)


def _first_behind(beyond: Any, here: Any) -> sa.ColumnElement[int]:
    """The first task of the next lane: of another priority, else of another handler, else of another queue.

    As one comparison, (queue, handler, priority) > (...), SQLite would search by the queue alone and walk over it.
    """
    names = ("queue", "handler", "priority")
    steps = []
    for place in reversed(range(len(names))):
        same = [beyond.c[name] == here[name] for name in names[:place]]
        further = beyond.c[names[place]] > here[names[place]]
        steps.append(_first_of(beyond, *same, further).correlate(here.id.table))
    return sa.func.coalesce(*steps)


def _first_of(task: Any, *conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    order = (task.c.queue, task.c.handler, task.c.priority, task.c.run_at, task.c.id)
    first = (
        sa.select(task.c.id)
        .where(is_state(task.c.state, State.WAITING), *conditions)
        .order_by(*order)
        .limit(sa.literal_column("1"))
    )
    return first.scalar_subquery()


CAP = 10_000
"""Upper bound of the count."""


class Pending(NamedTuple):
    """The remaining work of some handlers.

    Args:
        running: True if a runner has one of their tasks.
        returning: True if a task is due, or waits for another attempt.
        later: number of tasks scheduled for later that were never tried, up to CAP.
    """

    running: bool
    returning: bool
    later: int


async def pending(tx: Transaction, handlers: Collection[str], queues: Collection[str] = ()) -> Pending:
    """Return the remaining work of some handlers.

    Args:
        tx: an open transaction.
        handlers: names of the handlers.
        queues: restriction to these queues; empty for all.
    """
    task = tx.tables.task.c
    ours = task.handler.in_(handlers) & (task.queue.in_(queues) if queues else sa.true())
    paused = sa.or_(*PAUSED.pauses_of(task, tx.tables))
    claimable = sa.and_(*CLAIM_POLICY.of_task(task, ClaimScope(tx.tables)), ~paused)
    waiting = is_state(task.state, State.WAITING) & ours & claimable
    back = (task.fence > 0) | (task.run_at <= db_now())
    running = sa.exists().where(is_state(task.state, State.RUNNING), ours)
    some = sa.select(task.id).where(waiting, ~back).limit(CAP).subquery()
    later = sa.select(sa.func.count()).select_from(some).scalar_subquery()
    (row,) = await tx.rows(sa.select(running, sa.exists().where(waiting, back), later))
    return Pending(bool(row[0]), bool(row[1]), int(row[2]))
