"""Texts from the database in alerts, shortened and safe to print."""

from runner.text import formatting
from runner.text.sanitize import clean

MAX_KINDS = 3
"""Error types, queues and runners listed in an alert."""

MAX_TEXT, MAX_ERROR = 60, 300
"""Maximum characters of a text from the database, and of an error of it, which has the advice at its end."""


def shown(value: object, limit: int = MAX_TEXT) -> str:
    """A text from the database on one line, safe to print."""
    return clean(formatting.text(value), limit)
