"""Bounded counts of tasks, along indexes."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import Dialect, OrderedJoin
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state, waits_with_tenant
from runner.db.schema.task import Condition, is_final_state
from runner.db.transaction import Transaction
from runner.db.types import db_now, seconds_until
from runner.model.task import Shown, State
from runner.policy.lanes import Head, Lane
from runner.queries.rows import as_int, as_text, text
from runner.queries.task_list.sources import live_states
from runner.store.claim.survey import survey
from runner.text.runner_name import runner_name

QUEUE_COLUMNS: dict[str, Any] = {"queue": sa.Text}
LANE_COLUMNS: dict[str, Any] = {
    "queue": sa.Text,
    "handler": sa.Text,
    "priority": sa.SmallInteger,
    "hosts": sa.Text,
    "retried": sa.Boolean,
}


class Count(NamedTuple):
    """A count with an upper bound.

    Args:
        number: the number of rows counted.
        more: True if there may be more.
    """

    number: int = 0
    more: bool = False

    def __str__(self) -> str:
        """The count; `?` if it stopped before the first row, so that the number is unknown."""
        return "?" if self == (0, True) else f"{self.number:,}{'+' if self.more else ''}"

    def of(self, noun: str) -> str:
        """The count with its noun: `1 task`, `10,000+ tasks`."""
        return f"{self} {noun}{'' if self == Count(1) else 's'}"

    def at_most(self, limit: int | None) -> "Count":
        """The count of the rows that a limit leaves; None for no limit."""
        return self if limit is None or limit > self.number else Count(limit)


def total_of(counts: Iterable[Count]) -> Count:
    """The sum of counts: a lower bound if one of them is."""
    listed = list(counts)
    return Count(sum(count.number for count in listed), any(count.more for count in listed))


def capped(number: int, cap: int) -> Count:
    """A count from a query that read at most `cap` + 1 rows."""
    return Count(min(number, cap), number > cap)


class WaitingCounts(NamedTuple):
    """The waiting tasks of one queue."""

    ready: Count = Count()
    scheduled: Count = Count()
    retrying: Count = Count()


class RunningCounts(NamedTuple):
    """The running tasks of one queue: on live runners, and on lost ones."""

    running: Count = Count()
    lost: Count = Count()


MOST_LANES = 10_000
"""Maximum number of lanes in which waiting tasks are counted."""


@needs(Needs.PREPARED)
async def lane_heads(tx: Transaction) -> list[Head]:
    """Read the first MOST_LANES lanes with waiting tasks, in the order of their queues.

    Several queries need them, with `once`.
    """
    return await survey(tx, most=MOST_LANES)


async def waiting(tx: Transaction, lanes: Sequence[Lane], cap: int) -> dict[str, WaitingCounts]:
    """Count the waiting tasks of each queue, with one walk per lane along the index `ready`.

    Args:
        tx: an open transaction; one statement is executed.
        lanes: the lanes that exist, from a survey.
        cap: maximum number of tasks to count for each number.
    """
    statement = _waiting_statement(tx.tables, tx.dialect, cap)
    rows = await tx.rows(statement, tx.dialect.row_parameters("lane", LANE_COLUMNS, lanes))
    return {queue: WaitingCounts(*(capped(number, cap) for number in numbers)) for queue, *numbers in rows}


# The console counts every second: building these statements would cost more than executing them.


@lru_cache
def _waiting_statement(tables: Tables, dialect: Dialect, cap: int) -> sa.Select[Any]:
    lane_rows = sa.select(dialect.rows("lane", LANE_COLUMNS)).cte("lane")
    queue, lane = sa.select(lane_rows.c.queue).distinct().subquery("queue"), lane_rows.alias("mine")
    task = tables.task.alias("walked")
    due, future = task.c.run_at <= db_now(), task.c.run_at > db_now()
    mine = lane.c.queue == queue.c.queue
    # Many scheduled tasks do not hide that none is retrying: the lanes of each are walked on their own.
    parts = ((mine, due), (mine & sa.not_(lane.c.retried), future), (mine & lane.c.retried, future))
    walks = (_walk(dialect, lane, queue, task, lanes, condition, cap + 1) for lanes, condition in parts)
    return sa.select(queue.c.queue, *map(_size, walks))


def _walk(
    dialect: Dialect,
    lane: sa.FromClause,
    queue: sa.Subquery,
    task: Any,
    mine: Condition,
    condition: Condition,
    limit: int,
) -> sa.Subquery:
    """The first waiting tasks of some lanes of a queue that match a condition."""
    matches = [task.c[name] == lane.c[name] for name in LANE_COLUMNS]
    waiting, column = is_state(task.c.state, State.WAITING), task.c.run_at  # of the index: the walk reads no rows
    if dialect.laterals:
        # Lane by lane: as a join, a planner that expects one row would read the tasks of all queues for each queue.
        first = sa.select(column).where(waiting, condition, *matches).limit(limit).correlate(lane)
        each = first.lateral("first")
        rows = sa.select(each.c[column.key]).select_from(lane.join(each, sa.true())).where(mine)
    else:
        lanes_first = OrderedJoin(lane, task, sa.and_(*matches))
        rows = sa.select(column).select_from(lanes_first).where(mine, waiting, condition)
    return rows.limit(limit).correlate(queue).subquery()


def _size(rows: sa.Subquery) -> sa.ScalarSelect[int]:
    return sa.select(sa.func.count()).select_from(rows).scalar_subquery()


MOST_COUNTED = 200_000
"""Maximum number of due tasks to count, over all lanes."""


async def due_by_lane(tx: Transaction, lanes: Sequence[Lane], before: datetime | None = None) -> dict[Lane, Count]:
    """Count the due tasks of each lane, with one walk per lane along the index `ready`.

    Args:
        before: only tasks that became due before this time, aware; None for all.
    """
    lanes = [lane for lane in lanes if isinstance(lane.queue, str) and isinstance(lane.handler, str)]
    if not lanes:
        return {}
    cap = max(100, MOST_COUNTED // len(lanes))
    lane, task = sa.select(tx.dialect.rows("lane", LANE_COLUMNS)).cte("lane"), tx.tables.task.alias("counted")
    same = sa.and_(*(task.c[name] == lane.c[name] for name in LANE_COLUMNS))
    is_due = task.c.run_at <= db_now() if before is None else task.c.run_at < before
    due = sa.select(task.c.id).where(is_state(task.c.state, State.WAITING), is_due, same)
    walk = due.order_by(task.c.run_at, task.c.id).limit(cap + 1).correlate(lane)
    joined, _ = tx.dialect.for_each(lane, walk, tx.tables.task)
    columns = [lane.c[name] for name in LANE_COLUMNS]
    statement = sa.select(*columns, sa.func.count()).select_from(joined).group_by(*columns)
    rows = await tx.rows(statement, tx.dialect.row_parameters("lane", LANE_COLUMNS, lanes))
    return {Lane(*row[:-1]): capped(row[-1], cap) for row in rows}


MOST_OF_TENANT = 10_000
"""Maximum number of due tasks to count of a tenant in a lane."""


class TenantTurn(NamedTuple):
    """The turn of a tenant in a lane."""

    queue: str
    handler: str
    priority: int
    hosts: str
    retried: bool
    tenant: str

    @property
    def work_key(self) -> tuple[str, str]:
        """The queue and the handler."""
        return self.queue, self.handler


TURN_COLUMNS: dict[str, Any] = {**LANE_COLUMNS, "tenant": sa.Text}


async def first_of_tenants(tx: Transaction, turns: Collection[TenantTurn]) -> dict[TenantTurn, float]:
    """The seconds since the first task of each tenant in each lane became due, with one look-up for each.

    Args:
        tx: an open transaction; one statement is executed, or none without turns.
        turns: the tenants and lanes; those without a due task are not in the result.
    """
    if not turns:
        return {}
    turn, due = _due_of(tx)
    joined, match = tx.dialect.first_of_each(turn, due.limit(1), tx.tables.task)
    statement = sa.select(*turn.c, seconds_until(match.run_at)).select_from(joined)
    rows = await tx.rows(statement, tx.dialect.row_parameters("turn", TURN_COLUMNS, turns))
    return {TenantTurn(*row[:-1]): max(0.0, -float(row[-1])) for row in rows}


async def due_of_tenants(tx: Transaction, turns: Collection[TenantTurn]) -> dict[TenantTurn, Count]:
    """Count the due tasks of each tenant in each lane, with one walk for each; see `first_of_tenants`."""
    if not turns:
        return {}
    turn, due = _due_of(tx)
    joined, _ = tx.dialect.for_each(turn, due.limit(MOST_OF_TENANT + 1), tx.tables.task)
    statement = sa.select(*turn.c, sa.func.count()).select_from(joined).group_by(*turn.c)
    rows = await tx.rows(statement, tx.dialect.row_parameters("turn", TURN_COLUMNS, turns))
    return {TenantTurn(*row[:-1]): capped(row[-1], MOST_OF_TENANT) for row in rows}


def _due_of(tx: Transaction) -> tuple[sa.CTE, sa.Select[Any]]:
    """The turns of a statement, and the due tasks of one of them in order."""
    turn, row = sa.select(tx.dialect.rows("turn", TURN_COLUMNS)).cte("turn"), tx.tables.task.alias("due")
    task = row.c
    same = [task[name] == turn.c[name] for name in TURN_COLUMNS]
    due = sa.select(task.id, task.run_at).where(waits_with_tenant(task), task.run_at <= db_now(), *same)
    return turn, due.order_by(task.run_at, task.id).correlate(turn)


async def running(tx: Transaction, cap: int) -> dict[str, RunningCounts]:
    """Count the running tasks of each queue; the cap applies to all queues together."""
    rows = await tx.rows(_running_statement(tx.tables, cap))
    more = sum(row[1] for row in rows) > cap
    return {
        as_text(queue): RunningCounts(Count(total - lost_count, more), Count(lost_count, more))
        for queue, total, lost_count in rows
    }


@lru_cache
def _running_statement(tables: Tables, cap: int) -> sa.Select[Any]:
    task = tables.task
    lost = sa.case((live_states(tables)[Shown.LOST], 1), else_=0).label("lost")
    running = is_state(task.c.state, State.RUNNING)
    window = sa.select(task.c.queue, lost).where(running).limit(cap + 1).subquery()
    numbers = (sa.func.count(), sa.func.sum(window.c.lost))
    return sa.select(window.c.queue, *numbers).group_by(window.c.queue)


async def blocked(tx: Transaction, cap: int) -> dict[str, Count]:
    """Count the blocked tasks of each queue; the cap applies to all queues together."""
    rows = await tx.rows(_blocked_statement(tx.tables, cap))
    more = sum(row[1] for row in rows) > cap
    return {as_text(queue): Count(number, more) for queue, number in rows}


@lru_cache
def _blocked_statement(tables: Tables, cap: int) -> sa.Select[Any]:
    task = tables.task.c
    window = sa.select(task.queue).where(is_state(task.state, State.BLOCKED)).limit(cap + 1).subquery()
    return sa.select(window.c.queue, sa.func.count()).group_by(window.c.queue)


async def long_order_keys(tx: Transaction, least: int, cap: int) -> dict[str, Count]:
    """Count the waiting tasks of the order keys with most of them; a submit lets only one task of a key wait.

    Args:
        tx: an open transaction; one statement is executed.
        least: smallest number of tasks of a key to return.
        cap: maximum number of tasks to count, over all keys.
    """
    task = tx.tables.task.c
    waiting = is_state(task.state, State.WAITING) & task.order_key.is_not(None)
    window = sa.select(task.order_key).where(waiting).limit(cap).subquery()
    tasks = sa.func.count()
    longest = sa.select(window.c.order_key, tasks).group_by(window.c.order_key).having(tasks >= least)
    rows = await tx.rows(longest.order_by(tasks.desc(), window.c.order_key))
    return {as_text(key): Count(number, sum(row[1] for row in rows) >= cap) for key, number in rows}


async def dead(tx: Transaction, cap: int, most: int | None = None) -> dict[str, Count]:
    """Count the dead tasks of each queue, each up to the cap.

    The statement skips from queue to queue along the index `failed`; a DISTINCT would read the whole index.

    Args:
        tx: an open transaction; one statement is executed.
        cap: maximum number of tasks to count for each queue.
        most: maximum number of queues, by name; None for all.
    """
    rows = await tx.rows(_dead_statement(tx.tables, cap, most))
    return {as_text(queue): capped(number, cap) for queue, number in rows}


async def dead_queues(tx: Transaction, most: int) -> list[str]:
    """The first queues by name that have dead tasks; see `dead`.

    Args:
        tx: an open transaction; one statement is executed.
        most: maximum number of queues.
    """
    queue = _dead_heads(tx.tables).c.queue
    return [as_text(row[0]) for row in await tx.rows(sa.select(queue).where(queue.is_not(None)).limit(most))]


@lru_cache
def _dead_statement(tables: Tables, cap: int, most: int | None) -> sa.Select[Any]:
    heads = _dead_heads(tables)
    return _dead(tables, heads, cap).where(heads.c.queue.is_not(None)).limit(most)  # no sort: it ends the recursion


def _dead_heads(tables: Tables) -> sa.CTE:
    earliest, beyond = tables.history.alias("earliest"), tables.history.alias("beyond")
    head = sa.select(_first_queue(earliest, sa.true()).label("queue")).cte("head", recursive=True)
    step = _first_queue(beyond, beyond.c.queue > head.c.queue).correlate(head)
    return head.union_all(sa.select(step).where(head.c.queue.is_not(None)))


async def dead_of(tx: Transaction, names: Sequence[str], cap: int) -> dict[str, Count]:
    """Count the dead tasks of some queues, each up to the cap."""
    rows = sa.select(tx.dialect.rows("queue", QUEUE_COLUMNS)).cte("name")
    parameters = tx.dialect.parameters("queue", {"queue": list(names)})
    counts = await tx.rows(_dead(tx.tables, rows, cap), parameters)
    return {queue: capped(number, cap) for queue, number in counts}


def _dead(tables: Tables, queue: sa.CTE, cap: int) -> sa.Select[Any]:
    row = tables.history.alias("counted")
    is_dead = is_final_state(row.c.state, State.DEAD) & (row.c.queue == queue.c.queue)
    window = sa.select(row.c.id).where(is_dead).limit(cap + 1).correlate(queue).subquery()
    return sa.select(queue.c.queue, _size(window))


def _first_queue(history: Any, condition: Condition) -> sa.ScalarSelect[str]:
    queue = history.c.queue
    first = sa.select(queue).where(is_final_state(history.c.state, State.DEAD), condition).order_by(queue)
    return first.limit(sa.literal_column("1")).scalar_subquery()


RUNNING_CAP = 10_000
"""Maximum number of running tasks to read."""

UNKNOWN = "an unknown runner"


async def running_by_limit(tx: Transaction) -> dict[tuple[str, str, str, str], int]:
    """Count the running tasks by queue, handler, tenant, and their runner in words."""
    task, runner = tx.tables.task, tx.tables.runner
    names = (task.c.queue, task.c.handler, task.c.tenant, task.c.runner_id)
    window = sa.select(*names).where(is_state(task.c.state, State.RUNNING)).limit(RUNNING_CAP).subquery()
    groups = (*window.c, runner.c.host, runner.c.pid, runner.c.lease_until < db_now())
    joined = window.outerjoin(runner, runner.c.id == window.c.runner_id)
    rows = await tx.rows(sa.select(*groups, sa.func.count()).select_from(joined).group_by(*groups))
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for queue, handler, tenant, runner_id, host, pid, is_lost, count in rows:
        lost = ", lost" if is_lost or host is None else ""
        name = (
            f"runner {runner_id} (gone)" if host is None else runner_name(as_int(runner_id), as_text(host), as_int(pid))
        )
        holder = UNKNOWN if runner_id is None else f"{name}{lost}"
        counts[as_text(queue), as_text(handler), text(tenant) or "", holder] += count
    return counts
