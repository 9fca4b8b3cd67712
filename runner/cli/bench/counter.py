"""A counter in shared memory: the bench reads a runner's progress at no cost to the runner."""

import mmap
import time
from pathlib import Path

WORDS = 2
WORD = 8
"""Bytes."""


class Counter:
    """The number of tasks that a process has started, and the time of the first start, in shared memory.

    Args:
        path: the backing file; created if missing.
    """

    def __init__(self, path: Path) -> None:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(WORDS * WORD)
            self._shared = memoryview(mmap.mmap(file.fileno(), WORDS * WORD))
        # Aligned words are written atomically: a reader never sees half a number.
        self._counts, self._times = self._shared.cast("Q"), self._shared.cast("d")
        self._hits = 0

    def hit(self, now: float) -> None:
        """Count a started task; `now` in monotonic seconds."""
        if not self._hits:
            self._times[1] = now
        self._hits += 1
        self._counts[0] = self._hits

    @property
    def hits(self) -> int:
        """Started tasks."""
        return self._counts[0]

    @property
    def first(self) -> float:
        """Time of the first start, in monotonic seconds."""
        return self._times[1]


def coarse_clock() -> str:
    """A warning if the clock is too coarse for latencies; empty otherwise.

    Submit and start happen in different processes. Python's monotonic clock is the same for all processes of a machine
    (documentation of `time.monotonic`), but some systems advance it in large steps.
    """
    step = time.get_clock_info("monotonic").resolution
    return f"the clock of this system advances in steps of {step * 1000:g} ms" if step > MAX_STEP else ""


MAX_STEP = 0.0001
"""Seconds between two values of a clock."""
