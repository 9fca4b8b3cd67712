"""Message: a notice as text for people, and its identity for programs that join notices of one alert."""

import hashlib
import hmac
from dataclasses import dataclass
from html import escape

from runner.alerts.notice import AlertNotice
from runner.text.sanitize import one_line

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
        silence = "" if notice.rule == TEST else f"{rule}. Silence it: runner alerts silence {_name(notice)} --until 2h"
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


def _name(notice: AlertNotice) -> str:
    return f"{notice.rule}:{notice.subject}" if notice.subject else notice.rule


def signature(key: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a webhook: HMAC-SHA256 over the timestamp, a full stop and the body, in hexadecimal.

    Args:
        timestamp: seconds since 1970 in UTC.
    """
    return hmac.new(key.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
