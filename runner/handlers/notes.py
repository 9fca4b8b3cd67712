"""Notes of an attempt: its checkpoints, its progress and its log, as a handler writes them."""

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Protocol

from runner.errors import InvalidInput


class InvalidCheckpoint(InvalidInput):
    """Task {id} cannot store a checkpoint of type {type}: {why}."""


class InvalidProgress(InvalidInput):
    """Progress of {done!r} of {total!r} is not valid: {why}."""


def require_progress(done: float, total: float | None) -> None:
    """Refuse a progress that is not a number.

    Raises:
        InvalidProgress: a number is negative or not finite.
    """
    for value in (done, total or 0):
        if not math.isfinite(value) or value < 0:
            raise InvalidProgress(done=done, total=total, why="numbers must be finite and not negative")


class Notes(Protocol):
    """Receives the notes of one attempt."""

    state: Any

    async def save(self, state: Any) -> None:
        """Store a checkpoint."""
        ...

    def keep(self, state: Any) -> None:
        """Set the state that the runner stores later."""
        ...

    def progress(self, done: float, total: float | None, unit: str) -> None:
        """Set the progress."""
        ...

    def line(self, level: int, text: str) -> None:
        """Add a line to the log."""
        ...

    def submit(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Future[None]:
        """Run a coroutine function on the runner's loop, from a thread."""
        ...


class KeptNotes(Notes, Protocol):
    """Notes of which a runner stores the last state when the attempt ends."""

    unsaved: str | None

    async def load(self) -> None:
        """Read the last checkpoint."""
        ...

    async def save_kept(self) -> None:
        """Store the kept state."""
        ...


class MemoryNotes:
    """Notes without a runner, for tests that call a handler directly."""

    def __init__(self) -> None:
        self.state: Any = None
        self.done: tuple[float, float | None, str] | None = None

    async def save(self, state: Any) -> None:
        """Keep the state."""
        self.state = state

    def keep(self, state: Any) -> None:
        """Keep the state."""
        self.state = state

    def progress(self, done: float, total: float | None, unit: str) -> None:
        """Keep the progress."""
        self.done = (done, total, unit)

    def line(self, level: int, text: str) -> None:
        """Do nothing: the logger has the line."""

    def submit(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Future[None]:
        """Run a coroutine function in this thread."""
        done: Future[None] = Future()
        done.set_result(asyncio.run(work()))
        return done


class Saved:
    """The end of a checkpoint that a plain function has waited for; `await` returns immediately."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


def checkpoint(notes: Notes, state: Any) -> Awaitable[None]:
    """Store a checkpoint: awaited in an async handler, blocking in a plain function."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        notes.submit(lambda: notes.save(state)).result()
        return Saved()
    return notes.save(state)


class AttemptLogger(logging.LoggerAdapter[logging.Logger]):
    """Writes to the log of the runner and to the log of the attempt.

    Args:
        logger: the logger of the runner.
        extra: the fields of every record.
        notes: receives the lines.
    """

    def __init__(self, logger: logging.Logger, extra: dict[str, object], notes: Notes) -> None:
        super().__init__(logger, extra)
        self._notes = notes

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log one message; the attempt keeps it from the level info on, whatever the level of the logger is."""
        if level >= logging.INFO:
            self._notes.line(level, _text(msg, args, kwargs.get("exc_info")))
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # name the line of the handler, not this one
        super().log(level, msg, *args, **kwargs)


def _text(msg: object, args: tuple[object, ...], exc_info: object) -> str:
    text = str(msg)
    try:
        text = text % args if args else text
    except (TypeError, ValueError):  # logging reports it
        text = f"{text} {args!r}"
    error = exc_info if isinstance(exc_info, BaseException) else sys.exception() if exc_info else None
    return f"{text} ({type(error).__name__}: {error})" if error is not None else text
