"""TaskEvent: something that happened to a task, as an application reads it."""

from dataclasses import dataclass, fields
from datetime import datetime
from math import isfinite
from typing import Any, ClassVar

from runner.model.task import State


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """An event of a task.

    Args:
        cursor: the position after this event; `events(after=...)` continues there.
        time: when it happened, by the clock of the database; None if unreadable.
        attempt: number of the attempt; 0 before the first.
    """

    kind: ClassVar[str] = ""
    """The name of the kind."""

    cursor: str
    time: datetime | None
    attempt: int

    def values(self) -> dict[str, Any]:
        """The values without the cursor, as JSON has them."""
        return {field.name: _as_json(getattr(self, field.name)) for field in fields(self) if field.name != "cursor"}


def _as_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and not isfinite(value) else value


@dataclass(frozen=True, slots=True)
class StateChanged(TaskEvent):
    """The task has another state, or another due time. The first event of a task is its current state.

    Args:
        state: the new state.
        run_at: when it is due, or was due.
        error: the last error; None without one.
        cancel_requested: True if a running task has been asked to stop.
        waits_for: the signal for which it waits, or the name of its sleep or its call; None if it has none.
    """

    kind: ClassVar[str] = "state"

    state: State
    run_at: datetime | None
    error: str | None
    cancel_requested: bool
    waits_for: str | None

    @property
    def finished(self) -> bool:
        """True if the task has succeeded, is dead or was cancelled."""
        return self.state.final

    @property
    def retrying(self) -> bool:
        """True if the task waits for another attempt after a failure."""
        return self.state is State.WAITING and self.attempt > 0 and self.waits_for is None


@dataclass(frozen=True, slots=True)
class AttemptFailed(TaskEvent):
    """An attempt has failed.

    Args:
        error_type: the class of the exception.
        message: its message.
        delay: seconds until the next attempt; None if there is none.
    """

    kind: ClassVar[str] = "attempt"

    error_type: str
    message: str
    delay: float | None


@dataclass(frozen=True, slots=True)
class ProgressReported(TaskEvent):
    """The handler has reported its progress, at most once per second.

    Args:
        done: finished units.
        total: all units; None if unknown.
        unit: name of the units; None without one.
        rate: units per second; None if unknown.
    """

    kind: ClassVar[str] = "progress"

    done: float
    total: float | None
    unit: str | None
    rate: float | None


@dataclass(frozen=True, slots=True)
class LineLogged(TaskEvent):
    """The handler has logged a line with `ctx.logger`.

    Args:
        level: name of the level, in lower case.
        line: text, without the values of secret fields.
    """

    kind: ClassVar[str] = "log"

    level: str
    line: str


EVENT_KINDS = (StateChanged.kind, AttemptFailed.kind, ProgressReported.kind, LineLogged.kind)
"""The names of the kinds of events."""
