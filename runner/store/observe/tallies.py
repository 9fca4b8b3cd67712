"""tallies: count tasks along indexes, up to a cap and no further."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import db_now
from runner.policy.selection import Lane
from runner.schema import is_state
from runner.store.observe.legible import words
from runner.store.observe.subjects import Condition, ended, live_states
from runner.store.transaction import Transaction
from runner.task import Shown, State

LANE_COLUMNS: dict[str, Any] = {"queue": sa.Text, "handler": sa.Text, "priority": sa.SmallInteger}


class Count(NamedTuple):
    """A number that was counted up to a cap.

    Args:
        number: what was counted.
        more: True when there may be more than that.
    """

    number: int = 0
    more: bool = False

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.more else ''}"


def capped(number: int, cap: int) -> Count:
    """A count of something of which `cap` + 1 were looked at, at most."""
    return Count(min(number, cap), number > cap)


class Waiting(NamedTuple):
    """The waiting tasks of one queue."""

    ready: Count = Count()
    scheduled: Count = Count()
    retrying: Count = Count()


class InHand(NamedTuple):
    """The running tasks of one queue: with live runners, and with lost ones."""

    running: Count = Count()
    lost: Count = Count()


async def waiting(tx: Transaction, lanes: Sequence[Lane], cap: int) -> dict[str, Waiting]:
    """Count the waiting tasks of each queue, each of its lanes in one walk along the index `ready`.

    Args:
        tx: an open transaction; one statement is executed.
        lanes: that exist, as a survey found them.
        cap: the most tasks to count, for each number.
    """
    lane = sa.select(tx.dialect.rows("lane", LANE_COLUMNS)).cte("lane")
    queue = sa.select(lane.c.queue).distinct().subquery("queue")
    task = tx.tables.task.alias("walked")
    due, later = task.c.run_at <= db_now(), task.c.run_at > db_now()
    walks = [(due, cap + 1), (later, cap + 1), (later, cap)]
    ready, ahead, window = (_walk(tx, lane, queue, task, condition, limit) for condition, limit in walks)
    tried = sa.select(sa.func.count()).select_from(window).where(window.c.attempt > 0).scalar_subquery()
    statement = sa.select(queue.c.queue, _size(ready), _size(ahead), tried)
    rows = await tx.rows(statement, tx.dialect.parameters("lane", LANE_COLUMNS, list(lanes)))
    return {queue: _waiting(ready, ahead, tried, cap) for queue, ready, ahead, tried in rows}


def _waiting(ready: int, ahead: int, tried: int, cap: int) -> Waiting:
    # Beyond the cap nothing is known of those that are for later, so neither of their numbers is complete.
    more = ahead > cap
    return Waiting(capped(ready, cap), Count(min(ahead, cap) - tried, more), Count(tried, more))


def _walk(
    tx: Transaction, lane: sa.CTE, queue: sa.Subquery, task: Any, condition: Condition, limit: int
) -> sa.Subquery:
    """The first `limit` waiting tasks of a queue that fulfil a condition on their time, whichever lane they are in."""
    mine = lane.alias("mine")
    here = [task.c[name] == mine.c[name] for name in LANE_COLUMNS]
    found = sa.select(task.c.id, task.c.attempt).where(is_state(task.c.state, State.WAITING), *here, condition)
    joined, row = tx.dialect.for_each(mine, found.limit(limit).correlate(mine), tx.tables.task)
    walked = sa.select(row.id, row.attempt).select_from(joined).where(mine.c.queue == queue.c.queue)
    return walked.limit(limit).correlate(queue).subquery()


def _size(walked: sa.Subquery) -> sa.ScalarSelect[int]:
    return sa.select(sa.func.count()).select_from(walked).scalar_subquery()


async def in_hand(tx: Transaction, cap: int) -> dict[str, InHand]:
    """Count the running tasks of each queue, all queues together up to the cap."""
    task = tx.tables.task
    lost = sa.case((live_states(tx.tables)[Shown.LOST], 1), else_=0).label("lost")
    running = is_state(task.c.state, State.RUNNING)
    window = sa.select(task.c.queue, lost).where(running).limit(cap + 1).subquery()
    numbers = (sa.func.count(), sa.func.sum(window.c.lost))
    rows = await tx.rows(sa.select(window.c.queue, *numbers).group_by(window.c.queue))
    more = sum(row[1] for row in rows) > cap
    return {words(queue): InHand(Count(all_ - lost, more), Count(lost, more)) for queue, all_, lost in rows}


async def blocked(tx: Transaction, cap: int) -> dict[str, Count]:
    """Count the blocked tasks of each queue, all queues together up to the cap."""
    task = tx.tables.task.c
    window = sa.select(task.queue).where(is_state(task.state, State.BLOCKED)).limit(cap + 1).subquery()
    rows = await tx.rows(sa.select(window.c.queue, sa.func.count()).group_by(window.c.queue))
    more = sum(row[1] for row in rows) > cap
    return {words(queue): Count(number, more) for queue, number in rows}


async def dead(tx: Transaction, cap: int) -> dict[str, Count]:
    """Count the dead tasks of each queue, each up to the cap.

    The queues are found by going from one to the next in the index `failed`: asking for the distinct ones would read
    all of it.
    """
    history = tx.tables.history
    earliest, beyond, counted = (history.alias(name) for name in ("earliest", "beyond", "counted"))
    head = sa.select(_first_queue(earliest, sa.true()).label("queue")).cte("head", recursive=True)
    step = _first_queue(beyond, beyond.c.queue > head.c.queue).correlate(head)
    heads = head.union_all(sa.select(step).where(head.c.queue.is_not(None)))
    here = ended(counted.c.state, State.DEAD) & (counted.c.queue == heads.c.queue)
    window = sa.select(counted.c.id).where(here).limit(cap + 1).correlate(heads).subquery()
    statement = sa.select(heads.c.queue, _size(window)).where(heads.c.queue.is_not(None))
    return {words(queue): capped(number, cap) for queue, number in await tx.rows(statement)}


def _first_queue(history: Any, condition: Condition) -> sa.ScalarSelect[str]:
    queue = history.c.queue
    first = sa.select(queue).where(ended(history.c.state, State.DEAD), condition).order_by(queue)
    return first.limit(sa.literal_column("1")).scalar_subquery()
