"""The stopwatch for the steps of a task, and a runner process of the bench with it: `python -P stopwatch.py`.

It wraps functions of the runner, which need no changes.
"""

import asyncio
import json
import pickle
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import asdict, dataclass, replace
from functools import wraps
from typing import Any, NamedTuple

from runner.cli.bench.exchange import WorkerConfig, WorkerReport
from runner.cli.bench.worker import BenchWorker
from runner.engine.claiming import claimer, survey
from runner.engine.claiming.claims import Claims
from runner.engine.settling import settle_buffer
from runner.engine.settling.settle_buffer import SettleBuffer
from runner.engine.worker import Worker
from runner.handlers.signature import Signature


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
    ProfiledFunction("survey", survey, "survey", waits=True),
    ProfiledFunction("claim", claimer, "claim", waits=True),
    ProfiledFunction("take", Claims, "take"),
    ProfiledFunction("start", Worker, "start"),
    ProfiledFunction("execute", Worker, "_execute", waits=True),
    ProfiledFunction("bind", Signature, "decode"),
    ProfiledFunction("buffer", SettleBuffer, "add"),
    ProfiledFunction("buffer", SettleBuffer, "_batch"),
    ProfiledFunction("settle", settle_buffer, "settle", waits=True),
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


class ProfiledWorker(BenchWorker):
    """A runner with a stopwatch around each step.

    Args:
        config: the configuration from the bench.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._stopwatch = Stopwatch()
        self._stopwatch.attach()
        super().__init__(config)

    def report(self) -> WorkerReport:
        """The report, with the cost of each step. Its CPU seconds count from the first step."""
        self.first = self._stopwatch.first_step or self.first
        steps = {name: asdict(step) for name, step in self._stopwatch.steps.items()}
        return replace(super().report(), steps=steps)


if __name__ == "__main__":
    profiled = ProfiledWorker(pickle.load(sys.stdin.buffer))
    json.dump(asdict(asyncio.run(profiled.work())), sys.stdout)
