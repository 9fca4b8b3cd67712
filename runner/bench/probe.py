"""Probe: how a runner process lets the bench see, at no cost, how far it is."""

import mmap
import time
from pathlib import Path

WORDS = 2
WORD = 8
"""Bytes."""


class Probe:
    """The number of tasks that one process has started, and when it started the first, in memory that two share.

    Args:
        path: of the file behind it, which is made when it is missing.
    """

    def __init__(self, path: Path) -> None:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(WORDS * WORD)
            self._shared = memoryview(mmap.mmap(file.fileno(), WORDS * WORD))
        # Whole words are written in one go: no reader sees half of a number.
        self._counts, self._times = self._shared.cast("Q"), self._shared.cast("d")
        self._hits = 0

    def hit(self, now: float) -> None:
        """Note that a task starts; `now` in monotonic seconds."""
        if not self._hits:
            self._times[1] = now
        self._hits += 1
        self._counts[0] = self._hits

    @property
    def hits(self) -> int:
        """Tasks that were started."""
        return self._counts[0]

    @property
    def first(self) -> float:
        """When the first was, in monotonic seconds."""
        return self._times[1]


def coarse_clock() -> str:
    """What to say of a clock that is too coarse for latencies; empty where it is fine.

    Submitting and running are different processes. Python's monotonic clock is the same for all processes of a
    machine (documentation of `time.monotonic`), but on some systems it goes in steps.
    """
    step = time.get_clock_info("monotonic").resolution
    return f"the clock of this system goes in steps of {step * 1000:g} ms" if step > FINE else ""


FINE = 0.0001
"""Seconds."""
