"""The data that the bench and its runner processes exchange: the configuration, the counter, the report."""

import mmap
from dataclasses import dataclass, field
from pathlib import Path

from runner.handlers.registry import Options
from runner.settings import Settings

HANDLER = "bench"
"""The name of the only handler."""

WORDS = 2
WORD = 8
"""Bytes."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The input of a runner process.

    Args:
        settings: settings of the runner; sent through a pipe because they may contain a password.
        probe: file of the shared counter.
        options: options of the handler; None for none.
        is_plain: True if the handler is a plain function.
    """

    settings: Settings
    probe: Path
    options: Options | None = None
    is_plain: bool = False


class Counter:
    """The number of tasks that a process has started, and the time of the first start.

    They are in shared memory: the bench reads the progress of a runner at no cost to the runner.

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


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The report of a runner process.

    Args:
        hits: started tasks.
        cpu: CPU seconds of the process, from its first task or first profiled step until the stop request.
        loop_cpu: CPU seconds of the event loop's thread in the same period.
        latencies: seconds from submit to start, for tasks with a submit time.
        marks: monotonic time and CPU seconds at each mark and at the stop request.
        steps: cost of each step, if a stopwatch measures them.
    """

    hits: int
    cpu: float
    loop_cpu: float
    latencies: list[float]
    marks: list[tuple[float, float]]
    steps: dict[str, dict[str, float]] = field(default_factory=dict)
