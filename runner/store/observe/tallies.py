"""tallies: count tasks along indexes, up to a cap and no further."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import db_now
from runner.policy.selection import Lane
from runner.schema import is_state
from runner.store.dialects import by_column
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

    def of(self, noun: str) -> str:
        """So many of something: `1 task`, `10,000+ tasks`."""
        return f"{self} {noun}{'' if self == Count(1) else 's'}"


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
    queue, mine = sa.select(lane.c.queue).distinct().subquery("queue"), lane.alias("mine")
    task = tx.tables.task.alias("walked")
    due, later = task.c.run_at <= db_now(), task.c.run_at > db_now()
    # What is due is counted in the index alone; only of what is ahead the rows are looked up, for their attempts.
    ready = _walk(mine, queue, task, due, task.c.run_at, cap + 1)
    ahead = _walk(mine, queue, task, later, task.c.attempt, cap + 1)
    statement = sa.select(queue.c.queue, _size(ready), _sizes(ahead))
    rows = await tx.rows(statement, tx.dialect.parameters("lane", by_column(LANE_COLUMNS, lanes)))
    return {queue: _waiting(ready, sizes, cap) for queue, ready, sizes in rows}


def _waiting(ready: int, sizes: str, cap: int) -> Waiting:
    ahead, tried = map(int, sizes.split())
    # Beyond the cap nothing is known of those that are for later, so neither of their numbers is complete.
    more = ahead > cap
    return Waiting(capped(ready, cap), Count(min(ahead - tried, cap), more), Count(min(tried, cap), more))


def _walk(mine: sa.CTE, queue: sa.Subquery, task: Any, condition: Condition, column: Any, limit: int) -> sa.Subquery:
    """A column of the first waiting tasks of a queue with a condition on their time, whichever lane they are in."""
    here = [task.c[name] == mine.c[name] for name in LANE_COLUMNS]
    walked = sa.select(column).select_from(mine.join(task, sa.and_(*here)))
    due = walked.where(mine.c.queue == queue.c.queue, is_state(task.c.state, State.WAITING), condition)
    return due.limit(limit).correlate(queue).subquery()


def _size(walked: sa.Subquery) -> sa.ScalarSelect[int]:
    return sa.select(sa.func.count()).select_from(walked).scalar_subquery()


def _sizes(walked: sa.Subquery) -> sa.ScalarSelect[str]:
    """How many there are, and how many of them were tried before: two numbers, where only one value can stand."""
    tried = sa.func.coalesce(sa.func.sum(sa.case((walked.c.attempt > 0, 1), else_=0)), 0)
    both = sa.cast(sa.func.count(), sa.Text) + " " + sa.cast(tried, sa.Text)
    return sa.select(both).select_from(walked).scalar_subquery()


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
