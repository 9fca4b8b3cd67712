"""Outcomes: the result of an attempt as data."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from runner.model.duration import parse_duration

Delay: TypeAlias = str | float | timedelta

RESULT_NOT_KEPT = "the result was not kept"
"""Prefix of the stored reason when a task succeeded but its result could not be stored."""

RUNNER_LOST = "runner lost"
"""The error type of an attempt whose runner was lost, or did not end it at its deadline."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The cause of a failed attempt, ready to store.

    Args:
        type: qualified class name of the exception, or a word such as "Timeout".
        message: text of the exception.
        traceback: formatted traceback, or "".
        rule: the rule that decided its effect, such as "dead, by on_error of the handler"; "" for the default.
        is_plain: True if the runner wrote the message, without any text of the handler or of its rules.
    """

    type: str
    message: str
    traceback: str = ""
    rule: str = ""
    is_plain: bool = False

    @property
    def reason(self) -> str:
        """Type and message in one line."""
        return f"{self.type}: {self.message}" if self.message else self.type


MASKS = (
    (re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""), "'*'"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "*"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "*"),
    (re.compile(r"\d+(?:\.\d+)?"), "#"),
)
LONGEST_COMPARED = 2_000
"""Characters of a message that are compared."""


def masked(message: str) -> str:
    """Return the message in one line, with numbers, ids and quoted values masked."""
    text = " ".join(message[:LONGEST_COMPARED].split())
    for pattern, mark in MASKS:
        text = pattern.sub(mark, text)
    return text


def fingerprint(handler: str, error_type: str, message: str) -> str:
    """Return sixteen hexadecimal digits that identify a failure group.

    Args:
        handler: handler name.
        error_type: class of the exception.
        message: message of the exception; only its first line counts, masked.
    """
    first, *_ = message.strip().splitlines() or [""]
    return hashlib.sha256(f"{handler}\0{error_type}\0{masked(first)}".encode("utf-8", "replace")).hexdigest()[:16]


class HandlerOutcome(Exception):
    """An outcome that a handler may return or raise, with the same effect."""

    why: str

    def _normalize_reason(self) -> None:
        """Convert a handler's reason to text; it may be an exception or None."""
        if not isinstance(self.why, str):
            self.why = "" if self.why is None else str(self.why)  # type: ignore[unreachable] # callers are untyped

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type] # subclasses are data classes

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True)
class Done:
    """The task succeeded.

    Args:
        result: JSON text of the return value; None if the handler returned nothing.
        why: RESULT_NOT_KEPT and the cause, if the result could not be stored.
    """

    result: str | None = None
    why: str | None = None


@dataclass(unsafe_hash=True)  # not frozen: Python sets the traceback of an exception
class Retry(HandlerOutcome):
    """The attempt failed; retry the task.

    Args:
        delay: time until the next attempt, as text ("5m"), seconds or timedelta; None uses the retry plan.
        why: reason to store.
        failure: the engine sets it when an exception caused the retry.
    """

    delay: Delay | None = None
    why: str = ""
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if self.delay is not None:
            parse_duration(self.delay)
        self._normalize_reason()


@dataclass(unsafe_hash=True)  # not frozen: Python sets the traceback of an exception
class Dead(HandlerOutcome):
    """The attempt failed; do not retry, even if attempts remain.

    Args:
        why: reason to store.
        failure: the engine sets it when an exception caused the outcome.
    """

    why: str = ""
    failure: Failure | None = None

    def __post_init__(self) -> None:
        self._normalize_reason()


@dataclass(unsafe_hash=True)  # not frozen: Python sets the traceback of an exception
class Snooze(HandlerOutcome):
    """Run the task again later; this attempt does not count.

    Args:
        delay: time until then, as text ("10m"), seconds or timedelta.
        why: reason to show until then.
    """

    delay: Delay
    why: str = ""

    def __post_init__(self) -> None:
        parse_duration(self.delay)
        self._normalize_reason()


HANDLER_OUTCOMES = (Retry, Dead, Snooze)
"""The outcomes that a handler returns or raises. A new one also needs a verdict in runner.policy.attempt_verdict."""


@dataclass(frozen=True, slots=True)
class Release:
    """The runner returned the task before executing it: any runner may claim it, and the attempt does not count."""

    why: str = ""


INTERRUPTED = Failure("Interrupted", "the runner stopped before the task ended")


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The runner stopped before the task ended: another runner starts it again, and the attempt does not count.

    Args:
        most: maximum number of interruptions without a new checkpoint; None for no limit.
    """

    most: int | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """The database was unavailable to a call of the Context: the task waits, and the attempt does not count.

    Args:
        failure: the error.
        most: maximum number of interruptions without a new checkpoint, after which attempts count; None for no limit.
        delay: time until the next attempt, if the handler has chosen it.
    """

    failure: Failure
    most: int | None = None
    delay: Delay | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """An operator terminated the task while it was running."""

    why: str = "terminated while running"


@dataclass(frozen=True, slots=True)
class Suspended:
    """The task sleeps, waits for a signal or for its children, or retries one of its steps. The attempt does not count.

    Args:
        delay: seconds until the next attempt at the latest.
        why: reason to show until then.
        failure: the failure of the step; None if no step failed.
        waits: True if a signal starts the next attempt earlier.
        children: ids of the tasks whose ends start the next attempt.
    """

    delay: float
    why: str
    failure: Failure | None = None
    waits: bool = False
    children: tuple[int, ...] = ()


Outcome: TypeAlias = Done | Retry | Dead | Snooze | Suspended | Release | Interrupted | Outage | Cancelled


def with_texts(outcome: Outcome, why: Callable[[str], str], failure: Callable[[Failure], Failure]) -> Outcome:
    """Change the texts of an outcome that a handler may have written: its reason, and its failure."""
    if isinstance(outcome, (Retry, Dead, Snooze, Suspended)):
        outcome = replace(outcome, why=why(outcome.why))
    if isinstance(outcome, (Retry, Dead, Suspended, Outage)) and outcome.failure is not None:
        outcome = replace(outcome, failure=failure(outcome.failure))
    return outcome


class Unexpected(NamedTuple):
    """An unexpected result of a handler: an option of `@handler` and a setting decide its outcome.

    Args:
        name: name of the option and of the setting.
        result: the result, for people.
        choices: the words that the option takes in the place of a function; the first one is the default.
        argument: the argument of a function, for people.
    """

    name: str
    result: str
    choices: tuple[str, ...]
    argument: str

    @property
    def values(self) -> str:
        """The values of the setting, for people."""
        return f"{', '.join(self.choices)}, or a function as package.module:function"

    @property
    def help(self) -> str:
        """The description of the setting."""
        return f"outcome of {self.result}, unless the handler sets it: {self.values}"


ErrorWord: TypeAlias = Literal["retry", "dead"]
NoneWord: TypeAlias = Literal["succeed", "retry", "dead"]

ON_ERROR = Unexpected("on_error", "an exception or a timeout", get_args(ErrorWord), "the exception")
ON_NONE = Unexpected("on_none", "None where a handler declares a result", get_args(NoneWord), "None")
