"""capacity: reads the work, the slots and the limits from which runner.policy.capacity computes."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import by_column
from runner.db.schema import is_state
from runner.db.transaction import Transaction, clock
from runner.db.types import db_now, seconds_until
from runner.model.task import State
from runner.policy.capacity import MINUTE, CapacityRow, Demand, KeyPart, Pool, Situation, WorkKey, capacity_rows
from runner.policy.lanes import RUNNER_QUEUE, Lane
from runner.queries.counting import LANE_COLUMNS, Count, capped
from runner.queries.queues import uncounted
from runner.queries.registries import limit_usages, pauses
from runner.queries.reports import OTHERS, Flow, per_minute
from runner.queries.rows import as_text
from runner.queries.runners import RunnerRow, runners
from runner.queries.summary import GroupResult, mean_durations, results_by, totals
from runner.store.lanes import MANY, survey
from runner.text.formatting import age

if TYPE_CHECKING:
    from runner.policy.limits import LimitUsage

PERIOD = timedelta(minutes=10)
"""The default period of the rates."""

DURATIONS = timedelta(hours=1)
"""The shortest period of the mean durations."""

MOST_WORK_KEYS = 1_000
"""Maximum number of queues and their handlers that are listed for their results, those with the most ended tasks."""

OTHER_QUEUES = "(other queues)"
"""The name of the row of all others."""

MOST_COUNTED = 200_000
"""Maximum number of waiting tasks to count, over all lanes."""


MOST_TENANTS = 5
"""Maximum number of tenants to list for a limit, those with the oldest due tasks."""

MOST_VISITS = 10_000
"""Maximum number of index look-ups for the first due tasks of tenants at their limits."""

MOST_OF_TENANT = 10_000
"""Maximum number of due tasks to count of a tenant in a lane."""


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant that waits at its limit.

    Args:
        tenant: the tenant.
        running: its running tasks.
        backlog: its due tasks.
        oldest: seconds since the first of them became due.
        work: its backlog in minutes of one slot; None if no duration is known.
        most: maximum number of its running tasks.
    """

    tenant: str
    running: int
    backlog: Count
    oldest: float
    work: float | None
    most: int

    @property
    def drained_in(self) -> float | None:
        """Minutes until its backlog is done if no more of its tasks arrive; None if unknown."""
        return None if self.work is None else self.work / self.most

    @property
    def cells(self) -> list[str]:
        """The row for a table: tenant, running of its limit, due tasks, oldest, drained in."""
        drained = "unknown" if self.drained_in is None else age(MINUTE * self.drained_in)
        return [self.tenant, f"{self.running:,} of {self.most:,}", str(self.backlog), age(self.oldest), drained]


