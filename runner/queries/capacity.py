"""capacity: reads the work, the slots and the limits from which runner.policy.capacity computes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from math import ceil
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import by_column
from runner.db.schema import NO_BIN, is_state
from runner.db.transaction import Transaction, clock
from runner.db.types import db_now
from runner.errors import InvalidInput, InvalidSettings
from runner.model.task import State
from runner.policy.capacity import MINUTE, CapacityRow, Demand, Place, PlacePart, Pool, Situation, capacity_rows
from runner.policy.claim_order import STRICT, ClaimOrder
from runner.policy.fairness import known_order
from runner.policy.lanes import RUNNER_QUEUE, Lane
from runner.policy.limits import UNLIMITED, SharedLimits
from runner.policy.rate import Rate, checked
from runner.policy.simulation import Backlog, Configuration, TaskKind, Workload
from runner.queries.counting import LANE_COLUMNS, Count, capped
from runner.queries.queues import uncounted
from runner.queries.registries import limit_usages, pauses
from runner.queries.reports import OTHERS, Flow, per_minute
from runner.queries.rows import as_int, as_text, moment, text
from runner.queries.runners import RunnerRow, runners
from runner.queries.summary import GroupResult, mean_durations, results_by, totals
from runner.store.lanes import MANY, survey

PERIOD = timedelta(minutes=10)
"""The default period of the rates."""

DURATIONS = timedelta(hours=1)
"""The shortest period of the mean durations."""

MOST_PLACES = 1_000
"""Maximum number of queues and their handlers that are listed for their results, those with the most ended tasks."""

OTHER_QUEUES = "(other queues)"
"""The name of the row of all others."""

MOST_COUNTED = 200_000
"""Maximum number of waiting tasks to count, over all lanes."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of all queues or handlers.

    Args:
        at: the database's time.
        minutes: the period of the rates.
        by: the grouping.
        rows: the rows; the last one to be drained comes first.
    """

    at: datetime
    minutes: float
    by: PlacePart
    rows: tuple[CapacityRow, ...]


async def capacity(tx: Transaction, by: PlacePart = "queue", period: timedelta = PERIOD) -> Capacity:
    """Compute the capacity of the live runners for each queue or handler.

    Args:
        tx: an open transaction; about twenty statements are executed, for any number of tasks.
        by: the grouping.
        period: the period of the rates of arrivals.
    """
    at = await clock(tx)
    minutes, situation = await read_situation(tx, at, period)
    rows = (row if row.name != OTHERS else replace(row, name=OTHER_QUEUES) for row in capacity_rows(situation, by))
    return Capacity(at, minutes, by, tuple(rows))


async def read_situation(tx: Transaction, at: datetime, period: timedelta) -> tuple[float, Situation]:
    """Read the minutes that the rates cover, and the work, the slots and the limits.

    Args:
        tx: an open transaction.
        at: the database's time.
        period: the period of the rates of arrivals.
    """
    since = (at - period).replace(second=0, microsecond=0)
    first = next(iter(await per_minute(tx, since, at)), None)
    minutes = max(1.0, (at - (first.minute if first else since)).total_seconds() / MINUTE)
    recent = {(each.queue, each.handler): each.flow for each in await totals(tx, since, at, most=MOST_PLACES)}
    # The latest durations count: in an outage, those of the hour before it would promise too much.
    longer = await mean_durations(tx, at - max(DURATIONS, period), at, MOST_PLACES)
    means = longer | await mean_durations(tx, since, at, MOST_PLACES)
    others = await _other_queues(tx, since, at, recent) if MOST_PLACES in (len(recent), len(longer)) else {}
    heads = [each for each in await survey(tx, most=MANY) if _is_listed(as_text(each.lane.queue))]
    backlogs = await backlog(tx, [each.lane for each in heads if each.wait <= 0])
    oldest: dict[Place, float] = defaultdict(float)
    for head in heads:
        place = as_text(head.lane.queue), as_text(head.lane.handler)
        oldest[place] = max(oldest[place], -head.wait)
    arrivals: dict[Place, int] = defaultdict(int)
    for place, number in (await uncounted(tx, since, at)).places.items():
        arrivals[(OTHERS, place[1]) if others and place not in recent and place not in backlogs else place] += number
    flows = recent | {place: other.flow for place, other in others.items()}
    demands = {}
    for place in sorted(place for place in {*flows, *means, *arrivals, *backlogs} if _is_listed(place[0])):
        flow, usual = flows.get(place, Flow()), others.get((OTHERS, place[1]))
        arrived = flow.submitted + arrivals.get(place, 0)
        ready = backlogs.get(place, Count(0, place[0] == OTHERS and len(heads) >= MANY))
        demands[place] = Demand(
            arrived / minutes,
            (arrived + flow.retried) / minutes,
            means.get(place, usual.times.runs.mean if usual else None),
            ready.number,
            oldest[place] if ready.number else 0.0,
            ready.more,
            (flow.ended + flow.retried) / minutes,
        )
    current = await pauses(tx)
    paused = {("queue", name) for name in current.queues} | {("handler", name) for name in current.handlers}
    pools = pools_of(await runners(tx), demands)
    return minutes, Situation(demands, pools, await limit_usages(tx), frozenset(paused))


async def _other_queues(
    tx: Transaction, since: datetime, at: datetime, listed: Mapping[Place, Flow]
) -> dict[Place, GroupResult]:
    """The counts of each handler in the queues that are not listed, and its times in all queues, as queue OTHERS."""
    known: dict[str, Flow] = defaultdict(Flow)
    for (_, handler), flow in listed.items():
        known[handler] += flow
    results = await results_by(tx, "handler", since, at, MOST_PLACES)
    return {(OTHERS, handler): GroupResult(flow - known[handler], times) for handler, (flow, times) in results.items()}


def _is_listed(queue: str) -> bool:
    """True unless the queue is that of a single runner."""
    return not queue.startswith(RUNNER_QUEUE)


def pools_of(runners: Iterable[RunnerRow], places: Iterable[Place]) -> list[Pool]:
    """The slots of the live runners that do not drain, together where they serve the same places."""
    places = list(places)
    served: dict[tuple[object, ...], frozenset[Place]] = {}
    sizes: dict[frozenset[Place], int] = defaultdict(int)
    for runner in runners:
        if not runner.alive or runner.draining:
            continue
        for kind, size in runner.sizes.items():
            key = (kind, runner.handlers, runner.queues, runner.threaded, runner.in_processes)
            if key not in served:
                served[key] = frozenset(
                    place for place in places if runner.takes(*place) and runner.pool_of(place[1]) == kind
                )
            sizes[served[key]] += size
    return [Pool(total, each) for each, total in sizes.items() if total and each]


async def backlog(tx: Transaction, lanes: Sequence[Lane]) -> dict[Place, Count]:
    """Count the due tasks of each place."""
    counts: dict[Place, Count] = defaultdict(Count)
    for lane, (number, more) in (await _due(tx, lanes)).items():
        before = counts[lane.queue, lane.handler]
        counts[lane.queue, lane.handler] = Count(before.number + number, before.more or more)
    return dict(counts)


async def _due(tx: Transaction, lanes: Sequence[Lane]) -> dict[Lane, Count]:
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


MOST_SAMPLED = 2_000
"""Finished tasks to read for the priorities and tenants of tasks."""


class Present(NamedTuple):
    """The work of the last hours, and the present configuration.

    Args:
        at: the database's time.
        workload: the arrivals and durations of the last hours, and the due tasks.
        configuration: the present configuration.
        runners: the live runners that do not drain.
    """

    at: datetime
    workload: Workload
    configuration: Configuration
    runners: int


async def present(tx: Transaction, hours: float) -> Present:
    """Read the work of the last hours and the present configuration, for a simulation.

    Args:
        tx: an open transaction; about twenty statements are executed.
        hours: the length of the simulation.
    """
    at = await clock(tx)
    since = (at - timedelta(hours=hours)).replace(second=0, microsecond=0)
    minutes = max(1, ceil((at - since).total_seconds() / MINUTE))
    past = await totals(tx, since, at)
    durations = {(each.queue, each.handler): each.durations for each in past if each.durations.number}
    arrivals = await _arrivals(tx, since, minutes)
    heads = [each for each in await survey(tx, most=MANY) if each.wait <= 0 and _is_listed(as_text(each.lane.queue))]
    due = await _due(tx, [each.lane for each in heads])
    backlogs = {each.lane: Backlog(due[each.lane].number, -each.wait) for each in heads if each.lane in due}
    places = {*durations, *((lane.queue, lane.handler) for lane in backlogs), *(place for _, place in arrivals)}
    live = [each for each in await runners(tx) if each.alive and not each.draining]
    current = await pauses(tx)
    paused = {("queue", name) for name in current.queues} | {("handler", name) for name in current.handlers}
    usages = await limit_usages(tx)
    limits = {(usage.kind, usage.name): usage.limits for usage in usages}
    paused |= {(usage.kind, usage.name) for usage in usages if usage.breaker is not None}
    configuration = Configuration(_order(live), pools_of(live, sorted(places)), limits, frozenset(paused))
    workload = Workload(minutes, arrivals, backlogs, durations, await _kinds(tx))
    return Present(at, workload, configuration, len(live))


def _order(live: Sequence[RunnerRow]) -> ClaimOrder:
    """The order of the first runner. A class of its own is unknown here, and counts as strict."""
    try:
        return (known_order(live[0].claim_order) if live else None) or STRICT
    except InvalidSettings:
        return STRICT


async def _arrivals(tx: Transaction, since: datetime, minutes: int) -> dict[tuple[int, Place], int]:
    """The submitted tasks by minute and place."""
    column = tx.tables.minute.c
    groups = (column.minute, column.queue, column.handler)
    counts = sa.select(*groups, sa.func.sum(column.submitted)).group_by(*groups)
    rows = await tx.rows(counts.where(column.minute >= since, column.bin_ms == sa.literal_column(str(NO_BIN))))
    arrivals = {}
    for minute, queue, handler, number in rows:
        start = moment(minute)
        if start is not None and number > 0 and _is_listed(as_text(queue)):
            index = int((start - since).total_seconds() // MINUTE)
            if 0 <= index < minutes:
                arrivals[index, (as_text(queue), as_text(handler))] = int(number)
    return arrivals


async def _kinds(tx: Transaction) -> dict[Place, list[TaskKind]]:
    """The priorities and tenants of the tasks that finished last."""
    past = tx.tables.history.c
    columns = (past.queue, past.handler, past.priority, past.tenant)
    newest = sa.select(*columns).where(past.finished_at.is_not(None))
    sample = newest.order_by(past.finished_at.desc(), past.id.desc()).limit(MOST_SAMPLED).subquery()
    kinds: dict[Place, list[TaskKind]] = defaultdict(list)
    rows = await tx.rows(sa.select(*sample.c, sa.func.count()).group_by(*sample.c))
    for queue, handler, priority, tenant, number in sorted(rows, key=lambda row: tuple(map(str, row))):
        kinds[as_text(queue), as_text(handler)].append(TaskKind(as_int(priority), text(tenant), number))
    return dict(kinds)


class LimitChange(NamedTuple):
    """A limit of a simulated configuration.

    Args:
        key: the queue or the handler.
        limits: the changed fields of its limits.
    """

    key: tuple[str, str]
    limits: Mapping[str, Any]


def read_changes(option: str, texts: Sequence[str] | None) -> list[LimitChange]:
    """Parse limits such as queue:mail=5, queue:mail=100/min or handler:sms.send=none.

    Args:
        option: limit, rate or per-tenant.
        texts: the limits.

    Raises:
        InvalidInput: a text has another form.
        InvalidEdit: a value is not valid.
    """
    changes = []
    for each in texts or ():
        target, sign, value = each.rpartition("=")
        kind, colon, name = target.partition(":")
        if not (sign and colon and name) or kind not in ("queue", "handler"):
            raise InvalidInput(
                why=f"--{option} {each!r}: expected a queue or a handler and its limit, as in queue:mail=5"
            )
        number: Any = None
        if value != "none" and option == "rate":
            number = Rate.parse(value)
        elif value != "none":
            number = checked(option, int(value[:20]) if value.isdecimal() else 0)
        field = dict(zip(("limit", "per-tenant", "rate"), SharedLimits._fields, strict=True))[option]
        changes.append(LimitChange((kind, name), {field: number}))
    return changes


def changed(
    today: Present,
    order: ClaimOrder | None,
    concurrency: int | None,
    number_of_runners: int | None,
    changes: Sequence[LimitChange],
) -> Configuration:
    """Return another configuration to simulate.

    Args:
        today: the present one.
        order: the claim order; None for the present one.
        concurrency: the slots of all runners together; None for the present number.
        number_of_runners: the number of runners, each like the present ones on average; None for the present number.
        changes: the limits that differ.
    """
    setup, pools = today.configuration, list(today.configuration.pools)
    total = sum(pool.size for pool in pools)
    size = concurrency
    if number_of_runners is not None and today.runners:
        size = max(1, round(total * number_of_runners / today.runners))
    if size is not None and not pools:
        # Without a live runner, any runner is assumed to have all handlers.
        lanes = [(lane.queue, lane.handler) for lane in today.workload.backlogs]
        places = frozenset([*lanes, *(place for _, place in today.workload.arrivals)])
        pools = [Pool(size, places)]
    elif size is not None:
        # In proportion, so that threads and slots keep their ratio; rounding leaves the sum as it is.
        ends = [round(size * end / total) for end in accumulate(pool.size for pool in pools)]
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        pools = [pool._replace(size=new) for pool, new in zip(pools, sizes, strict=True)]
    limits = dict(setup.limits)
    for key, values in changes:
        limits[key] = limits.get(key, UNLIMITED)._replace(**values)
    return Configuration(order or setup.order, pools, limits, setup.paused)
