"""Large local variables of handlers, the ends of attempts that have them, and the garbage that attempts leave."""

import asyncio
import gc
import sys
import types
import weakref
from collections import Counter
from typing import Any, ClassVar

from runner import Context, Dead, Retry, Snooze

ENDS = ("success", "failure", "retry", "wrapped", "group", "dead", "dead of a failure", "snooze", "exit", "timeout")
"""Ways in which an attempt ends; "retry" needs two attempts."""

KINDS = (types.FrameType, types.TracebackType, types.CoroutineType, asyncio.Task, asyncio.Future, BaseException)


class Frame:
    """A large local variable."""

    alive: ClassVar["weakref.WeakSet[Frame]"] = weakref.WeakSet()

    def __init__(self) -> None:
        self.alive.add(self)


class BadRow(ValueError):
    """An exception with weak references."""


def end_attempt(ctx: Context, end: str, frame: Frame) -> None:
    """Raise the exception of an end in the first attempt."""
    if ctx.fence > 1:
        return
    own = frame
    match end:
        case "failure":
            raise BadRow("bad row")
        case "retry":
            raise Retry("1ms")
        case "wrapped" | "dead of a failure" | "group":
            try:
                _look_up(own)
            except KeyError as error:
                kinds = {"wrapped": ValueError("bad row"), "group": BaseExceptionGroup("rows", [error])}
                raise kinds.get(end, Dead("no such row")) from error
        case "dead":
            raise Dead("no such row")
        case "snooze":
            raise Snooze("1ms")
        case "exit":
            sys.exit(3)


def _look_up(frame: Frame) -> None:
    raise KeyError(type(frame))


def collect() -> list[Any]:
    """Collect the garbage and return it."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def leftovers(garbage: list[Any]) -> Counter[str]:
    """Count the garbage of attempts by type. The statements that SQLAlchemy builds per batch leave other garbage."""
    return Counter(type(each).__name__ for each in garbage if _of_attempts(type(each)))


def _of_attempts(kind: type) -> bool:
    return issubclass(kind, KINDS) or kind.__module__.startswith(("runner.engine", "runner.handlers", "tests"))
