"""Slow figures: of the overview, those that need room, and the failure groups with their tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import log
from typing import NamedTuple

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator, Sort, SortField
from runner.filter.parse import Filter, Term
from runner.model.task import State
from runner.policy.histogram import Histogram, Times, merged
from runner.queries.audit import ChangeGroup, change_groups
from runner.queries.failures import (
    Failures,
    GroupTasks,
    Shares,
    deploys,
    failures,
    group_tasks,
    shares,
    trends,
)
from runner.queries.registries import BreakerRow, Pause, breakers, pauses
from runner.queries.reports import Flow, MinuteFlow, results_by_runner, times_by_minute, usual_times
from runner.queries.reports import per_minute as read_per_minute
from runner.queries.schedules import ScheduleRow, schedules
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.search import page

HOUR, RECENT = timedelta(hours=1), timedelta(minutes=10)

MOST_SLOW = 10
MOST_FAILURES = 6
MOST_CHANGES = 6
MOST_SCHEDULES = 6
"""Rows of the panels of a wide screen."""

LONGEST_FIRST = Sort(SortField.CLAIMED_AT, descending=False)

LOWEST_MS, HIGHEST_MS = 10, 60_000
"""The range of the heat map in milliseconds; its outer rows hold everything beyond."""


@dataclass(frozen=True, slots=True)
class Background:
    """Slow figures at one moment.

    Args:
        at: the database's time.
        times: histograms of the attempts of the last hour by minute.
        results: results of the last ten minutes by runner.
        p95: 95th percentile of each handler in the last hour, in seconds.
        failures: the largest failure groups of the last hour; only for a wide screen, as the rest.
        trends: attempts of each failure group over the last hour, by fingerprint.
        slowest: the running tasks that run longest.
        changes: the latest operations.
        schedules: the next schedules.
    """

    at: datetime
    times: Mapping[datetime, Times] = field(default_factory=dict)
    results: Mapping[int, Flow] = field(default_factory=dict)
    p95: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[Failures, ...] = ()
    trends: Mapping[str, Sequence[int]] = field(default_factory=dict)
    slowest: tuple[TaskRow, ...] = ()
    changes: tuple[ChangeGroup, ...] = ()
    schedules: tuple[ScheduleRow, ...] = ()

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


async def read_background(tx: Transaction, *, wide: bool) -> Background:
    """Read the slow figures.

    Args:
        tx: an open transaction.
        wide: also read the panels of a wide screen.
    """
    at = await clock(tx)
    histograms = await times_by_minute(tx, at - HOUR)
    results = await results_by_runner(tx, at - RECENT)
    if not wide:
        return Background(at, histograms, results)
    p95 = await usual_times(tx, at - HOUR, at + HOUR)
    running = Filter((Term("state", Operator.EQ, str(State.RUNNING)),))
    slowest = (await page(tx, running, None, MOST_SLOW, LONGEST_FIRST)).tasks
    groups = await failures(tx, since=at - HOUR, limit=MOST_FAILURES)
    changes = await change_groups(tx, MOST_CHANGES)
    planned = await schedules(tx, limit=MOST_SCHEDULES)
    return Background(
        at,
        histograms,
        results,
        p95,
        tuple(groups),
        await trends(tx, at - HOUR, at) if groups else {},
        tuple(slowest),
        tuple(changes),
        tuple(planned),
    )


def heat_columns(times: Mapping[datetime, Times], at: datetime, columns: int, rows: int) -> list[list[float]]:
    """Distributions for a heat map: for each column the weight of each bucket, the lowest first.

    Args:
        times: histograms by minute.
        at: the end; the map shows the hour before it.
        columns: columns of the map.
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


SPANS = (timedelta(hours=1), timedelta(days=1), timedelta(days=7), timedelta(days=30))
"""The spans of the failure groups."""

LONGEST_BY_MINUTE = timedelta(days=1)
"""The longest span whose plot reads the counts per minute."""

MOST_LATEST = 20
"""Latest tasks of a failure group."""


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """The failure groups at one moment.

    Args:
        at: the database's time.
        since: the begin of the span.
        groups: the groups, largest first.
        trends: attempts of each group over the span.
        flows: counts per minute over the span; empty for a longer one than LONGEST_BY_MINUTE.
        versions: when the first runner of each version started, the oldest version first.
        paused: pauses of queues.
        breakers: the open breakers.
    """

    at: datetime
    since: datetime
    groups: tuple[Failures, ...]
    trends: Mapping[str, Sequence[int]]
    flows: tuple[MinuteFlow, ...]
    versions: Mapping[str, datetime]
    paused: Mapping[str, Pause]
    breakers: Sequence[BreakerRow]


class GroupDetail(NamedTuple):
    """The attempts of a failure group by place, and its tasks as they are now."""

    shares: Shares
    tasks: GroupTasks


async def failure_groups(tx: Transaction, span: timedelta) -> FailureGroups:
    """Read the failure groups of a span that ends now."""
    at = await clock(tx)
    since = at - span
    groups = tuple(await failures(tx, since=since))
    flows = tuple(await read_per_minute(tx, since, at + HOUR)) if span <= LONGEST_BY_MINUTE else ()
    counts = await trends(tx, since, at) if groups else {}
    paused, opened = (await pauses(tx)).queues, await breakers(tx, only_open=True)
    return FailureGroups(at, since, groups, counts, flows, await deploys(tx), paused, opened)


async def group_detail(tx: Transaction, fingerprint: str, since: datetime) -> GroupDetail:
    """Read the shares and the tasks of a failure group."""
    tasks = await group_tasks(tx, fingerprint, since, MOST_LATEST)
    return GroupDetail(await shares(tx, fingerprint, since), tasks)
