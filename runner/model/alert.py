"""Alerts: the rules by name, a problem that a rule found, and its silence."""

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

DELIVER, QUEUE = "runner.alerts.deliver", "runner.alerts"
"""The handler and the queue of deliveries; no application can define a module of this package."""

DELIVERIES = 20
"""Slots of a runner for deliveries. Its receivers share them, so that one that hangs does not delay the others."""


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
    TASKS_FAILING = "tasks-failing"
    TASKS_BLOCKED = "tasks-blocked"
    SCHEDULE_LATE = "schedule-late"
    SCHEDULE_SKIPPED = "schedule-skipped"
    TABLE_BLOATED = "table-bloated"

    @property
    def subject(self) -> str:
        """The kind of its subjects; empty if it has only one alert."""
        kind = self.value.partition("-")[0]
        return SUBJECTS.get(self, kind if kind in KINDS else "")


KINDS = ("queue", "handler", "runner", "schedule", "table")
"""The kinds of subjects with which names of rules begin."""

SUBJECTS = {
    AlertRule.SLOTS_HELD: "handler",
    AlertRule.BREAKER_OPEN: "handler",
    AlertRule.TASKS_FAILING: "handler",
    AlertRule.ROW_STUCK: "task",
}
"""The kinds of the subjects of other rules."""


class Severity(StrEnum):
    """The severity of an alert; a note is shown in the console only, because it often passes within a minute."""

    CRITICAL = "critical"
    WARNING = "warning"
    NOTE = "note"


class Alert(NamedTuple):
    """One problem; rule and subject identify it.

    Args:
        subject: the exact name of the queue, handler, runner or schedule; empty if the rule has only one alert.
        title: sanitized subject and verb: `mail falls behind`.
        text: sanitized rest of the sentence; figures come first, because a narrow screen cuts its end.
        advice: the next step.
        since: when it began, according to the figures of the rule; None if they do not have it.
    """

    rule: AlertRule
    subject: str
    severity: Severity
    title: str
    text: str
    advice: str
    since: datetime | None = None

    @property
    def name(self) -> str:
        """Rule and subject as operators type them."""
        return alert_name(self.rule, self.subject)

    @property
    def sentence(self) -> str:
        """Title and text."""
        return f"{self.title}: {self.text}" if self.text else self.title


def alert_name(rule: str, subject: str) -> str:
    """The name of an alert: RULE:SUBJECT, or the rule alone."""
    return f"{rule}:{subject}" if subject else rule


class Silence(NamedTuple):
    """A silence: its alerts cause no notice until it ends.

    Args:
        name: RULE:SUBJECT, or a rule for all of its alerts.
    """

    name: str
    until: datetime
    by: str | None
    why: str | None

    def covers(self, alert: str) -> bool:
        """True if it applies to an alert, by name."""
        return alert == self.name or alert.partition(":")[0] == self.name


class AlertRecord(NamedTuple):
    """An alert as the evaluations stored it.

    Args:
        name: RULE:SUBJECT, or the rule alone.
        since: the first evaluation that found it.
        resolved_at: when it was over; None while it is firing.
        noticed: True if a notice was sent.
    """

    name: str
    severity: str
    title: str
    text: str
    advice: str
    since: datetime
    resolved_at: datetime | None = None
    noticed: bool = False


class TrialResult(NamedTuple):
    """The result of a trial for one receiver.

    Args:
        receiver: name and host.
        problem: why it did not take the notice; empty if it did.
    """

    receiver: str
    problem: str
