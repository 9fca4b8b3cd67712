"""The input and the report of a runner process of the bench."""

from dataclasses import dataclass, field
from pathlib import Path

from runner.settings import Settings

HANDLER = "bench"
"""The name of the only handler."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The input of a runner process.

    Args:
        settings: settings of the runner; sent through a pipe because they may contain a password.
        probe: file of the shared counter.
        profiling: measure the cost of each step of a task.
    """

    settings: Settings
    probe: Path
    profiling: bool = False


@dataclass(slots=True)
class WorkerStep:
    """The cost of one step.

    Args:
        calls: number of calls.
        cpu: CPU seconds on the event loop, without nested steps.
        took: wall clock seconds, including waits.
    """

    calls: int = 0
    cpu: float = 0.0
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The report of a runner process.

    Args:
        hits: started tasks.
        cpu: CPU seconds of the process, from its first task or first profiled step until the stop request.
        loop_cpu: CPU seconds of the event loop's thread in the same period.
        latencies: seconds from submit to start, for tasks with a submit time.
        marks: monotonic time and CPU seconds at each mark and at the stop request.
        steps: cost of each step, if profiled.
    """

    hits: int
    cpu: float
    loop_cpu: float
    latencies: list[float]
    marks: list[tuple[float, float]]
    steps: dict[str, WorkerStep] = field(default_factory=dict)
