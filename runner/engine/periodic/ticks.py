"""Ticks: the periodic work of a runner, driven by APScheduler, and the loop that starts its scans."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from runner.engine.claiming.claimer import Claimer
from runner.engine.claiming.scan_state import Gate
from runner.engine.events import (
    BreakerReviewed,
    BucketsGained,
    Events,
    HandlersReady,
    StrangersReleased,
    TasksRescued,
    TasksSubmitted,
    TasksUnbound,
)
from runner.errors import StoreError
from runner.own_code import is_cancelled
from runner.policy.polling import OwnScan, PollMode
from runner.settings import Settings

log = logging.getLogger("runner.ticks")

EXECUTOR = "runner"
"""Name of the executor of the scheduler."""

QUIET = logging.getLogger(f"apscheduler.executors.{EXECUTOR}")
"""The logger of the scheduler and of its executor. At info it would write several lines per second."""
QUIET.setLevel(logging.ERROR)  # at warning it reports "skipped, still running" during a long scan

Rate = Literal["fixed-rate", "fixed-delay"]

CLOCK_STEP = 2.0
"""Seconds by which wall clock and monotonic clock may diverge before all ticks are rescheduled."""
WATCH_EVERY = 1.0
"""Seconds between two comparisons of the clocks."""


@dataclass(frozen=True)
class Tick:
    """One periodic action.

    Args:
        run: the action; an exception is logged and the tick continues. A database error is logged once, until the
            action succeeds.
        every: interval in seconds.
        rate: "fixed-rate" starts a run every interval; "fixed-delay" starts it one interval after the last one ended.
        first: seconds until the first run.
        wait: returns the interval of a tick with a fixed delay, in place of `every`.
    """

    name: str
    run: Callable[[], Awaitable[Any] | None]
    every: float
    rate: Rate = "fixed-delay"
    first: float = 0.0
    wait: Callable[[], float] | None = None

    @property
    def delay(self) -> float:
        """Seconds until the next run."""
        return self.every if self.wait is None else self.wait()


class Ticks:
    """Runs a table of ticks."""

    def __init__(self, table: list[Tick]) -> None:
        self._table = {tick.name: tick for tick in table}
        # The default grace of one second would drop runs whenever the event loop is busy.
        defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        executors = {EXECUTOR: AsyncIOExecutor()}
        self._scheduler = AsyncIOScheduler(timezone=UTC, job_defaults=defaults, executors=executors, logger=QUIET)
        self._scheduler.add_listener(self._on_job_end, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED)
        self._clock_offset = self._wall_ahead()
        self._runs: set[asyncio.Task[Any]] = set()
        self._errors: dict[str, str] = {}
        """The database's error of each tick that failed last time."""

    def start(self) -> None:
        """Start. Call it on the running event loop."""
        for tick in self._table.values():
            self._arm(tick, tick.first)
        self._scheduler.start()
        self._watch = asyncio.get_running_loop().call_later(WATCH_EVERY, self._watch_clock)

    def stop(self, *names: str) -> None:
        """Stop the named ticks, or all of them without names. A current run finishes."""
        for name in names or tuple(self._table):
            self._table.pop(name, None)
            if self._scheduler.get_job(name):
                self._scheduler.remove_job(name)

    async def shutdown(self, limit: float) -> None:
        """Stop all ticks and the scheduler.

        Args:
            limit: seconds that the current runs may take to finish, since they may use a connection.
        """
        self.stop()
        self._watch.cancel()
        if self._runs:
            await asyncio.wait(self._runs, timeout=limit)
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _arm(self, tick: Tick, wait: float) -> None:
        at = datetime.now(UTC) + timedelta(seconds=wait)
        # A job that reschedules itself while it runs kills the scheduler's loop silently. A tick with a fixed delay is
        # therefore a job that runs once; the event at its end adds it again.
        # Without a time zone, a trigger would need a valid TZ.
        if tick.rate == "fixed-rate":
            trigger: Any = IntervalTrigger(seconds=tick.every, timezone=UTC)
        else:
            trigger = DateTrigger(at, timezone=UTC)
        again = {"next_run_time": at, "replace_existing": True}
        self._scheduler.add_job(self._run, trigger, (tick,), id=tick.name, executor=EXECUTOR, **again)

    async def _run(self, tick: Tick) -> None:
        job: Any = asyncio.current_task()
        self._runs.add(job)
        try:
            result = tick.run()
            if result is not None:
                await result
        except asyncio.CancelledError as error:
            # The scheduler would log a cancellation that is raised here.
            if tick.name in self._table or not is_cancelled(error):
                log.warning("tick %s was cancelled by code outside of the runner: its next run is on time", tick.name)
        except StoreError as error:
            self._report(tick, str(error))
        except BaseException:  # a failed run, or code of an application that exits, must not stop the tick
            log.exception("tick %s failed", tick.name)
        else:
            self._errors.pop(tick.name, None)
        finally:
            self._runs.discard(job)

    def _report(self, tick: Tick, problem: str) -> None:
        """Log an error of the database once for all ticks that have it, until each of them has succeeded."""
        if problem not in self._errors.values():
            log.error("tick %s failed: %s", tick.name, problem)
        self._errors[tick.name] = problem

    def _on_job_end(self, event: Any) -> None:
        tick = self._table.get(event.job_id)
        if tick is not None and tick.rate == "fixed-delay":
            self._arm(tick, tick.delay)

    def _watch_clock(self) -> None:
        """Reschedule all ticks after a step of the wall clock, which the scheduler depends on."""
        offset = self._wall_ahead()
        if abs(offset - self._clock_offset) > CLOCK_STEP:
            log.warning("the system clock moved by %.1f s: rescheduling all ticks", offset - self._clock_offset)
            self._clock_offset = offset
            for tick in self._table.values():
                self._arm(tick, tick.delay)
        self._watch = asyncio.get_running_loop().call_later(WATCH_EVERY, self._watch_clock)

    @staticmethod
    def _wall_ahead() -> float:
        return time.time() - time.monotonic()


