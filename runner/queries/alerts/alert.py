"""Alert: one problem that a rule found."""

from dataclasses import dataclass
from enum import StrEnum

from runner.text import formatting
from runner.text.sanitize import clean

MAX_KINDS = 3
"""Error types, queues and runners listed in an alert."""

MAX_TEXT, MAX_ERROR = 60, 300
"""Maximum characters of a text from the database, and of an error of it, which has the advice at its end."""


class AlertRule(StrEnum):
    """The rules, in the order of their alerts: causes before symptoms."""

    NO_RUNNER = "no-runner"
    SLOTS_HELD = "slots-held"
    RUNNER_BLOCKED = "runner-blocked"
    ROW_STUCK = "row-stuck"
    RUNNER_FAILING = "runner-failing"
    BREAKER_OPEN = "breaker-open"
    HANDLER_UNCLAIMED = "handler-unclaimed"
    QUEUE_FAILING = "queue-failing"
    HANDLER_FAILING = "handler-failing"
    RUNNER_LOST = "runner-lost"
    QUEUE_BEHIND = "queue-behind"
    QUEUE_LATE = "queue-late"
    TASKS_LOST = "tasks-lost"
    TASKS_DEAD = "tasks-dead"
    TASKS_BLOCKED = "tasks-blocked"


class Severity(StrEnum):
    """The severity of an alert; a note is shown in the console only, because it often passes within a minute."""

    CRITICAL = "critical"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Alert:
    """One problem; rule and subject identify it.

    Args:
        subject: the exact name of the queue, handler, runner or schedule; empty if the rule has only one alert.
        title: sanitized subject and verb: `mail falls behind`.
        text: sanitized rest of the sentence; figures come first, because a narrow screen cuts its end.
        advice: the next step.
    """

    rule: AlertRule
    subject: str
    severity: Severity
    title: str
    text: str
    advice: str

    @property
    def sentence(self) -> str:
        """Title and text."""
        return f"{self.title}: {self.text}" if self.text else self.title


def shown(value: object, limit: int = MAX_TEXT) -> str:
    """A text from the database on one line, safe to print."""
    return clean(formatting.text(value), limit)
