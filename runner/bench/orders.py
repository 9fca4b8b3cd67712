"""Orders and Account: what a runner process is told, and what it reports in the end."""

from dataclasses import dataclass, field
from pathlib import Path

from runner.settings import Settings

HANDLER = "bench"
"""The name of the handler that every runner of a bench knows."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a runner process is told before it starts.

    Args:
        settings: how to run; they travel through a pipe, since they may hold a password.
        probe: the file of its probe.
        watched: measure what each step of a task costs.
    """

    settings: Settings
    probe: Path
    watched: bool = False


@dataclass(slots=True)
class Step:
    """What one step cost.

    Args:
        calls: how often it was taken.
        cpu: seconds of CPU on the event loop, without those of other steps within it.
        took: seconds from its beginning to its end, waiting included.
    """

    calls: int = 0
    cpu: float = 0.0
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class Account:
    """What a runner process reports.

    Args:
        hits: tasks that it started.
        cpu: seconds of CPU of the process, from its first task, or its first step that is watched, until it was told to
            stop.
        loop_cpu: those of the thread of the event loop.
        latencies: seconds from submit to start, of the tasks that say when they were submitted.
        marks: the monotonic time and the CPU seconds at each mark, and when it was told to stop.
        steps: what each step cost, if it was watched.
    """

    hits: int
    cpu: float
    loop_cpu: float
    latencies: list[float]
    marks: list[tuple[float, float]]
    steps: dict[str, Step] = field(default_factory=dict)
