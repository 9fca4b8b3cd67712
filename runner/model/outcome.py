"""Outcomes: the result of an attempt as data."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from runner.model.duration import parse_duration

Delay: TypeAlias = str | float | timedelta

RESULT_NOT_KEPT = "the result was not kept"
"""Prefix of the stored reason when a task succeeded but its result could not be stored."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The cause of a failed attempt, ready to store.

    Args:
        type: qualified class name of the exception, or a word such as "Timeout".
        message: text of the exception.
        traceback: formatted traceback, or "".
    """

    type: str
    message: str
    traceback: str = ""

    @property
    def reason(self) -> str:
        """Type and message in one line."""
        return f"{self.type}: {self.message}" if self.message else self.type


def _normalize_reason(outcome: Any) -> None:
    """Convert a handler's reason to text; it may be an exception or None."""
    if not isinstance(outcome.why, str):
        object.__setattr__(outcome, "why", "" if outcome.why is None else str(outcome.why))


@dataclass(frozen=True, slots=True)
class Done:
    """The task succeeded.

    Args:
        result: JSON text of the return value; None if the handler returned nothing.
        why: RESULT_NOT_KEPT and the cause, if the result could not be stored.
    """

    result: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Retry:
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
        _normalize_reason(self)


@dataclass(frozen=True, slots=True)
class Dead:
    """The attempt failed; do not retry, even if attempts remain.

    Args:
        why: reason to store.
        failure: the engine sets it when an exception caused the outcome.
    """

    why: str = ""
    failure: Failure | None = None

    def __post_init__(self) -> None:
        _normalize_reason(self)


@dataclass(frozen=True, slots=True)
class Snooze:
    """Run the task again later; this attempt does not count.

    Args:
        delay: time until then, as text ("10m"), seconds or timedelta.
        why: reason to show until then.
    """

    delay: Delay
    why: str = ""

    def __post_init__(self) -> None:
        parse_duration(self.delay)
        _normalize_reason(self)


@dataclass(frozen=True, slots=True)
class Release:
    """The runner returned the task before executing it: any runner may claim it, and the attempt does not count."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """An operator terminated the task while it was running."""

    why: str = "terminated while running"


Outcome: TypeAlias = Done | Retry | Dead | Snooze | Release | Cancelled
