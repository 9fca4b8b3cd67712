"""Stopwatch: what the steps of a task cost, measured around the functions of a runner from outside."""

import time
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any, NamedTuple

from runner.bench.orders import Step
from runner.engine import buffer, claiming
from runner.engine.buffer import SettleBuffer
from runner.engine.claiming import Claiming
from runner.engine.working import Working
from runner.handlers import Handler


class Watched(NamedTuple):
    """A function that is watched.

    Args:
        step: under which name.
        owner: the module or class that it is looked up in.
        name: its own.
        waits: it is a coroutine, which runs in several pieces.
    """

    step: str
    owner: Any
    name: str
    waits: bool = False


WATCHED = (
    Watched("survey", claiming, "survey", waits=True),
    Watched("claim", claiming, "claim", waits=True),
    Watched("take", Claiming, "_take"),
    Watched("start", Working, "start"),
    Watched("execute", Working, "_execute", waits=True),
    Watched("bind", Handler, "bind"),
    Watched("buffer", SettleBuffer, "add"),
    Watched("buffer", SettleBuffer, "_batch"),
    Watched("settle", buffer, "settle_done", waits=True),
    Watched("settled", Working, "_settled"),
)

STEPS = {
    "survey": "which lanes have waiting tasks",
    "claim": "the claim and its rows",
    "take": "tasks taken in hand",
    "start": "coroutines made for them",
    "bind": "payloads read and checked",
    "execute": "the handler, and all around it",
    "buffer": "outcomes gathered to batches",
    "settle": "the outcomes written",
    "settled": "slots freed, statistics counted",
}
"""What is watched, in the order in which a task goes through it."""


class Stopwatch:
    """Adds up, step by step, the CPU of the thread of the event loop; what runs within a step counts for itself.

    Args:
        clock: the CPU of this thread, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.steps = {name: Step() for name in STEPS}
        self.began: tuple[float, float] | None = None
        """The CPU of the process and of this thread when the first step began, in seconds."""
        self._within: list[Step] = []
        self._since = 0.0

    def attach(self) -> None:
        """Put itself around the watched functions, in this process and for good."""
        for step, owner, name, waits in WATCHED:
            around = self.around_waiting if waits else self.around
            setattr(owner, name, around(self.steps[step], getattr(owner, name)))

    def enter(self, step: Step) -> None:
        """A piece of a step begins."""
        now = self._clock()
        if self.began is None:
            self.began = (time.process_time(), now)
        if self._within:
            self._within[-1].cpu += now - self._since
        self._within.append(step)
        self._since = now

    def leave(self) -> None:
        """The piece that began last ends."""
        now = self._clock()
        self._within.pop().cpu += now - self._since
        self._since = now

    def around(self, step: Step, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched as a step."""

        @wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            step.calls += 1
            self.enter(step)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return watched

    def around_waiting(self, step: Step, function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        """The coroutine function, watched as a step, piece by piece."""

        @wraps(function)
        async def watched(*args: Any, **kwargs: Any) -> Any:
            step.calls += 1
            began = time.perf_counter()
            try:
                return await Pieces(self, step, function(*args, **kwargs))
            finally:
                step.took += time.perf_counter() - began

        return watched


class Pieces:
    """Awaits a coroutine, and watches each piece of it between two waits.

    Args:
        watch: that is told.
        step: to which the pieces belong.
        coroutine: what is awaited.
    """

    def __init__(self, watch: Stopwatch, step: Step, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._watch = watch
        self._step = step
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[Any], Any] = self._coroutine.send
        argument: Any = None
        while True:
            self._watch.enter(self._step)
            try:
                waits_for = resume(argument)
            except StopIteration as end:
                return end.value
            finally:
                self._watch.leave()
            try:
                argument, resume = (yield waits_for), self._coroutine.send
            except BaseException as error:
                argument, resume = error, self._coroutine.throw
