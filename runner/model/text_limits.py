"""Text limits: making text storable in both databases, and rejecting text that is not."""

import json
import sys
from functools import lru_cache
from typing import Any

from pydantic_core import from_json

from runner.errors import InvalidTask

LONGEST_NAME = 200
"""Characters of the name of a handler or a queue."""

LONGEST_KEY = 400
"""Characters of a key. With the handler's name it must fit into an index of PostgreSQL, which takes 2,700 bytes."""

MAX_JSON_DEPTH = 500
TOO_DEEP = "it is nested too deeply"
MOST_READ_LEVELS = 199
"""Levels of lists and objects that pydantic reads in JSON, and so a runner in a payload."""
"""Levels of nesting. SQLite parses 1,000, and an application may let Python parse more than the databases do."""

UNBOUNDED = 2**31

ERROR_LIMIT = 16 * 1024
"""Maximum size of a stored error in bytes, and of an exception in the log."""

MARK = "... [cut: {lost} more bytes] ..."
"""Replaces the middle of a long text."""


def to_storable(text: str, limit: int) -> str:
    """Make a text storable, so that it cannot fail a settle.

    NUL and lone surrogates, which PostgreSQL rejects, become visible escapes. A long text keeps its start and its
    end, because a traceback names the exception at its end.

    Args:
        limit: maximum size in bytes of UTF-8, at least 200.

    Returns:
        A text of at most `limit` bytes.
    """
    clean = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace")
    if len(clean) <= limit:
        return clean.decode()
    keep = (limit - len(MARK) - 12) // 2
    mark = MARK.format(lost=len(clean) - 2 * keep)
    return f"{clean[:keep].decode(errors='ignore')}{mark}{clean[-keep:].decode(errors='ignore')}"


def require_storable(field: str, text: str, limit: int = 10_000) -> str:
    """Reject a text that a database cannot store.

    Args:
        field: name of the value, for the message.
        limit: maximum number of characters.

    Returns:
        The same text.

    Raises:
        InvalidTask: the text is too long or has characters that PostgreSQL cannot store.
    """
    require_text(field, text)
    if "\0" in text:
        raise InvalidTask(
            field=field, value=text[:80], why="it contains the character NUL, which PostgreSQL cannot store"
        )
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidTask(field=field, value=text[:80], why="it contains half of a surrogate pair, which is not text")
    if len(text) > limit:
        raise InvalidTask(field=field, value=text[:80] + "...", why=f"it is longer than {limit} characters")
    return text


def require_text(field: str, text: Any) -> None:
    """Reject a value that is not a string, such as a number or a UUID.

    Raises:
        InvalidTask: the value has another type.
    """
    if not isinstance(text, str):
        raise InvalidTask(field=field, value=text, why=f"expected text, got {type(text).__name__}")


@lru_cache(maxsize=1024)
def require_name(field: str, text: str) -> None:
    """Reject a name of a handler or a queue that is empty, too long or not printable.

    Raises:
        InvalidTask: the name is not valid.
    """
    if not 1 <= len(text) <= LONGEST_NAME:
        raise InvalidTask(field=field, value=text[:80], why=f"it must have 1 to {LONGEST_NAME} characters")
    if not (text.isascii() and text.isprintable()):
        require_storable(field, text)
        if not text.isprintable():
            raise InvalidTask(field=field, value=text[:80], why="it contains unprintable characters")


def require_whole(allowed: range, why: str, field: str, value: Any) -> None:
    """Reject a value that is not one of the whole numbers of a range, for the reason `why`.

    Raises:
        InvalidTask: it is not.
    """
    if not (isinstance(value, int) and type(value) is not bool and value in allowed):
        raise InvalidTask(field=field, value=value, why=why)


FAILED_HOST = "failed"
"""The word among the hosts of a task for the host of its last failed attempt, whose name is beside it."""

LONGEST_HOSTS = 1_000
"""Maximum number of characters of the hosts of a task."""


def require_hosts(field: str, hosts: str) -> None:
    """Reject hosts that no runner could have: names with spaces, empty ones, or `any` beside others.

    Args:
        hosts: names with commas between them; empty for all.

    Raises:
        InvalidTask: a name is not valid.
    """
    require_storable(field, hosts, LONGEST_HOSTS)
    for name in hosts.split(",") if hosts else ():
        require_name(field, name)
        if " " in name or name == "any":
            raise InvalidTask(field=field, value=hosts, why="use names of hosts, same for this host, or any alone")


def require_json(field: str, text: str) -> Any:
    """Parse JSON as strictly as the databases do.

    Returns:
        The value. Its whole numbers stay text: Python rejects very long ones, which both databases keep.

    Raises:
        InvalidTask: the text is not JSON, or has characters that PostgreSQL cannot store.
    """

    def reject(why: str) -> Any:
        raise InvalidTask(field=field, value=text[:80], why=why)

    try:
        value = json.loads(text, parse_int=str, parse_constant=lambda name: reject(f"JSON does not allow {name}"))
        _require_storable_inside(field, value, MAX_JSON_DEPTH)
    except ValueError as error:
        reject(f"it is not valid JSON: {error}")
    except RecursionError:
        reject(TOO_DEEP)
    return value


class _Digits(str):
    """The digits of a whole number in JSON."""

    __slots__ = ()


def describe_json_error(text: str, error: ValueError) -> str:
    """Describe why Python cannot read a JSON text; of a number with too many digits, with its field and the next step.

    Args:
        error: the error of `json.loads`.
    """
    limit = sys.get_int_max_str_digits()
    if not limit or isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error}"
    fields: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, value in pairs:
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, _Digits) and len(item.lstrip("-")) > limit:
                    digits = f"{len(item.lstrip('-')):,} digits, and Python reads at most {limit:,}"
                    fields.append(f"the number in field {name[:80]!r} has {digits}: pass it as text, in quotes")
        return {}

    json.loads(text, parse_int=_Digits, object_pairs_hook=note)
    return fields[0] if fields else f"not JSON: {error}"


def require_payload(payload: str) -> None:
    """Reject a payload with text that PostgreSQL cannot store, raw or as an escape, or with a number that is not JSON.

    Raises:
        InvalidTask: the payload has NUL, half of a surrogate pair, NaN or Infinity.
    """
    if "\0" in payload or not payload.isascii():
        require_storable("payload", payload, UNBOUNDED)
    # Python accepts text that a database rejects only if it has one of these. A pattern would take longer.
    if "\\u" in payload or "NaN" in payload or "Infinity" in payload:
        require_json("payload", payload)


def require_levels(payload: str) -> None:
    """Reject a payload that is nested more deeply than a runner can read it.

    Raises:
        ValueError: it is.
    """
    if payload.count("[") + payload.count("{") > MOST_READ_LEVELS:  # a text with fewer brackets has fewer levels
        try:
            from_json(payload)
        except ValueError as error:
            if "recursion limit" in str(error):
                raise ValueError(TOO_DEEP) from None


def _require_storable_inside(field: str, value: Any, levels: int) -> None:
    if not levels:
        raise RecursionError
    match value:
        case str():
            require_storable(field, value, UNBOUNDED)
        case list():
            for item in value:
                _require_storable_inside(field, item, levels - 1)
        case dict():
            for name, item in value.items():
                require_storable(field, name, UNBOUNDED)
                _require_storable_inside(field, item, levels - 1)
