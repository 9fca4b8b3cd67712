"""The input and the report of a runner process of the bench, and the stopwatch for the steps of a task.

The stopwatch wraps functions of the runner, which need no changes.
"""

import mmap
import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from runner.engine import claimer, settle_buffer
from runner.engine.claimer import Claimer
from runner.engine.settle_buffer import SettleBuffer
from runner.engine.worker import Worker
from runner.handlers.registry import Handler, Options
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
        profiling: measure the cost of each step of a task.
        options: options of the handler; None for none.
        is_plain: True if the handler is a plain function.
    """

    settings: Settings
    probe: Path
    profiling: bool = False
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


class ProfiledFunction(NamedTuple):
    """A function under measurement.

    Args:
        step: name of the step.
        owner: the module or class that contains the function.
        name: name of the function.
        waits: it is a coroutine function and runs in several slices.
    """

    step: str
    owner: Any
    name: str
    waits: bool = False


PROFILED = (
    ProfiledFunction("survey", claimer, "survey", waits=True),
    ProfiledFunction("claim", claimer, "claim", waits=True),
    ProfiledFunction("take", Claimer, "_take"),
    ProfiledFunction("start", Worker, "start"),
    ProfiledFunction("execute", Worker, "_execute", waits=True),
    ProfiledFunction("bind", Handler, "bind"),
    ProfiledFunction("buffer", SettleBuffer, "add"),
    ProfiledFunction("buffer", SettleBuffer, "_batch"),
    ProfiledFunction("settle", settle_buffer, "settle_done", waits=True),
    ProfiledFunction("settled", Worker, "_settled"),
)

STEPS = {
    "survey": "find lanes with waiting tasks",
    "claim": "the claim and its rows",
    "take": "accept claimed tasks",
    "start": "create coroutines",
    "bind": "parse and check payloads",
    "execute": "the handler and the code around it",
    "buffer": "collect outcomes into batches",
    "settle": "write outcomes",
    "settled": "free slots, count statistics",
}
"""The steps, in the order in which a task passes them."""


class Stopwatch:
    """Adds up the CPU of the event loop's thread by step; a nested step counts only for itself.

    Args:
        clock: CPU seconds of this thread.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.steps = {name: WorkerStep() for name in STEPS}
        self.first_step: tuple[float, float] | None = None
        """CPU seconds of the process and of this thread when the first step started."""
        self._stack: list[WorkerStep] = []
        self._last = 0.0

    def attach(self) -> None:
        """Wrap the profiled functions in this process, permanently."""
        for step, owner, name, waits in PROFILED:
            wrap = self.wrap_async if waits else self.wrap
            setattr(owner, name, wrap(self.steps[step], getattr(owner, name)))

    def enter(self, step: WorkerStep) -> None:
        """Start a slice of a step."""
        now = self._clock()
        if self.first_step is None:
            self.first_step = (time.process_time(), now)
        if self._stack:
            self._stack[-1].cpu += now - self._last
        self._stack.append(step)
        self._last = now

    def leave(self) -> None:
        """End the current slice."""
        now = self._clock()
        self._stack.pop().cpu += now - self._last
        self._last = now

    def wrap(self, step: WorkerStep, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function as a step."""

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            step.calls += 1
            self.enter(step)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return wrapper

    def wrap_async(self, step: WorkerStep, function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        """Wrap a coroutine function as a step, measured slice by slice."""

        @wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            step.calls += 1
            started_at = time.perf_counter()
            try:
                return await ProfiledCoroutine(self, step, function(*args, **kwargs))
            finally:
                step.took += time.perf_counter() - started_at

        return wrapper


class ProfiledCoroutine:
    """Awaits a coroutine and measures each slice between two waits.

    Args:
        stopwatch: the stopwatch.
        step: the step of the slices.
        coroutine: the coroutine.
    """

    def __init__(self, stopwatch: Stopwatch, step: WorkerStep, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._stopwatch = stopwatch
        self._step = step
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[Any], Any] = self._coroutine.send
        argument: Any = None
        while True:
            self._stopwatch.enter(self._step)
            try:
                awaitable = resume(argument)
            except StopIteration as end:
                return end.value
            finally:
                self._stopwatch.leave()
            try:
                argument, resume = (yield awaitable), self._coroutine.send
            except BaseException as error:
                argument, resume = error, self._coroutine.throw
