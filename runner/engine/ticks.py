"""Ticks: what a runner does again and again, driven by APScheduler."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

log = logging.getLogger("runner.ticks")

Rate = Literal["fixed-rate", "fixed-delay"]

CLOCK_STEP = 2.0
"""Seconds by which the wall clock may run away from the monotonic one before the ticks are set anew."""
WATCH_EVERY = 1.0
"""Seconds between two comparisons of the clocks."""


@dataclass(frozen=True)
class Tick:
    """One line of the table of what is done how often.

    Args:
        name: unique.
        run: what to do; an exception is logged and the tick goes on.
        every: seconds.
        rate: "fixed-rate" starts a run every period; "fixed-delay" starts it the period after the last one has ended.
        first: seconds until the first run.
    """

    name: str
    run: Callable[[], Awaitable[Any] | None]
    every: float
    rate: Rate = "fixed-delay"
    first: float = 0.0


class Ticks:
    """A table of ticks at work.

    Args:
        table: what to do, and how often.
    """

    def __init__(self, table: list[Tick]) -> None:
        self._table = {tick.name: tick for tick in table}
        # The default grace of one second would drop runs whenever the event loop is busy.
        defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        self._scheduler = AsyncIOScheduler(timezone=UTC, job_defaults=defaults)
        self._scheduler.add_listener(self._ended, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED)
        self._apart = self._wall_ahead()
        self._runs: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Begin; must be called on the running event loop."""
        for tick in self._table.values():
            self._arm(tick, tick.first)
        self._scheduler.start()
        self._watch = asyncio.get_running_loop().call_later(WATCH_EVERY, self._watch_clock)

    def stop(self, *names: str) -> None:
        """End some ticks, or all of them when none is named; what runs goes on to its end."""
        for name in names or tuple(self._table):
            self._table.pop(name, None)
            if self._scheduler.get_job(name):
                self._scheduler.remove_job(name)

    async def shutdown(self, limit: float) -> None:
        """End all ticks and the scheduler.

        Args:
            limit: seconds that what runs now is given to end by itself: it may hold a connection.
        """
        self.stop()
        self._watch.cancel()
        if self._runs:
            await asyncio.wait(self._runs, timeout=limit)
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _arm(self, tick: Tick, wait: float) -> None:
        at = datetime.now(UTC) + timedelta(seconds=wait)
        # A job that arms itself anew while it runs ends the scheduler's loop without a word. A tick with fixed delay
        # is therefore a job that runs once, and is added again by the event that tells of its end.
        trigger = IntervalTrigger(seconds=tick.every) if tick.rate == "fixed-rate" else DateTrigger(at)
        self._scheduler.add_job(self._run, trigger, (tick,), id=tick.name, next_run_time=at, replace_existing=True)

    async def _run(self, tick: Tick) -> None:
        job: Any = asyncio.current_task()
        self._runs.add(job)
        try:
            running = tick.run()
            if running is not None:
                await running
        except asyncio.CancelledError:
            raise
        except Exception:  # a tick never ends because one of its runs failed
            log.exception("tick %s failed", tick.name)
        finally:
            self._runs.discard(job)

    def _ended(self, event: Any) -> None:
        tick = self._table.get(event.job_id)
        if tick is not None and tick.rate == "fixed-delay":
            self._arm(tick, tick.every)

    def _watch_clock(self) -> None:
        """Set all ticks anew when the wall clock was moved: the scheduler goes by it and would wait for it."""
        apart = self._wall_ahead()
        if abs(apart - self._apart) > CLOCK_STEP:
            log.warning("the clock of this machine was moved by %.1f s", apart - self._apart)
            self._apart = apart
            for tick in self._table.values():
                self._arm(tick, tick.every)
        self._watch = asyncio.get_running_loop().call_later(WATCH_EVERY, self._watch_clock)

    @staticmethod
    def _wall_ahead() -> float:
        return time.time() - time.monotonic()
