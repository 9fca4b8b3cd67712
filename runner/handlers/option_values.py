"""Values of task options: their forms in JSON, Python and commands, with their checks."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, tzinfo
from typing import Any, NamedTuple, TypeAlias

from runner.errors import InvalidTask
from runner.model.duration import LONGEST_SECONDS, parse_duration
from runner.model.headers import HEADERS_LIMIT, require_headers, write_headers
from runner.model.task import NewWorkflow
from runner.model.text_limits import require_json, require_name, require_storable, require_text, require_whole
from runner.text.times import EARLIEST, LATEST, parse_moment


class Clock(NamedTuple):
    """The time that relative times refer to.

    Args:
        now: the current time, aware.
        zone: time zone of times without an offset.
    """

    now: datetime
    zone: tzinfo


Parse: TypeAlias = Callable[[str, Any, Clock], Any]
"""Takes an option's name, its value from JSON or the command line, and the clock; returns the value for NewTask."""


def parse_text(name: str, value: Any, _clock: Clock) -> str:
    """Read text."""
    if not isinstance(value, str):
        raise InvalidTask(field=name, value=value, why="expected text")
    return value


def parse_integer(name: str, value: Any, _clock: Clock) -> int:
    """Read a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidTask(field=name, value=value, why="expected a whole number")
    return value


def parse_time(name: str, value: Any, clock: Clock) -> datetime:
    """Read a time, such as 2026-11-20T14:30+01:00, +15m or 14:30."""
    return parse_moment(parse_text(name, value, clock), *clock)


def parse_seconds(_name: str, value: Any, _clock: Clock) -> float:
    """Read a duration, in seconds."""
    return parse_duration(value).total_seconds()


def parse_tags(name: str, value: Any, _clock: Clock) -> str:
    """Read a list of texts, as JSON."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(tag, str) for tag in value):
        raise InvalidTask(field=name, value=value, why="expected a list of texts")
    return json.dumps(list(value))


def tags_as_json(tags: Iterable[str]) -> str | None:
    """Write tags as JSON. A string is rejected: as an iterable it would become one tag per letter."""
    if isinstance(tags, (str, bytes, Mapping)) or not isinstance(tags, Iterable):
        word = tags if isinstance(tags, str) else "slow"
        raise InvalidTask(field="tags", value=tags, why=f"expected a list of strings, such as [{word!r}]")
    words = list(tags)
    for word in words:
        require_text("tags", word)
    return json.dumps(words) if words else None


def headers_of_words(words: Iterable[str]) -> dict[str, str]:
    """Read headers from words such as request-id=a1; a later one replaces an earlier one of its name."""
    headers = {}
    for word in words:
        name, sign, headers[name] = word.partition("=")
        if not sign:
            raise InvalidTask(field="headers", value=word[:80], why="expected name=value, such as request-id=a1")
    return headers


def parse_headers(_name: str, value: Any, _clock: Clock) -> str | None:
    """Read headers from a mapping."""
    return headers_as_json(value)


def headers_as_json(headers: Any) -> str | None:
    """Write headers as JSON."""
    require_headers("headers", headers)
    return write_headers(headers)


def check_headers(name: str, value: Any) -> None:
    """Reject text that is not a JSON object of headers."""
    require_storable(name, value, HEADERS_LIMIT)
    require_json(name, value)
    require_headers(name, json.loads(value))


def check_text(name: str, value: Any, limit: int = 10_000) -> None:
    """Reject text that a database cannot store, or with more characters than the limit."""
    require_storable(name, value, limit)


def check_workflow(name: str, value: Any) -> None:
    """Reject a workflow that a row cannot hold: an id, or a new one with its name."""
    if isinstance(value, NewWorkflow):
        if value.name is not None:
            check_name(name, value.name)
    else:
        require_whole(range(1, 2**63), "pass the id of a workflow", name, value)


def check_name(name: str, value: Any) -> None:
    """Reject a name of a queue or a tenant that a row cannot hold."""
    require_text(name, value)
    require_name(name, value)


def check_seconds(name: str, value: Any, zero: bool = False) -> None:
    """Reject a number that is not finite, negative or too large, and zero unless it is allowed."""
    if not (math.isfinite(value) and 0 <= value < LONGEST_SECONDS and (value or zero)):
        bound = "at least" if zero else "more than"
        why = f"it must be {bound} 0 seconds and less than {LONGEST_SECONDS:,.0f}"
        raise InvalidTask(field=name, value=value, why=why)


def check_time(name: str, value: Any) -> None:
    """Reject a time without a zone, or out of range."""
    if not isinstance(value, datetime):
        raise InvalidTask(field=name, value=value, why="it must be a datetime with a time zone")
    if value.tzinfo is None:
        why = "it has no time zone: use datetime.now(UTC), or astimezone() for local time"
        raise InvalidTask(field=name, value=value.isoformat(), why=why)
    if not EARLIEST <= value < LATEST:
        raise InvalidTask(field=name, value=value.isoformat(), why=f"times range from {EARLIEST:%Y} to {LATEST:%Y}")


def check_tags(name: str, value: Any) -> None:
    """Reject text that is not a JSON array."""
    require_storable(name, value)
    if not isinstance(require_json(name, value), list):
        raise InvalidTask(field=name, value=value[:80], why="it is not a JSON array")


def duration_as_seconds(value: Any) -> float:
    """Convert a duration from Python: text, seconds or timedelta."""
    return parse_duration(value).total_seconds()
