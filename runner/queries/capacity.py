"""capacity: reads the work, the slots and the limits from which runner.policy.capacity computes."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf

import sqlalchemy as sa

from runner.db.dialects import by_column
from runner.db.schema import is_state
from runner.db.transaction import Transaction, clock
from runner.db.types import db_now
from runner.model.task import State
from runner.policy.capacity import MINUTE, CapacityRow, Demand, Place, PlacePart, Pool, Situation, capacity_rows
from runner.policy.lanes import RUNNER_QUEUE, Lane
from runner.queries.counting import LANE_COLUMNS, Count
from runner.queries.limits import limit_usages
from runner.queries.pauses import pauses
from runner.queries.queues import uncounted
from runner.queries.reports import Flow, per_minute, totals
from runner.queries.rows import as_text
from runner.queries.runners import RunnerRow, runners
from runner.store.lanes import MANY, survey
from runner.text.formatting import age

PERIOD = timedelta(minutes=10)
"""The default period of the rates."""

DURATIONS = timedelta(hours=1)
"""The shortest period of the mean durations."""

MOST_USED = 9.99
"""The highest share that is shown as a number."""

MOST_COUNTED = 200_000
"""Maximum number of waiting tasks to count, over all lanes."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of all queues or handlers.

    Args:
        at: the database's time.
        minutes: the period of the rates.
        by: the grouping.
        rows: the rows, those that are drained last first.
    """

    at: datetime
    minutes: float
    by: PlacePart
    rows: tuple[CapacityRow, ...]


async def capacity(tx: Transaction, by: PlacePart = "queue", period: timedelta = PERIOD) -> Capacity:
    """Compute what the live runners can do for each queue or handler.

    Args:
        tx: an open transaction; about twenty statements are executed, whatever the number of tasks.
        by: the grouping.
        period: the period of the rates of arrivals.
    """
    at = await clock(tx)
    minutes, situation = await read_situation(tx, at, period)
    return Capacity(at, minutes, by, tuple(capacity_rows(situation, by)))


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
    recent = {(each.queue, each.handler): each.flow for each in await totals(tx, since, at)}
    longer = await totals(tx, at - max(DURATIONS, period), at)
    means = {(each.queue, each.handler): each.durations.mean for each in longer}
    waiting = await uncounted(tx, since, at)
    heads = [each for each in await survey(tx, most=MANY) if _is_listed(as_text(each.lane.queue))]
    backlogs = await backlog(tx, [each.lane for each in heads if each.wait <= 0])
    oldest: dict[Place, float] = defaultdict(float)
    for head in heads:
        place = as_text(head.lane.queue), as_text(head.lane.handler)
        oldest[place] = max(oldest[place], -head.wait)
    demands = {}
    for place in sorted(place for place in {*recent, *means, *waiting.places, *backlogs} if _is_listed(place[0])):
        flow = recent.get(place, Flow())
        arrived = flow.submitted + waiting.places.get(place, 0)
        ready = backlogs.get(place, Count())
        demands[place] = Demand(
            arrived / minutes,
            (arrived + flow.retried) / minutes,
            means.get(place),
            ready.number,
            oldest[place] if ready.number else 0.0,
            ready.more,
        )
    current = await pauses(tx)
    paused = {("queue", name) for name in current.queues} | {("handler", name) for name in current.handlers}
    pools = pools_of(await runners(tx), demands)
    return minutes, Situation(demands, pools, await limit_usages(tx), frozenset(paused))


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
    """Count the due tasks of each place, with one walk per lane along the index `ready`."""
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
    counts: dict[Place, Count] = defaultdict(Count)
    values = tx.dialect.parameters("lane", by_column(LANE_COLUMNS, lanes))
    for queue, handler, _, number in await tx.rows(statement, values):
        before = counts[queue, handler]
        counts[queue, handler] = Count(before.number + min(number, cap), before.more or number > cap)
    return dict(counts)


def capacity_cells(row: CapacityRow) -> list[str]:
    """The row for a table: name, arrivals, capacity, share, due tasks, oldest, work, drained in, bound."""
    demand, used = row.demand, row.utilisation
    work = row.behind
    return [
        row.name,
        _rate(demand.arrivals),
        _rate(row.per_minute),
        "-" if used is None else "over" if used > MOST_USED else f"{used:.0%}",
        str(Count(demand.backlog, demand.more)),
        age(demand.oldest) if demand.backlog else "-",
        "-" if not work or work == inf else age(MINUTE * work),
        "never" if row.drained_in == inf else drained_in(row),
        row.deciding.bound.name if row.per_minute is not None else "unknown: no attempt ended",
    ]


def drained_in(row: CapacityRow) -> str:
    """The time until the backlog is done, in words: 18m, or "not at this rate: +120 a minute"."""
    if row.drained_in is None:
        return "unknown"
    if not row.demand.backlog:
        return "-"
    if row.drained_in < inf:
        return age(MINUTE * row.drained_in)
    growth = -(row.deciding.surplus or 0.0)
    return f"not at this rate: +{growth:,.0f} a minute" if growth >= 1 else "not at this rate"


def _rate(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"  # noqa: PLR2004 - two digits
