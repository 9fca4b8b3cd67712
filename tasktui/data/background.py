"""Slow figures: of the overview, those that need room, the failure groups with their tasks, and hours of runners."""

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
from runner.queries.reports import (
    Flow,
    MinuteFlow,
    per_step,
    results_by_runner,
    running_since,
    times_by_minute,
    usual_times,
)
from runner.queries.reports import per_minute as read_per_minute
from runner.queries.runners import RunnerRow, busy_slots
from runner.queries.runners import runners as read_runners
from runner.queries.schedules import ScheduleRow, schedules
from runner.queries.task.parents import StuckTasks, stuck_tasks
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.search import page
from runner.text.times import EARLIEST
from tasktui.data.alerts import Alert
from tasktui.data.overview import MINUTE, per_minute

HOUR, RECENT = timedelta(hours=1), timedelta(minutes=10)

MOST_SLOW = 10
MOST_FAILURES = 6
MOST_CHANGES = 6
MOST_SCHEDULES = 6
"""Rows of the panels of a wide screen."""

LONGEST_FIRST = Sort(SortField.CLAIMED_AT, descending=False)

LOWEST_MS, HIGHEST_MS = 10, 60_000
"""The range of the heat map in milliseconds; its outer rows hold everything beyond."""


NOTABLE = 0.1
"""Seconds of a run time from which a slowdown is a trouble."""


@dataclass(frozen=True, slots=True)
class Background:
    """Slow figures at one moment.

    Args:
        at: the database's time.
        times: histograms of the attempts of the last hour by minute.
        results: results of the last ten minutes by runner and handler.
        p95: 95th percentile of each handler in the last hour, in seconds.
        failures: the largest failure groups of the last hour; only for a wide screen, as the rest.
        trends: attempts of each failure group over the last hour, by fingerprint.
        slowest: the running tasks that run longest.
        changes: the latest operations.
        schedules: the next schedules.
        stuck: the blocked tasks that wait for a dead or cancelled task; None without any.
    """

    at: datetime
    times: Mapping[datetime, Times] = field(default_factory=dict)
    results: Mapping[int, Mapping[str, Flow]] = field(default_factory=dict)
    p95: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[Failures, ...] = ()
    trends: Mapping[str, Sequence[int]] = field(default_factory=dict)
    slowest: tuple[TaskRow, ...] = ()
    changes: tuple[ChangeGroup, ...] = ()
    schedules: tuple[ScheduleRow, ...] = ()
    stuck: StuckTasks | None = None

    def percentile(self, q: float, since: datetime, until: datetime) -> float | None:
        """A percentile of the run times in seconds; None if no attempt ended in the period."""
        return merged(times.runs for at, times in self.times.items() if since <= at < until).percentile(q)

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """The alert of the blocked tasks that only an operator frees, if there are any."""
        if self.stuck is None:
            return ()
        text = f"{self.stuck.task} waits for {self.stuck.parent}; R retries, U unblocks"
        return (Alert("retrying", f"{self.stuck.number.of('task')} blocked by failed tasks", text, "2", "tasks"),)

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
    def is_slower(self) -> bool:
        """True if the 95th percentile has more than doubled, and is no longer a matter of milliseconds."""
        _, p95, before = self.latest
        return p95 is not None and before is not None and p95 > max(2 * before, NOTABLE)


async def read_background(tx: Transaction, *, wide: bool) -> Background:
    """Read the slow figures.

    Args:
        tx: an open transaction.
        wide: also read the panels of a wide screen.
    """
    at = await clock(tx)
    histograms = await times_by_minute(tx, at - HOUR)
    results = await results_by_runner(tx, at - RECENT)
    stuck = await stuck_tasks(tx)
    if not wide:
        return Background(at, histograms, results, stuck=stuck)
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
        stuck,
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


MOST_PLOTTED = 40
"""Maximum number of runners whose last hour is read."""


