"""The figures of the screen Runners."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import State
from runner.policy.histogram import Times
from runner.queries.overview import MINUTE, per_minute
from runner.queries.reports import (
    Flow,
    MinuteFlow,
    per_step,
    results_by_runner,
    running_since,
    times_by_minute,
    usual_times,
)
from runner.queries.runners import RunnerRow, busy_slots
from runner.queries.runners import runners as read_runners
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.search import page
from runner.text.times import EARLIEST
from tasktui.data.background import HOUR, LONGEST_FIRST, RECENT

MOST_PLOTTED = 40
"""Maximum number of runners whose last hour is read."""


class RunnerHours(NamedTuple):
    """The last hour of runners.

    Args:
        done: finished tasks in each full minute, by runner; empty if not requested.
        busy: busy slots of all runners in each minute, the mean; empty if not requested.
    """

    at: datetime
    done: Mapping[int, Sequence[float]]
    busy: Sequence[float]


async def runner_hours(tx: Transaction, runners: Sequence[int], *, busy: bool) -> RunnerHours:
    """Read the last hour of runners.

    Args:
        runners: ids of the runners, of which the first MOST_PLOTTED are read.
        busy: also read the busy slots.
    """
    at = await clock(tx)
    if not runners and not busy:
        return RunnerHours(at, {}, ())
    begin, end = at.replace(second=0, microsecond=0) - HOUR, at.replace(second=0, microsecond=0)
    flows = per_step(tx, "runner_id", runners[:MOST_PLOTTED], begin, end, 1)
    if not busy:
        return RunnerHours(at, _done(await flows, end), ())
    flows_by_runner, finished, running = await tx.gather(flows, times_by_minute(tx, begin), running_since(tx))
    return RunnerHours(at, _done(flows_by_runner, end), busy_per_minute(finished, running, begin))


def _done(flows: Mapping[str, Sequence[MinuteFlow]], end: datetime) -> dict[int, list[float]]:
    return {int(id): per_minute(minutes, end - MINUTE, lambda flow: flow.finished) for id, minutes in flows.items()}


NO_HOURS = RunnerHours(EARLIEST, {}, ())


MOST_TASKS = 50
"""Maximum number of tasks of a runner."""


@dataclass(frozen=True, slots=True)
class Workforce:
    """The runners at one moment.

    Args:
        tasks: the tasks of the runner under the cursor, longest running first.
        slots: running tasks of each runner by handler.
        flows: results of the last ten minutes by runner and handler.
        p95: 95th percentile of the run time of each handler in the last hour, in seconds.
        hours: the last hour of the runners, as far as the screen has room for it.
    """

    at: datetime
    runners: tuple[RunnerRow, ...]
    tasks: tuple[TaskRow, ...]
    slots: Mapping[int, Mapping[str, int]]
    flows: Mapping[int, Mapping[str, Flow]]
    p95: Mapping[str, float]
    hours: RunnerHours = NO_HOURS

    def result(self, runner_id: int) -> Flow:
        """The results of a runner in the last ten minutes."""
        return sum(self.flows.get(runner_id, {}).values(), Flow())


async def workforce(tx: Transaction, runner_id: int | None) -> Workforce:
    """Read the runners, and the tasks of one; None for the first."""
    at = await clock(tx)
    (runners, tasks), flows, slots = await tx.gather(
        _with_tasks(tx, runner_id), results_by_runner(tx, at - RECENT), busy_slots(tx)
    )
    return Workforce(at, tuple(runners), tuple(tasks), slots, flows, {})


async def _with_tasks(tx: Transaction, runner_id: int | None) -> tuple[list[RunnerRow], list[TaskRow]]:
    if runner_id is not None:
        return await tx.gather(tx.once(read_runners), _claimed_tasks(tx, runner_id))
    runners = await tx.once(read_runners)
    return runners, await _claimed_tasks(tx, runners[0].id) if runners else []


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
