"""Scan loop: starts the scans of a runner: periodically, after a submit, and when a task becomes due."""

import asyncio
import random
from collections.abc import Callable
from functools import partial

from runner.engine.claimer import Claimer
from runner.engine.ticks import Tick
from runner.policy.poll_mode import OwnScan, PollMode
from runner.settings import Settings


class ScanLoop:
    """Starts scans.

    Args:
        settings: the settings of the runner.
        claimer: its scans.
        mode: the poll mode.
    """

    def __init__(self, settings: Settings, claimer: Claimer, mode: PollMode) -> None:
        self._claimer = claimer
        self._mode = mode
        self._delay = settings.initial_delay.total_seconds()
        self._interval = settings.poll_interval.total_seconds()
        self._period = mode.period(self._interval)
        self._timer: asyncio.TimerHandle | None = None
        self.live_runners = 1
        """Number of live runners, as of the last heartbeat; only for modes that depend on it."""

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

    def on_ready(self) -> None:
        """Open claims after the initial delay, or scan for the handlers whose resources are open now."""
        if self._claimer.open:
            self.soon()
        else:
            asyncio.get_running_loop().call_later(self._delay, self.open)

    def open(self) -> None:
        """Allow claims; notifications have no effect before."""
        if not self._claimer.closed:
            self._claimer.open = True
            self.soon()

    def soon(self) -> None:
        """Start a scan without waiting for its end."""
        if self._claimer.open:
            self._scan_task = asyncio.ensure_future(self._scan())

    def on_submit(self) -> None:
        """Scan after a submit."""
        if self._claimer.open:
            self._scan_task = asyncio.ensure_future(self._scan(submitted=True))

    def _begin_soon(self, begin: Callable[[], None]) -> None:
        begin()
        self.soon()

    async def _begin(self, begin: Callable[[], None]) -> None:
        begin()
        await self._scan()

    async def _scan(self, submitted: bool = False) -> None:
        await self._claimer.scan(submitted)
        due = self._claimer.lanes.next_due
        if due is not None and due < self._period:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(due, self.soon)
