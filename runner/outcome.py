"""What executing a task leads to, as data: Done, Retry, Dead, Snooze, and what only the engine says."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from runner.people.times import parse_duration

Delay: TypeAlias = str | float | timedelta

RESULT_NOT_KEPT = "the result was not kept"
"""How the reason begins that stands in the place of a last error when a task succeeded and its result is lost."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed, ready to be stored.

    Args:
        type: the qualified name of the exception's class, or a word such as "Timeout".
        message: what it said.
        traceback: the formatted traceback, or an empty text.
    """

    type: str
    message: str
    traceback: str = ""

    @property
    def reason(self) -> str:
        """The failure in one line."""
        return f"{self.type}: {self.message}" if self.message else self.type


def _word(outcome: Any) -> None:
    """Make the reason a text, whatever a handler gave: an exception, say, or None."""
    if not isinstance(outcome.why, str):
        object.__setattr__(outcome, "why", "" if outcome.why is None else str(outcome.why))


@dataclass(frozen=True, slots=True)
class Done:
    """The task succeeded.

    Args:
        result: JSON text of what the handler returned; None when it returned nothing.
        why: RESULT_NOT_KEPT and why, when it returned something that could not be kept.
    """

    result: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again: a failed attempt.

    Args:
        delay: time until the next attempt, as text ("5m"), seconds or timedelta; None leaves it to the retry plan.
        why: the reason to keep.
        failure: filled in by the engine when an exception led here.
    """

    delay: Delay | None = None
    why: str = ""
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if self.delay is not None:
            parse_duration(self.delay)
        _word(self)


@dataclass(frozen=True, slots=True)
class Dead:
    """Give up at once, whatever attempts are left.

    Args:
        why: the reason to keep.
        failure: filled in by the engine when an exception led here.
    """

    why: str = ""
    failure: Failure | None = None

    def __post_init__(self) -> None:
        _word(self)


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now: run again later without counting this attempt.

    Args:
        delay: time until then, as text ("10m"), seconds or timedelta.
        why: the reason to show meanwhile.
    """

    delay: Delay
    why: str = ""

    def __post_init__(self) -> None:
        parse_duration(self.delay)
        _word(self)


@dataclass(frozen=True, slots=True)
class Release:
    """Handed back unstarted: another runner may take it at once, and no attempt is counted."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A terminate request was carried out while the task ran."""

    why: str = "terminated while running"


Outcome: TypeAlias = Done | Retry | Dead | Snooze | Release | Cancelled
