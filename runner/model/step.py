"""Step: a durable part of a task, whose stored result later attempts use."""

from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple


class StepKind(StrEnum):
    """The kinds of steps."""

    FUNCTION = "function"
    """Runs a function once."""
    CALL = "call"
    """Submits a task once, its child, and ends the attempt until the child has ended."""
    SLEEP = "sleep"
    """Ends the attempt until a time."""
    WAIT = "wait"
    """Ends the attempt until a signal arrives."""


SLEEPS, WAITS, CALLS = "sleeps for ", "waits for signal ", "waits for task "
"""The beginnings of the reasons with which a sleep, a wait and a call end an attempt."""


def error_of(text: str | None) -> str | None:
    """The stored error of a task; None if it is the reason of a sleep, a wait or a call."""
    return None if text is None or text.startswith((SLEEPS, WAITS, CALLS)) else text


def reason_of(text: str | None) -> str | None:
    """The reason of a sleep, a wait or a call; None for an error."""
    return text if error_of(text) is None else None


class StoredStep(NamedTuple):
    """A step of a task, as an attempt reads it.

    Args:
        number: position among the steps of the handler's own asyncio task or thread, from 1; None elsewhere.
        function: qualified name of the function, or name of the handler of a child; None without one.
        attempt: number of the attempt that wrote it.
        failures: number of its failures so far.
        left: seconds until it is due; None without a time.
        done: True if it is done; its result is final then.
        result: JSON text; None while it is not done, for None, and for the end of a wait without a signal.
        child: id of the task that a call has submitted; None without one.
        age: seconds since it was written.
    """

    name: str
    kind: str
    number: int | None
    function: str | None
    attempt: int
    failures: int
    left: float | None
    done: bool
    result: str | None
    child: int | None = None
    age: float = 0.0


class StepWrite(NamedTuple):
    """A step to store.

    Args:
        signal: the name of the signal that a wait is for.
        due_in: seconds until it is due; None without a time. The first one of a step counts.
        error: the last failure; None without one.
        duration: seconds that its function took; None if it is not done.

    See StoredStep for the others.
    """

    name: str
    kind: str
    number: int | None
    function: str | None = None
    signal: str | None = None
    failures: int = 0
    error: str | None = None
    due_in: float | None = None
    done: bool = False
    result: str | None = None
    duration: float | None = None


class Signal(NamedTuple):
    """A signal that a task has received.

    Args:
        name: the name that the task waited for.
        payload: the value that came with it, as plain JSON; None without one.
        sent_at: time by the database's clock; None if a client has stored an unreadable one.
        by: who sent it; None after a plain INSERT without `actor`.
    """

    name: str
    payload: Any
    sent_at: datetime | None
    by: str | None = None
