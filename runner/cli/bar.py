"""How far something long has come, on one line of a terminal that is written again and again."""

import sys
import time

from runner.people import cells
from runner.store.intervene import Result

PERIOD = 0.5
"""Seconds between two looks at it; what ends sooner shows none."""


class Bar:
    """The progress of a change of many tasks, on standard error if a person looks at it.

    Args:
        what: is done.
        total: tasks that will be changed; None when there are more than were counted.
    """

    def __init__(self, what: str, total: int | None) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self._began = self._shown = time.monotonic()
        self._drawn = False

    def show(self, result: Result) -> None:
        """Take in the result so far, and show it now and then."""
        self.done, now = len(result.changed), time.monotonic()
        if now - self._shown >= PERIOD and sys.stderr.isatty():
            self._shown, self._drawn = now, True
            text = cells.progress(self.done, self.total, now - self._began)
            print(f"\r\x1b[K{self.what}: {text}; ctrl-c stops it", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line to what is said next."""
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
