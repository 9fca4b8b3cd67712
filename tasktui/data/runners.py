"""The figures of the screen Runners."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeVar

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.shard import ShardId
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
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session

T = TypeVar("T")

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
        silent: the error of each shard without an answer.
    """

    at: datetime
    runners: tuple[RunnerRow, ...]
    tasks: tuple[TaskRow, ...]
    slots: Mapping[int, Mapping[str, int]]
    flows: Mapping[int, Mapping[str, Flow]]
    p95: Mapping[str, float]
    hours: RunnerHours = NO_HOURS
    silent: Mapping[str, str] = field(default_factory=dict)

    def result(self, runner_id: int) -> Flow:
        """The results of a runner in the last ten minutes."""
        return sum(self.flows.get(runner_id, {}).values(), Flow())


NO_RUNNER = 0
"""The id of no runner."""

HOURS_EVERY = 30.0
"""Seconds to cache the last hour, and the usual run times."""


class WorkforceReader:
    """Reads the runners of a database again and again."""

    def __init__(self) -> None:
        self._usual = TtlCache[dict[str, float]](HOURS_EVERY)
        self._hours = TtlCache[RunnerHours](HOURS_EVERY)

    async def read(self, session: Session, runner_id: int | None, *, wide: bool, tall: bool) -> Workforce:
        """Read the runners.

        Args:
            runner_id: the runner whose tasks to read; None for the first.
            wide: also read the last hour of each.
            tall: also read the busy slots of the last hour.
        """

        async def hours(tx: Transaction) -> RunnerHours:
            ids = tuple(runner.id for runner in await tx.once(read_runners)) if wide else ()
            ask = partial(runner_hours, tx, ids, busy=tall)
            return await self._hours.get((ids, tall), ask, session.distance)

        async def read_all(tx: Transaction) -> Workforce:
            usual = self._usual.get(None, partial(usual_run_times, tx), session.distance)
            p95, data, last_hour = await tx.gather(usual, workforce(tx, runner_id), hours(tx))
            return replace(data, p95=p95, hours=last_hour)

        return await session.read(read_all)


def merged_workforce(parts: Mapping[str, Workforce], silent: Mapping[str, str]) -> Workforce:
    """The runners of all shards, whose ids have their shard.

    Args:
        parts: the runners of each shard that answered, by its name.
        silent: the error of each other one.
    """
    named = [_in_shard(name, part) for name, part in parts.items()]
    at = max((part.at for part in named), default=EARLIEST)
    p95 = {handler: max(part.p95.get(handler, 0.0) for part in named) for part in named for handler in part.p95}
    busy = [sum(minute) for minute in zip(*(part.hours.busy for part in named if part.hours.busy), strict=True)]
    done = {id: minutes for part in named for id, minutes in part.hours.done.items()}
    return Workforce(
        at,
        tuple(runner for part in named for runner in part.runners),
        next((part.tasks for part in named if part.tasks), ()),
        {id: slots for part in named for id, slots in part.slots.items()},
        {id: flows for part in named for id, flows in part.flows.items()},
        p95,
        RunnerHours(max((part.hours.at for part in named), default=EARLIEST), done, busy),
        silent,
    )


def _in_shard(name: str, part: Workforce) -> Workforce:
    def named(by_runner: Mapping[int, T]) -> dict[int, T]:
        return {ShardId(name, id): value for id, value in by_runner.items()}

    return replace(
        part,
        runners=tuple(runner._replace(id=ShardId(name, runner.id)) for runner in part.runners),
        tasks=tuple(task._replace(id=ShardId(name, task.id)) for task in part.tasks),
        slots=named(part.slots),
        flows=named(part.flows),
        hours=part.hours._replace(done=named(part.hours.done)),
    )


async def workforce(tx: Transaction, runner_id: int | None) -> Workforce:
    """Read the runners, and the tasks of one; None for the first."""
    (runners, tasks), flows, slots, at = await tx.gather(
        _with_tasks(tx, runner_id), _recent_results(tx), busy_slots(tx), clock(tx)
    )
    return Workforce(at, tuple(runners), tuple(tasks), slots, flows, {})


async def _recent_results(tx: Transaction) -> Mapping[int, Mapping[str, Flow]]:
    return await results_by_runner(tx, await clock(tx) - RECENT)


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
    if runner_id == NO_RUNNER:
        return []
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