class RunnerHours(NamedTuple):
    """The last hour of runners.

    Args:
        at: the database's time.
        done: finished tasks in each full minute, by runner; empty if not requested.
        busy: busy slots of all runners in each minute, the mean; empty if not requested.
    """

    at: datetime
    done: Mapping[int, Sequence[float]]
    busy: Sequence[float]


async def runner_hours(tx: Transaction, runners: Sequence[int], *, busy: bool) -> RunnerHours:
    """Read the last hour of runners.

    Args:
        tx: an open transaction.
        runners: ids of the runners, of which the first MOST_PLOTTED are read.
        busy: also read the busy slots.
    """
    at = await clock(tx)
    begin, end = at.replace(second=0, microsecond=0) - HOUR, at.replace(second=0, microsecond=0)
    flows = await per_step(tx, "runner_id", runners[:MOST_PLOTTED], begin, end, 1) if runners else {}
    done = {int(id): per_minute(minutes, end - MINUTE, lambda flow: flow.finished) for id, minutes in flows.items()}
    if not busy:
        return RunnerHours(at, done, ())
    finished = await times_by_minute(tx, begin)
    return RunnerHours(at, done, busy_per_minute(finished, await running_since(tx), begin))


NO_HOURS = RunnerHours(EARLIEST, {}, ())

MOST_TASKS = 50
"""Maximum number of tasks of a runner."""


@dataclass(frozen=True, slots=True)
class Workforce:
    """The runners at one moment.

    Args:
        at: the database's time.
        runners: all registered runners.
        tasks: the tasks of the runner under the cursor, longest running first.
        slots: running tasks of each runner by handler.
        results: results of the last ten minutes by runner.
        p95: 95th percentile of the run time of each handler in the last hour, in seconds.
        hours: the last hour of the runners, as far as the screen has room for it.
    """

    at: datetime
    runners: tuple[RunnerRow, ...]
    tasks: tuple[TaskRow, ...]
    slots: Mapping[int, Mapping[str, int]]
    results: Mapping[int, Flow]
    p95: Mapping[str, float]
    hours: RunnerHours = NO_HOURS


async def workforce(tx: Transaction, runner_id: int | None) -> Workforce:
    """Read the runners, and the tasks of one; None for the first."""
    runners = tuple(await read_runners(tx))
    runner_id = runners[0].id if runner_id is None and runners else runner_id
    tasks = await _claimed_tasks(tx, runner_id) if runner_id is not None else []
    at = await clock(tx)
    handlers = await results_by_runner(tx, at - RECENT)
    results = {runner_id: sum(flows.values(), Flow()) for runner_id, flows in handlers.items()}
    return Workforce(at, runners, tuple(tasks), await busy_slots(tx), results, {})


async def usual_run_times(tx: Transaction) -> dict[str, float]:
    """The 95th percentile of the run time of each handler in the last hour, in seconds."""
    at = await clock(tx)
    return await usual_times(tx, at - HOUR, at + MINUTE)


async def _claimed_tasks(tx: Transaction, runner_id: int) -> list[TaskRow]:
    running = Filter((Term("runner", Operator.EQ, runner_id), Term("state", Operator.EQ, str(State.RUNNING))))
    return (await page(tx, running, None, MOST_TASKS, LONGEST_FIRST)).tasks


def busy_per_minute(
    finished: Mapping[datetime, Times], running: Mapping[datetime, int], begin: datetime
) -> list[float]:
    """Busy slots in each minute of an hour, the mean: the length of all attempts by the minutes in which they ran.

    Args:
        finished: histograms of the attempts that ended, by minute.
        running: attempts that still run, by the minute of their start.
        begin: the first minute.
    """
    spans = [((at - begin) / MINUTE, 60.0, number) for at, number in running.items()]
    for at, times in finished.items():
        end = (at - begin) / MINUTE + 0.5
        spans += [(end - each.seconds / each.number / 60, end, each.number) for each in times.runs.bins.values()]
    busy = [0.0] * 60
    for first, last, number in spans:
        for minute in range(max(0, int(first)), min(60, int(last) + 1)):
            busy[minute] += number * max(0.0, min(last, minute + 1) - max(first, minute))
    return busy
