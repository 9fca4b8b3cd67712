"""Slow figures: of the overview, those that need room, the failure groups with their tasks, and hours of runners."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from math import log

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.filter.sort import Sort, SortField
from runner.model.task import State
from runner.policy.histogram import Histogram, Times, merged
from runner.queries.alerts.facts import SlowFacts
from runner.queries.alerts.reading import slow_facts
from runner.queries.alerts.thresholds import Thresholds
from runner.queries.audit import ChangeGroup, change_groups
from runner.queries.counting import Count
from runner.queries.deaths import dead_by_handler
from runner.queries.failures import (
    Failures,
    failures,
    trends,
)
from runner.queries.overview import Overview, read_overview
from runner.queries.reports import times_by_minute, usual_times
from runner.queries.schedules import ScheduleRow
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.search import TaskPage, page
from tasktui.session.cache import TtlCache

HOUR, RECENT = timedelta(hours=1), timedelta(minutes=10)

MOST_SLOW = 10
MOST_FAILURES = 6
MOST_CHANGES = 6
MOST_SCHEDULES = 6
"""Rows of the panels of a wide screen."""

LONGEST_FIRST = Sort(SortField.CLAIMED_AT, descending=False)

LOWEST_MS, HIGHEST_MS = 10, 60_000
"""The range of the heat map in milliseconds; its outer rows hold everything beyond."""


CHANGED = 1.5
"""The factor of a run time from which it is compared with the one before."""

NOTABLE = 0.1
"""Seconds of a run time from which a slowdown is a trouble."""


@dataclass(frozen=True, slots=True)
class Background:
    """Slow figures at one moment.

    Args:
        times: histograms of the attempts of the last hour by minute.
        p95: 95th percentile of each handler in the last hour, in seconds; only for a wide screen.
        failures: the largest failure groups of the last hour; None if a narrow screen has not read them.
        trends: attempts of each failure group over the last hour, by fingerprint.
        slowest: the running tasks that run longest; only for a wide screen.
        changes: the latest operations.
        facts: the figures of the alerts.
    """

    at: datetime
    times: Mapping[datetime, Times] = field(default_factory=dict)
    p95: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[Failures, ...] | None = None
    trends: Mapping[str, Sequence[int]] = field(default_factory=dict)
    slowest: tuple[TaskRow, ...] = ()
    changes: tuple[ChangeGroup, ...] = ()
    facts: SlowFacts = field(default_factory=SlowFacts)

    @property
    def schedules(self) -> Sequence[ScheduleRow]:
        """The next schedules."""
        return self.facts.schedules[:MOST_SCHEDULES]

    def percentile(self, q: float, since: datetime, until: datetime) -> float | None:
        """A percentile of the run times in seconds; None if no attempt ended in the period."""
        return merged(times.runs for at, times in self.times.items() if since <= at < until).percentile(q)

    @property
    def latest(self) -> tuple[float | None, float | None, float | None]:
        """The median and the 95th percentile of the last ten minutes, and the 95th of the fifty before."""
        begin = self.at - RECENT
        later = self.at + HOUR
        return (
            self.percentile(0.5, begin, later),
            self.percentile(0.95, begin, later),
            self.percentile(0.95, self.at - HOUR, begin),
        )

    @property
    def has_changed(self) -> bool:
        """True if the 95th percentile has become notably higher or lower."""
        _, p95, before = self.latest
        if p95 is None or before is None:
            return False
        return max(p95, before) > max(CHANGED * min(p95, before), min(p95, before) + NOTABLE)

    @property
    def is_slower(self) -> bool:
        """True if the 95th percentile has more than doubled, and is no longer a matter of milliseconds."""
        _, p95, before = self.latest
        return p95 is not None and before is not None and p95 > max(2 * before, NOTABLE)


async def read_background(tx: Transaction, *, wide: bool) -> Background:
    """Read the slow figures.

    Args:
        wide: also read the panels of a wide screen.
    """
    figures, panels = await tx.gather(_figures(tx), _panels(tx) if wide else _none())
    if panels is None:
        return figures
    (p95, groups, counts), slowest = panels
    return replace(
        figures, p95=p95, failures=tuple(groups), trends=counts if groups else {}, slowest=tuple(slowest.tasks)
    )


async def _figures(tx: Transaction) -> Background:
    (at, histograms), changes = await tx.gather(_times(tx), change_groups(tx, MOST_CHANGES))
    return Background(at, histograms, changes=tuple(changes))


async def _times(tx: Transaction) -> tuple[datetime, dict[datetime, Times]]:
    at = await clock(tx)
    return at, await times_by_minute(tx, at - HOUR)


async def read_present(
    tx: Transaction,
    last: Overview,
    thresholds: Thresholds,
    facts: TtlCache[SlowFacts],
    dead: TtlCache[dict[str, Count]],
    distance: float,
) -> tuple[Overview, SlowFacts]:
    """Read the overview after the first one, and the other figures of the alerts.

    Args:
        facts: the latest of those figures.
        dead: of them, the new dead tasks, which are compared with the present number of all dead ones.
        distance: seconds on the way to the server and back.
    """

    async def newly_dead() -> dict[str, Count]:
        return await dead_by_handler(tx, await clock(tx) - thresholds.span)

    now, slow, died = await tx.gather(
        read_overview(tx, last),
        facts.get(None, partial(slow_facts, tx, thresholds), distance),
        dead.get(None, newly_dead, distance),
    )
    return now, replace(slow, dead=died)


async def _none() -> None:
    """A step for panels without room."""


async def _panels(tx: Transaction) -> tuple[tuple[dict[str, float], list[Failures], dict[str, list[int]]], TaskPage]:
    running = Filter((Term("state", Operator.EQ, str(State.RUNNING)),))
    return await tx.gather(_failures(tx), page(tx, running, None, MOST_SLOW, LONGEST_FIRST))


async def _failures(tx: Transaction) -> tuple[dict[str, float], list[Failures], dict[str, list[int]]]:
    at = await clock(tx)
    return await tx.gather(
        usual_times(tx, at - HOUR, at + HOUR),
        failures(tx, since=at - HOUR, limit=MOST_FAILURES),
        trends(tx, at - HOUR, at),
    )


def heat_columns(times: Mapping[datetime, Times], at: datetime, columns: int, rows: int) -> list[list[float]]:
    """Distributions for a heat map: for each column the weight of each bucket, the lowest first.

    Args:
        times: histograms by minute.
        at: the end; the map shows the hour before it.
        rows: rows of the map; each has two buckets.
    """
    last = at.replace(second=0, microsecond=0)
    result = []
    for column in range(columns):
        ago = 59 - column * 60 // columns
        minute = times.get(last - timedelta(minutes=ago))
        result.append(_buckets(minute.runs if minute else Histogram(), 2 * rows))
    return result


def _buckets(times: Histogram, number: int) -> list[float]:
    """The times from 10 ms to one minute, on a logarithmic scale of a number of buckets."""
    weights = [0.0] * number
    for bound, each in times.bins.items():
        place = number * log(bound / LOWEST_MS) / log(HIGHEST_MS / LOWEST_MS)
        weights[min(max(int(place), 0), number - 1)] += each.number
    return weights
