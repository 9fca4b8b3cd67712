"""Bar: how far a round is, on a terminal: rate, failures, time left."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from runner.demo.pace import Pace
from runner.demo.round import Standing
from runner.people.times import format_duration


class Bar:
    """A line that moves; nothing at all where standard error is no terminal.

    Args:
        endless: there is no end to show the way to: more is submitted until somebody stops it.
    """

    def __init__(self, *, endless: bool) -> None:
        console = Console(stderr=True)
        before, after = TextColumn("{task.fields[count]}"), TextColumn("{task.fields[pace]}")
        columns = (before, after) if endless else (before, BarColumn(bar_width=None), after)
        self._progress = Progress(
            *columns, console=console, disable=not console.is_terminal, auto_refresh=False, transient=True, expand=True
        )
        self._line = self._progress.add_task("", total=None, count="", pace="")
        self._pace = Pace()
        self._endless = endless

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, standing: Standing) -> None:
        """Draw the line anew."""
        self._pace.see(time.monotonic(), standing.ended)
        total, ended = standing.submitted, standing.ended
        count = f"{ended:,} done, {standing.left:,} to do" if self._endless else f"{ended:,} of {total:,}"
        pace = self._text(standing)
        self._progress.update(self._line, total=total, completed=ended, refresh=True, count=count, pace=pace)

    def _text(self, standing: Standing) -> str:
        pace = f"{self._pace.rate:,.0f}/s, {standing.failures:,} failed attempts, {standing.dead:,} dead"
        if self._endless:
            return f"{pace}, Ctrl-C ends it"
        rest = self._pace.rest(standing.left)
        return f"{pace}, {format_duration(rest)} left" if rest else pace