class ScanLoop:
    """Starts scans.

    Args:
        events: has the reasons for scans between the periods.
    """

    def __init__(self, settings: Settings, claimer: Claimer, mode: PollMode, events: Events) -> None:
        self._claimer = claimer
        self._mode = mode
        self._delay = settings.initial_delay.total_seconds()
        self._interval = settings.poll_interval.total_seconds()
        self._period = mode.period(self._interval)
        self._timer: asyncio.TimerHandle | None = None
        self.live_runners = 1
        """Number of live runners, as of the last heartbeat; only for modes that depend on it."""
        events.subscribe(HandlersReady, self._on_ready)
        events.subscribe(TasksSubmitted, self._on_submit)
        events.subscribe(BreakerReviewed, self._on_review)
        for kind in (TasksRescued, TasksUnbound, StrangersReleased, BucketsGained):
            events.subscribe(kind, self._on_earlier)

    def ticks(self, scans: list[OwnScan]) -> list[Tick]:
        """Return the periodic scans; none with a `poll_interval` of 0. The first scan is that of `open`."""
        if not self._interval:
            return []
        ticks = [self._tick("claim", self._period, self._claimer.scope.begin)]
        return ticks + [
            self._tick(f"claim {scan}", scan.period, partial(self._claimer.scope.begin_own, scan)) for scan in scans
        ]

    def _tick(self, name: str, period: float, begin: Callable[[], None]) -> Tick:
        # At a fixed rate, a scan that takes longer than the period must not delay the next tick.
        run = self._begin_soon if self._mode.rate == "fixed-rate" else self._begin
        wait = partial(self._wait, period)
        return Tick(name, partial(run, begin), period, self._mode.rate, self._delay + wait(), wait)

    def _wait(self, period: float) -> float:
        return self._mode.wait(period, self.live_runners, random.random())  # noqa: S311 - spreads runners

    def _on_ready(self, _: HandlersReady) -> None:
        """Open claims after the initial delay, or scan for the handlers whose resources are open now."""
        if self._claimer.open:
            self.soon()
        else:
            asyncio.get_running_loop().call_later(self._delay, self.open)

    def open(self) -> None:
        """Allow claims; notifications have no effect before."""
        if self._claimer.claims.gate is Gate.UNOPENED:
            self._claimer.claims.gate = Gate.OPEN
            self.soon()

    def soon(self, *, earlier: bool = False) -> None:
        """Start a scan without waiting for its end.

        Args:
            earlier: see `Claimer.scan`.
        """
        if self._claimer.open:
            self._scan_task = asyncio.ensure_future(self._scan(earlier=earlier))

    def _on_earlier(self, _: object) -> None:
        self.soon(earlier=True)

    def _on_review(self, event: BreakerReviewed) -> None:
        if event.review.change == "closed":
            self.soon()

    def _on_submit(self, event: TasksSubmitted) -> None:
        self._claimer.lanes.expect(event.lanes)
        if self._claimer.open:
            self._scan_task = asyncio.ensure_future(self._scan(submitted=True))

    def _begin_soon(self, begin: Callable[[], None]) -> None:
        begin()
        self.soon()

    async def _begin(self, begin: Callable[[], None]) -> None:
        begin()
        await self._scan()

    async def _scan(self, submitted: bool = False, *, earlier: bool = False) -> None:
        await self._claimer.scan(submitted, earlier=earlier)
        due = self._claimer.lanes.next_due
        if due is not None and due < self._period:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(due, self.soon)
