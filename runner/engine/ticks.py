"""Ticks: the periodic work of a runner, driven by APScheduler."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

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
        name: unique name.
        run: the action; an exception is logged and the tick continues.
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
    """Runs a table of ticks.

    Args:
        table: the ticks.
    """

    def __init__(self, table: list[Tick]) -> None:
        self._table = {tick.name: tick for tick in table}
        # The default grace of one second would drop runs whenever the event loop is busy.
        defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        executors = {EXECUTOR: AsyncIOExecutor()}
        self._scheduler = AsyncIOScheduler(timezone=UTC, job_defaults=defaults, executors=executors, logger=QUIET)
        self._scheduler.add_listener(self._on_job_end, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED)
        self._clock_offset = self._wall_ahead()
        self._runs: set[asyncio.Task[Any]] = set()

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
        trigger = IntervalTrigger(seconds=tick.every) if tick.rate == "fixed-rate" else DateTrigger(at)
        again = {"next_run_time": at, "replace_existing": True}
        self._scheduler.add_job(self._run, trigger, (tick,), id=tick.name, executor=EXECUTOR, **again)

    async def _run(self, tick: Tick) -> None:
        job: Any = asyncio.current_task()
        self._runs.add(job)
        try:
            result = tick.run()
            if result is not None:
                await result
        except asyncio.CancelledError:
            raise
        except Exception:  # a failed run must not stop the tick
            log.exception("tick %s failed", tick.name)
        finally:
            self._runs.discard(job)

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