@dataclass(frozen=True, slots=True)
class TenantLimit:
    """The tenants that wait at the limit per tenant of a queue or a handler.

    Args:
        words: the queue or the handler.
        most: maximum number of running tasks of each.
        tenants: the number of tenants with due tasks that are at the limit.
        rows: the worst of them, the oldest due task first.
    """

    words: str
    most: int
    tenants: Count
    rows: tuple[TenantRow, ...]

    def __str__(self) -> str:
        more = f"; the {len(self.rows)} with the oldest tasks" if len(self.rows) < self.tenants.number else ""
        verb = "waits" if self.tenants == Count(1) else "wait"
        return f"{self.words}: {self.tenants.of('tenant')} {verb} at the limit of {self.most:,} running{more}"


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of all queues or handlers.

    Args:
        at: the database's time.
        minutes: the period of the rates.
        by: the grouping.
        rows: the rows; the last one to be drained comes first.
        tenants: the limits at which tenants wait.
    """

    at: datetime
    minutes: float
    by: KeyPart
    rows: tuple[CapacityRow, ...]
    tenants: tuple[TenantLimit, ...] = ()


async def capacity(tx: Transaction, by: KeyPart = "queue", period: timedelta = PERIOD) -> Capacity:
    """Compute the capacity of the live runners for each queue or handler.

    Args:
        tx: an open transaction; about twenty statements are executed, for any number of tasks.
        by: the grouping.
        period: the period of the rates of arrivals.
    """
    at = await clock(tx)
    minutes, situation, lanes = await read_situation(tx, at, period)
    rows = (row if row.name != OTHERS else replace(row, name=OTHER_QUEUES) for row in capacity_rows(situation, by))
    return Capacity(at, minutes, by, tuple(rows), await _tenant_limits(tx, situation, lanes))


async def read_situation(tx: Transaction, at: datetime, period: timedelta) -> tuple[float, Situation, list[Lane]]:
    """Read the minutes that the rates cover, the work, the slots and the limits, and the lanes with due tasks.

    Args:
        tx: an open transaction.
        at: the database's time.
        period: the period of the rates of arrivals.
    """
    since = (at - period).replace(second=0, microsecond=0)
    first = next(iter(await per_minute(tx, since, at)), None)
    minutes = max(1.0, (at - (first.minute if first else since)).total_seconds() / MINUTE)
    recent = {(each.queue, each.handler): each.flow for each in await totals(tx, since, at, most=MOST_WORK_KEYS)}
    # The latest durations count: in an outage, those of the hour before it would promise too much.
    longer = await mean_durations(tx, at - max(DURATIONS, period), at, MOST_WORK_KEYS)
    means = longer | await mean_durations(tx, since, at, MOST_WORK_KEYS)
    others = await _other_queues(tx, since, at, recent) if MOST_WORK_KEYS in (len(recent), len(longer)) else {}
    heads = [each for each in await survey(tx, most=MANY) if is_listed(as_text(each.lane.queue))]
    lanes = [each.lane for each in heads if each.wait <= 0]
    backlogs = await backlog(tx, lanes)
    oldest: dict[WorkKey, float] = defaultdict(float)
    for head in heads:
        work_key = as_text(head.lane.queue), as_text(head.lane.handler)
        oldest[work_key] = max(oldest[work_key], -head.wait)
    arrivals: dict[WorkKey, int] = defaultdict(int)
    for work_key, number in (await uncounted(tx, since, at)).work_keys.items():
        is_other = others and work_key not in recent and work_key not in backlogs
        arrivals[(OTHERS, work_key[1]) if is_other else work_key] += number
    flows = recent | {work_key: other.flow for work_key, other in others.items()}
    demands = {}
    for work_key in sorted(work_key for work_key in {*flows, *means, *arrivals, *backlogs} if is_listed(work_key[0])):
        flow, usual = flows.get(work_key, Flow()), others.get((OTHERS, work_key[1]))
        arrived = flow.submitted + arrivals.get(work_key, 0)
        ready = backlogs.get(work_key, Count(0, work_key[0] == OTHERS and len(heads) >= MANY))
        demands[work_key] = Demand(
            arrived / minutes,
            (arrived + flow.retried) / minutes,
            means.get(work_key, usual.times.runs.mean if usual else None),
            ready.number,
            oldest[work_key] if ready.number else 0.0,
            ready.more,
            (flow.finished + flow.retried) / minutes,
        )
    current = await pauses(tx)
    paused = {("queue", name) for name in current.queues} | {("handler", name) for name in current.handlers}
    pools = pools_of(await runners(tx), demands)
    return minutes, Situation(demands, pools, await limit_usages(tx), frozenset(paused)), lanes


async def _other_queues(
    tx: Transaction, since: datetime, at: datetime, listed: Mapping[WorkKey, Flow]
) -> dict[WorkKey, GroupResult]:
    """The counts of each handler in the queues that are not listed, and its times in all queues, as queue OTHERS."""
    totals: dict[str, Flow] = defaultdict(Flow)
    for (_, handler), flow in listed.items():
        totals[handler] += flow
    results = await results_by(tx, "handler", since, at, MOST_WORK_KEYS)
    return {(OTHERS, handler): GroupResult(flow - totals[handler], times) for handler, (flow, times) in results.items()}


def is_listed(queue: str) -> bool:
    """True unless the queue is that of a single runner."""
    return not queue.startswith(RUNNER_QUEUE)


def pools_of(runners: Iterable[RunnerRow], work_keys: Iterable[WorkKey]) -> list[Pool]:
    """The slots of the live runners that do not drain, together where they serve the same work keys."""
    work_keys = list(work_keys)
    keys_by_kind: dict[tuple[object, ...], frozenset[WorkKey]] = {}
    sizes: dict[frozenset[WorkKey], int] = defaultdict(int)
    for runner in runners:
        if not runner.alive or runner.draining:
            continue
        for kind, size in runner.sizes.items():
            key = (kind, runner.handlers, runner.queues, runner.threaded, runner.in_processes)
            if key not in keys_by_kind:
                keys_by_kind[key] = frozenset(
                    work_key
                    for work_key in work_keys
                    if runner.takes(*work_key) and runner.pool_of(work_key[1]) == kind
                )
            sizes[keys_by_kind[key]] += size
    return [Pool(total, each) for each, total in sizes.items() if total and each]


async def backlog(tx: Transaction, lanes: Sequence[Lane]) -> dict[WorkKey, Count]:
    """Count the due tasks of each work key."""
    counts: dict[WorkKey, Count] = defaultdict(Count)
    for lane, (number, more) in (await due_by_lane(tx, lanes)).items():
        before = counts[lane.queue, lane.handler]
        counts[lane.queue, lane.handler] = Count(before.number + number, before.more or more)
    return dict(counts)


async def due_by_lane(tx: Transaction, lanes: Sequence[Lane]) -> dict[Lane, Count]:
    """Count the due tasks of each lane, with one walk per lane along the index `ready`."""
    lanes = [lane for lane in lanes if isinstance(lane.queue, str) and isinstance(lane.handler, str)]
    if not lanes:
        return {}
    cap = max(100, MOST_COUNTED // len(lanes))
    lane, task = sa.select(tx.dialect.rows("lane", LANE_COLUMNS)).cte("lane"), tx.tables.task.alias("counted")
    same = sa.and_(*(task.c[name] == lane.c[name] for name in LANE_COLUMNS))
    due = sa.select(task.c.id).where(is_state(task.c.state, State.WAITING), task.c.run_at <= db_now(), same)
    walk = due.order_by(task.c.run_at, task.c.id).limit(cap + 1).correlate(lane)
    joined, _ = tx.dialect.for_each(lane, walk, tx.tables.task)
    columns = [lane.c[name] for name in LANE_COLUMNS]
    statement = sa.select(*columns, sa.func.count()).select_from(joined).group_by(*columns)
    rows = await tx.rows(statement, tx.dialect.parameters("lane", by_column(LANE_COLUMNS, lanes)))
    return {Lane(*row[:4]): capped(row[4], cap) for row in rows}


class TenantTurn(NamedTuple):
    """The turn of a tenant in a lane."""

    queue: str
    handler: str
    priority: int
    hosts: str
    tenant: str

    @property
    def work_key(self) -> WorkKey:
        """The queue and the handler."""
        return self.queue, self.handler


TURN_COLUMNS: dict[str, Any] = {**LANE_COLUMNS, "tenant": sa.Text}


async def _tenant_limits(tx: Transaction, situation: Situation, lanes: Sequence[Lane]) -> tuple[TenantLimit, ...]:
    """The limits per tenant at which tenants wait, and the worst of these tenants.

    Only a tenant with running tasks is at its limit, so the running tasks name them all: the cost does not grow with
    the number of tenants. One index look-up for each of them and each lane finds its first due task.
    """
    turns: list[tuple[LimitUsage, list[TenantTurn]]] = []
    visits, lanes = 0, [lane for lane in lanes if isinstance(lane.queue, str) and isinstance(lane.handler, str)]
    for usage in situation.limits:
        most, kind = usage.limits.per_tenant, int(usage.kind == "handler")
        full = [tenant for tenant, count in usage.running.items() if tenant and most is not None and count >= most]
        pairs = (TenantTurn(*lane, tenant) for tenant in full for lane in lanes if lane[kind] == usage.name)
        some = list(islice(pairs, MOST_VISITS - visits))
        visits += len(some)
        turns.append((usage, some))
    waits = await first_of_tenants(tx, {turn for _, some in turns for turn in some})
    worst: list[tuple[LimitUsage, int, dict[str, list[TenantTurn]]]] = []
    for usage, some in turns:
        by_tenant: dict[str, list[TenantTurn]] = defaultdict(list)
        for turn in sorted((turn for turn in some if turn in waits), key=lambda turn: -waits[turn]):
            by_tenant[turn.tenant].append(turn)
        if by_tenant:
            worst.append((usage, len(by_tenant), dict(islice(by_tenant.items(), MOST_TENANTS))))
    counts = await due_of_tenants(tx, {turn for *_, listed in worst for some in listed.values() for turn in some})
    result = []
    for usage, number, listed in worst:
        bound = usage.limits.per_tenant or 1
        rows = []
        for tenant, some in listed.items():
            mine = [
                (counts.get(turn, Count()), situation.demands.get(turn.work_key, Demand()).seconds) for turn in some
            ]
            backlog = Count(sum(count.number for count, _ in mine), any(count.more for count, _ in mine))
            seconds = [count.number * each for count, each in mine if each is not None]
            work = sum(seconds) / MINUTE if len(seconds) == len(mine) else None
            rows.append(TenantRow(tenant, usage.running[tenant], backlog, waits[some[0]], work, bound))
        result.append(TenantLimit(usage.words, bound, Count(number, visits >= MOST_VISITS), tuple(rows)))
    return tuple(result)


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
    rows = await tx.rows(statement, tx.dialect.parameters("turn", by_column(TURN_COLUMNS, turns)))
    return {TenantTurn(*row[:5]): max(0.0, -float(row[5])) for row in rows}


async def due_of_tenants(tx: Transaction, turns: Collection[TenantTurn]) -> dict[TenantTurn, Count]:
    """Count the due tasks of each tenant in each lane, with one walk for each; see `first_of_tenants`."""
    if not turns:
        return {}
    turn, due = _due_of(tx)
    joined, _ = tx.dialect.for_each(turn, due.limit(MOST_OF_TENANT + 1), tx.tables.task)
    statement = sa.select(*turn.c, sa.func.count()).select_from(joined).group_by(*turn.c)
    rows = await tx.rows(statement, tx.dialect.parameters("turn", by_column(TURN_COLUMNS, turns)))
    return {TenantTurn(*row[:5]): capped(row[5], MOST_OF_TENANT) for row in rows}


def _due_of(tx: Transaction) -> tuple[sa.CTE, sa.Select[Any]]:
    """The turns of a statement, and the due tasks of one of them in the order of the index `tenant`."""
    turn, row = sa.select(tx.dialect.rows("turn", TURN_COLUMNS)).cte("turn"), tx.tables.task.alias("due")
    task = row.c
    same = [task[name] == turn.c[name] for name in LANE_COLUMNS]
    # A range and an order by the tenant: the index `ready` has neither, so that no plan uses it.
    same += [task.tenant >= turn.c.tenant, task.tenant <= turn.c.tenant, task.tenant.is_not(None)]
    due = sa.select(task.id, task.run_at).where(is_state(task.state, State.WAITING), task.run_at <= db_now(), *same)
    return turn, due.order_by(task.tenant, task.run_at, task.id).correlate(turn)
