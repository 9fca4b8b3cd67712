"""AlertNotice: the message that an alert fires or is over, and the task that delivers it to one receiver."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal, Self

from runner.model.alert import DELIVER, QUEUE, AlertRecord, Severity
from runner.model.task import NewTask

PRIORITIES = {Severity.CRITICAL.value: 9}
"""The priority of a delivery by severity; 5 for the others."""


@dataclass(frozen=True, slots=True)
class AlertNotice:
    """The payload of a delivery, beside the name of the receiver.

    Args:
        rule, subject: the identity of the alert; the subject is empty if the rule has only one alert.
        title, text, advice: see `runner.model.alert.Alert`.
        since: when it began, ISO 8601 in UTC.
        resolved_at: when it was over; None while it fires.
        database: the name of the database, without a password.
    """

    state: Literal["firing", "resolved"]
    rule: str
    subject: str
    severity: str
    title: str
    text: str
    advice: str
    since: str
    resolved_at: str | None
    database: str

    @classmethod
    def of(cls, record: AlertRecord, database: str) -> Self:
        """The notice of a stored alert."""
        rule, _, subject = record.name.partition(":")
        texts = (record.severity, record.title, record.text, record.advice)
        resolved = None if record.resolved_at is None else _utc(record.resolved_at)
        state: Literal["firing", "resolved"] = "firing" if resolved is None else "resolved"
        return cls(state, rule, subject, *texts, _utc(record.since), resolved, database)

    def task(self, receiver: str) -> NewTask:
        """The task that delivers it to a receiver, by name."""
        payload = json.dumps({"notice": asdict(self), "receiver": receiver})
        return NewTask(DELIVER, payload, QUEUE, priority=PRIORITIES.get(self.severity, 5))


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
