"""The write gate: text that both databases can hold, whatever a handler or a person came up with."""

from typing import Any

from runner.errors import InvalidTask

MARK = "... [cut: {lost} more bytes] ..."
"""Stands where a long text was cut."""


def to_storable(text: str, limit: int) -> str:
    """Make any text storable: it can never make a settle fail.

    NUL and lone surrogates, which PostgreSQL refuses, become visible escapes. A long text keeps its beginning and its
    end, since a traceback says at its end what happened.

    Args:
        text: anything.
        limit: the most bytes of UTF-8 that are kept, at least 200.

    Returns:
        The text, of at most `limit` bytes.
    """
    clean = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace")
    if len(clean) <= limit:
        return clean.decode()
    keep = (limit - len(MARK) - 12) // 2
    mark = MARK.format(lost=len(clean) - 2 * keep)
    return f"{clean[:keep].decode(errors='ignore')}{mark}{clean[-keep:].decode(errors='ignore')}"


def require_storable(field: str, text: str, limit: int = 10_000) -> str:
    """Refuse a text that a producer passed and a database could not hold.

    Args:
        field: what the text is, for the message.
        text: what was passed.
        limit: the most characters.

    Returns:
        The text as it was.

    Raises:
        InvalidTask: with the reason.
    """
    require_text(field, text)
    if "\0" in text:
        raise InvalidTask(field=field, value=text[:80], why="it holds the character NUL, which PostgreSQL cannot store")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidTask(field=field, value=text[:80], why="it holds half of a surrogate pair, which is no text")
    if len(text) > limit:
        raise InvalidTask(field=field, value=text[:80] + "...", why=f"it is longer than {limit} characters")
    return text


def require_text(field: str, text: Any) -> None:
    """Refuse what a producer passed in place of a text, such as a number or a UUID.

    Raises:
        InvalidTask: naming what it is.
    """
    if not isinstance(text, str):
        raise InvalidTask(field=field, value=text, why=f"it must be text, and is of the type {type(text).__name__}")
