"""capacity: reads the work, the slots and the limits from which runner.policy.capacity computes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import sqlalchemy as sa

from runner.db.dialects import by_column
from runner.db.schema import is_state
from runner.db.transaction import Transaction, clock
from runner.db.types import db_now
from runner.model.task import State
from runner.policy.capacity import MINUTE, CapacityRow, Demand, Place, PlacePart, Pool, Situation, capacity_rows
from runner.policy.lanes import RUNNER_QUEUE, Lane
from runner.queries.counting import LANE_COLUMNS, Count, capped
from runner.queries.queues import uncounted
from runner.queries.registries import limit_usages, pauses
from runner.queries.reports import OTHERS, Flow, per_minute
from runner.queries.rows import as_text
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
    heads = [each for each in await survey(tx, most=MANY) if is_listed(as_text(each.lane.queue))]
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
    for place in sorted(place for place in {*flows, *means, *arrivals, *backlogs} if is_listed(place[0])):
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


def is_listed(queue: str) -> bool:
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
