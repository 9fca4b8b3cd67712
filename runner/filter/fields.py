"""The fields of filters, with their kinds of value, operators and help."""

import re
from datetime import datetime, timedelta, tzinfo
from difflib import get_close_matches
from enum import Enum, StrEnum, auto
from typing import NamedTuple, TypeAlias

from runner.errors import InvalidInput
from runner.model.duration import parse_duration
from runner.model.task import BUCKETS, Priority, Shown, State
from runner.text.times import parse_moment

Value: TypeAlias = str | int | timedelta | datetime

STATES = tuple(dict.fromkeys(str(word) for word in (*State, *Shown)))
"""The values of `state:`: the stored and the displayed states."""

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,20}")


class Operator(StrEnum):
    """The comparison of a term, which also determines the shape of its value.

    EQ, LT, LE, GT, GE and CONTAINS have one value, IN a tuple of two or more, RANGE an inclusive pair, and GLOB the
    literal pieces between its stars: ("smtp.", "") for `smtp.*`, ("", "") for `*`, which matches any value.
    """

    EQ = ":"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    CONTAINS = "~"
    IN = ","
    RANGE = ".."
    GLOB = "*"


class FieldKind(Enum):
    """The kind of a field's values."""

    TEXT = auto()
    WHOLE = auto()
    ID_OR_NAME = auto()
    """The id of a row, an integer, or its name: a text that is no whole number."""
    STATE = auto()
    LENGTH = auto()
    """A timedelta, zero or more."""
    OFFSET = auto()
    """A timedelta from now, negative in the past."""
    MOMENT = auto()
    """An aware datetime in UTC, typed as a moment or an age; a time of day means the last such time."""


class Field(NamedTuple):
    """A field of filters.

    Args:
        operators: its operators; the first one is the meaning of `:` before one plain value.
        examples: filters that use it, separated by blanks.
        lowest: the least integer allowed.
        highest: the greatest integer allowed, the limit of the column.
    """

    name: str
    kind: FieldKind
    operators: tuple[Operator, ...]
    help: str
    examples: str
    lowest: int = 0
    highest: int = 2**31 - 1

    def read(self, text: str, now: datetime, zone: tzinfo) -> Value:
        """Parse one value.

        Args:
            text: the value without quotes.
            now: the current time, aware.
            zone: the time zone of times without an offset.

        Raises:
            InvalidInput: the text is not a value of this field.
        """
        match self.kind:
            case FieldKind.WHOLE | FieldKind.ID_OR_NAME:
                is_name = self.kind is FieldKind.ID_OR_NAME and not _WHOLE_NUMBER.fullmatch(text)
                return text if is_name else self._read_whole(text)
            case FieldKind.STATE:
                return _read_state(text.lower())
            case FieldKind.LENGTH:
                return parse_duration(text)
            case FieldKind.OFFSET:
                return -parse_duration(text[1:]) if text.startswith("-") else parse_duration(text)
            case FieldKind.MOMENT:
                return parse_moment(text, now, zone, past=True)
            case _:
                return text

    def _read_whole(self, text: str) -> int:
        number = int(text) if _WHOLE_NUMBER.fullmatch(text) else None  # others are no numbers, or too long
        if number is None and not (text.isascii() and text.removeprefix("-").isdecimal()):
            raise InvalidInput(why=f"{self.name} must be a whole number, not {text!r}")
        if number is None or not self.lowest <= number <= self.highest:
            raise InvalidInput(why=f"{self.name} must be from {self.lowest} to {self.highest}, not {text}")
        return number


def _read_state(text: str) -> str:
    if text not in STATES:
        raise InvalidInput(why=f"unknown state {text!r}{suggestion(text, STATES)}; the states are {', '.join(STATES)}")
    return text


def suggestion(text: str, candidates: tuple[str, ...]) -> str:
    """The candidate most similar to a mistyped word, as the end of a sentence; empty if none is similar."""
    matches = get_close_matches(text, candidates, 1)
    return f", did you mean {matches[0]!r}" if matches else ""


_ORDER = (Operator.LE, Operator.LT, Operator.GE, Operator.GT)
_CHOICE = (Operator.EQ, Operator.IN)
_NAME = (*_CHOICE, Operator.GLOB, Operator.CONTAINS)
_COUNT = (*_CHOICE, Operator.RANGE, *_ORDER)
_MESSAGE = (Operator.CONTAINS, Operator.GLOB)
_ANY_ID = 2**63 - 1
_PRIORITIES = (Priority.LOWEST, Priority.HIGHEST)

