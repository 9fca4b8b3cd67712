"""The progress bar of the demo: rate, failures, time left."""

import time
from collections import deque
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from runner.cli.demo.round import RoundProgress
from runner.model.duration import format_duration

WINDOW = 5.0
"""Seconds over which the rate is measured."""


class ThroughputEstimate:
    """The rate over the last few seconds, from samples of the number of finished tasks."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, finished: int) -> None:
        """Add a sample.

        Args:
            now: monotonic seconds.
            finished: number of finished tasks.
        """
        self._samples.append((now, finished))
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW:
            self._samples.popleft()

    @property
    def rate(self) -> float:
        """Finished tasks per second; 0.0 while unknown."""
        if not self._samples:
            return 0.0
        (start, before), (now, after) = self._samples[0], self._samples[-1]
        return max(0.0, (after - before) / (now - start)) if now > start else 0.0

    def time_left(self, tasks: int) -> timedelta | None:
        """The time for this many tasks at the current rate, in whole seconds; None if the rate is 0."""
        return timedelta(seconds=round(tasks / self.rate)) if self.rate else None


class ProgressBar:
    """A progress bar on standard error; silent unless that is a terminal.

    Args:
        endless: the demo keeps submitting, so the total is unknown.
    """

    def __init__(self, *, endless: bool) -> None:
        console = Console(stderr=True)
        before, after = TextColumn("{task.fields[count]}"), TextColumn("{task.fields[pace]}")
        columns = (before, after) if endless else (before, BarColumn(bar_width=None), after)
        self._progress = Progress(
            *columns, console=console, disable=not console.is_terminal, auto_refresh=False, transient=True, expand=True
        )
        self._line = self._progress.add_task("", total=None, count="", pace="")
        self._pace = ThroughputEstimate()
        self._endless = endless

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, progress: RoundProgress) -> None:
        """Redraw the bar."""
        self._pace.add(time.monotonic(), progress.finished)
        total, finished = progress.submitted, progress.finished
        count = f"{finished:,} done, {progress.unfinished:,} to do" if self._endless else f"{finished:,} of {total:,}"
        pace = self._text(progress)
        self._progress.update(self._line, total=total, completed=finished, refresh=True, count=count, pace=pace)

    def _text(self, progress: RoundProgress) -> str:
        pace = f"{self._pace.rate:,.0f}/s, {progress.failures:,} failed attempts, {progress.dead:,} dead"
        if self._endless:
            return f"{pace}, ctrl-c to stop"
        time_left = self._pace.time_left(progress.unfinished)
        return f"{pace}, {format_duration(time_left)} left" if time_left else pace
