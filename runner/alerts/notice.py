"""AlertNotice: the news that an alert fires or is over, as a task that delivers it, and as a message for people."""

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from typing import Literal, Self

from runner.model.alert import DELIVER, QUEUE, AlertRecord, Severity, alert_name
from runner.model.task import NewTask
from runner.text.sanitize import one_line

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
        resolved = None if record.resolved_at is None else utc(record.resolved_at)
        state: Literal["firing", "resolved"] = "firing" if resolved is None else "resolved"
        return cls(state, rule, subject, *texts, utc(record.since), resolved, database)

    def task(self, receiver: str) -> NewTask:
        """The task that delivers it to a receiver, by name."""
        payload = json.dumps({"notice": asdict(self), "receiver": receiver})
        return NewTask(DELIVER, payload, QUEUE, priority=PRIORITIES.get(self.severity, 5))


def utc(moment: datetime) -> str:
    """A time as notices have it, ISO 8601 in UTC."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


MOST_TEXT = 2_000
"""Maximum number of characters of a paragraph: rows of the database may contain anything."""

TEST = "test"
"""The rule of a notice that tries the receivers."""


@dataclass(frozen=True, slots=True)
class Message:
    """A notice for people.

    Args:
        headline: the database, the state and the title in one line.
        paragraphs: sanitized text without the headline.
        thread: the same for all notices of one alert, from its beginning to its end.
    """

    headline: str
    paragraphs: tuple[str, ...]
    thread: str
    is_first: bool

    @classmethod
    def of(cls, notice: AlertNotice) -> "Message":
        """Write a notice."""
        is_first = notice.resolved_at is None
        word = "" if is_first else "resolved: "
        times = f"Since {notice.since}." if is_first else f"From {notice.since} to {notice.resolved_at}."
        sentence = f"{notice.title}: {notice.text}" if notice.text else notice.title
        rule = f"Rule {notice.rule}" + (f", subject {notice.subject}" if notice.subject else "")
        silence = (
            ""
            if notice.rule == TEST
            else f"{rule}. Silence it: runner alerts silence {alert_name(notice.rule, notice.subject)} --until 2h"
        )
        texts = (sentence, times, notice.advice, silence)
        paragraphs = tuple(one_line(text, MOST_TEXT) for text in texts if text)
        whole = "\0".join((notice.database, notice.rule, notice.subject, notice.since))
        thread = hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:32]
        return cls(one_line(f"[{notice.database}] {word}{notice.title}"), paragraphs, thread, is_first)

    @property
    def text(self) -> str:
        """The paragraphs as plain text."""
        return "\n\n".join(self.paragraphs) + "\n"

    @property
    def html(self) -> str:
        """The message as HTML."""
        texts = "".join(f"<p>{escape(text)}</p>" for text in self.paragraphs)
        return f"<html><body><h3>{escape(self.headline)}</h3>{texts}</body></html>"