FIELDS = {
    field.name: field
    for field in (
        Field("id", FieldKind.WHOLE, _COUNT, "task id", "id:123,124 id:100..200", 1, _ANY_ID),
        Field("queue", FieldKind.TEXT, _NAME, "queue name", "queue:mail queue:mail*"),
        Field("handler", FieldKind.TEXT, _NAME, "handler name", "handler:smtp.send handler:smtp.*"),
        Field("state", FieldKind.STATE, _CHOICE, "state, stored or displayed", "state:dead,retrying"),
        Field("key", FieldKind.TEXT, _NAME, "business key; * matches any", "key:order-17 key:* -key:*"),
        Field("tenant", FieldKind.TEXT, _NAME, "tenant", "tenant:acme -tenant:*"),
        Field("hosts", FieldKind.TEXT, _NAME, "hosts that may take it; * if bound", "hosts:web-3 hosts:*"),
        Field("unique", FieldKind.TEXT, _NAME, "unique key", "unique:user-7 unique:*"),
        Field("error", FieldKind.TEXT, _MESSAGE, "last error", "error~Timeout error:OSError*"),
        Field("failure", FieldKind.TEXT, _CHOICE, "failure group of an attempt", "failure:3fa91c0a77e2b1d4"),
        Field("failed", FieldKind.MOMENT, (Operator.GE,), "an attempt failed since then", "failed:1h"),
        Field("change", FieldKind.TEXT, _CHOICE, "change group, from runner audit", "change:3fa91c0a"),
        Field("batch", FieldKind.WHOLE, _CHOICE, "members of a batch, by its callback", "batch:17", 1, _ANY_ID),
        Field(
            "workflow",
            FieldKind.ID_OR_NAME,
            (*_CHOICE, Operator.GLOB),
            "tasks of a workflow, by id or name",
            "workflow:17 workflow:book*",
            1,
            _ANY_ID,
        ),
        Field("below", FieldKind.WHOLE, _CHOICE, "a task and all that depend on it", "below:17", 1, _ANY_ID),
        Field("payload", FieldKind.TEXT, _NAME, "value in the payload", "payload.user_id:7 payload.city:*"),
        Field("host", FieldKind.TEXT, _NAME, "host of the last attempt", "host:web-1 host:web-*"),
        Field("runner", FieldKind.WHOLE, _CHOICE, "runner id of the last attempt", "runner:7", 1, _ANY_ID),
        Field("tag", FieldKind.TEXT, _CHOICE, "tag", "tag:slow -tag:nightly"),
        Field("by", FieldKind.TEXT, _NAME, "submitter", "by:ana"),
        Field("attempts", FieldKind.WHOLE, _COUNT, "attempts used", "attempts>3 attempts:0"),
        Field("max_attempts", FieldKind.WHOLE, _COUNT, "attempts allowed", "max_attempts:1", 1),
        Field("priority", FieldKind.WHOLE, _COUNT, "priority; 9 is claimed first", "priority>=5", *_PRIORITIES),
        Field("bucket", FieldKind.WHOLE, _COUNT, "bucket, 0 to 999", "bucket:0..499", 0, BUCKETS - 1),
        Field("due", FieldKind.OFFSET, _ORDER, "time until due; negative if overdue", "due<5m due<-1h"),
        Field("age", FieldKind.LENGTH, _ORDER[2:] + _ORDER[:2], "time since submit", "age>1h"),
        Field(
            "since",
            FieldKind.MOMENT,
            (Operator.GE,),
            "finished, or submitted if live, since then",
            "since:1h since:9:00",
        ),
        Field(
            "until", FieldKind.MOMENT, (Operator.LT,), "finished, or submitted if live, before then", "until:2026-11-20"
        ),
        Field("text", FieldKind.TEXT, (Operator.CONTAINS,), "text in error, key or handler", 'Timeout "db is gone"'),
    )
}
"""Every field by name, in display order."""

PAYLOAD = "payload."
"""The beginning of a field that names a member of the payload: `payload.to.city`."""


def field_of(name: str) -> Field | None:
    """Find a field by its name; a member of the payload is a field of its own. None if there is none."""
    if name.startswith(PAYLOAD):
        return FIELDS["payload"]._replace(name=name)
    return FIELDS.get(name)
