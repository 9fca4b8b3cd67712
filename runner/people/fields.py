"""What a filter's terms can be about: every field with its kind of value, its operators and its help, in one table."""

import re
from datetime import datetime, timedelta, tzinfo
from difflib import get_close_matches
from enum import Enum, StrEnum, auto
from typing import NamedTuple, TypeAlias

from runner.errors import InvalidInput
from runner.people.times import parse_duration, parse_moment
from runner.task import BUCKETS, Priority, Shown, State

Value: TypeAlias = str | int | timedelta | datetime

STATES = tuple(dict.fromkeys(str(word) for word in (*State, *Shown)))
"""The words that `state:` takes: the stored states, and those that people see."""

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,20}")


class Operator(StrEnum):
    """How a term compares, which says what its value looks like.

    EQ, LT, LE, GT, GE and CONTAINS have one value, IN a tuple of two or more, RANGE a pair that includes both ends, and
    GLOB the literal pieces between its stars: ("smtp.", "") for `smtp.*`, ("", "") for `*`, which is any value at all.
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


class Kind(Enum):
    """What the values of a field are."""

    TEXT = auto()
    WHOLE = auto()
    STATE = auto()
    LENGTH = auto()
    """A timedelta, zero or more."""
    OFFSET = auto()
    """A timedelta from now, negative in the past."""
    MOMENT = auto()
    """An aware datetime in UTC, typed as a moment, or as how long ago it was; a time of day is the last such time."""


class Field(NamedTuple):
    """Something that a term can be about.

    Args:
        name: as it is typed.
        kind: what its values are.
        operators: what it can be compared by; the first is what `:` means before one plain value.
        help: one line for people.
        examples: filters that use it, with blanks between.
        lowest: the least whole number allowed.
        highest: the greatest one: what the column holds.
    """

    name: str
    kind: Kind
    operators: tuple[Operator, ...]
    help: str
    examples: str
    lowest: int = 0
    highest: int = 2**31 - 1

    def read(self, text: str, now: datetime, zone: tzinfo) -> Value:
        """Read one value.

        Args:
            text: the value alone, quotes removed.
            now: the present, aware.
            zone: where a time without an offset is meant.

        Raises:
            InvalidInput: it is no value of this field.
        """
        match self.kind:
            case Kind.WHOLE:
                return self._read_whole(text)
            case Kind.STATE:
                return _read_state(text.lower())
            case Kind.LENGTH:
                return parse_duration(text)
            case Kind.OFFSET:
                return -parse_duration(text[1:]) if text.startswith("-") else parse_duration(text)
            case Kind.MOMENT:
                return parse_moment(text, now, zone, past=True)
            case _:
                return text

    def _read_whole(self, text: str) -> int:
        if not _WHOLE_NUMBER.fullmatch(text):
            raise InvalidInput(why=f"{self.name} is a whole number, not {text!r}")
        if not self.lowest <= int(text) <= self.highest:
            raise InvalidInput(why=f"{self.name} goes from {self.lowest} to {self.highest}")
        return int(text)


def _read_state(text: str) -> str:
    if text not in STATES:
        raise InvalidInput(
            why=f"there is no state {text!r}{suggestion(text, STATES)}; the states are {', '.join(STATES)}"
        )
    return text


def suggestion(text: str, known: tuple[str, ...]) -> str:
    """The known word that looks most like a mistyped one, as the end of a sentence; empty when none does."""
    near = get_close_matches(text, known, 1)
    return f", did you mean {near[0]!r}" if near else ""


_ORDER = (Operator.LE, Operator.LT, Operator.GE, Operator.GT)
_CHOICE = (Operator.EQ, Operator.IN)
_NAME = (*_CHOICE, Operator.GLOB, Operator.CONTAINS)
_COUNT = (*_CHOICE, Operator.RANGE, *_ORDER)
_MESSAGE = (Operator.CONTAINS, Operator.GLOB)
_ANY_ID = 2**63 - 1

FIELDS = {
    field.name: field
    for field in (
        Field("id", Kind.WHOLE, _COUNT, "the task's number", "id:123,124 id:100..200", 1, _ANY_ID),
        Field("queue", Kind.TEXT, _NAME, "its queue", "queue:mail queue:mail*"),
        Field("handler", Kind.TEXT, _NAME, "its handler's name", "handler:smtp.send handler:smtp.*"),
        Field("state", Kind.STATE, _CHOICE, "its state, stored or derived", "state:dead,retrying"),
        Field("key", Kind.TEXT, _NAME, "its business key; a star alone is any", "key:order-17 key:* -key:*"),
        Field("unique", Kind.TEXT, _NAME, "its unique key", "unique:user-7 unique:*"),
        Field("error", Kind.TEXT, _MESSAGE, "its last error", "error~Timeout error:OSError*"),
        Field("failure", Kind.TEXT, _CHOICE, "a kind of failure that it has had", "failure:3fa91c0a77e2b1d4"),
        Field("host", Kind.TEXT, _NAME, "the host that ran it last", "host:web-1 host:web-*"),
        Field("runner", Kind.WHOLE, _CHOICE, "the number of the runner that ran it last", "runner:7", 1, _ANY_ID),
        Field("tag", Kind.TEXT, _CHOICE, "one of its tags", "tag:slow -tag:nightly"),
        Field("by", Kind.TEXT, _NAME, "who submitted it", "by:ana"),
        Field("attempts", Kind.WHOLE, _COUNT, "attempts used", "attempts>3 attempts:0"),
        Field("max_attempts", Kind.WHOLE, _COUNT, "attempts allowed", "max_attempts:1", 1),
        Field("priority", Kind.WHOLE, _COUNT, "9 goes first", "priority>=5", Priority.LOWEST, Priority.HIGHEST),
        Field("bucket", Kind.WHOLE, _COUNT, "the number that it is spread by", "bucket:0..499", 0, BUCKETS - 1),
        Field("due", Kind.OFFSET, _ORDER, "time until it may run; below zero it is late", "due<5m due<-1h"),
        Field("age", Kind.LENGTH, _ORDER[2:] + _ORDER[:2], "time since it was submitted", "age>1h"),
        Field(
            "since", Kind.MOMENT, (Operator.GE,), "finished, or submitted if live, from then on", "since:1h since:9:00"
        ),
        Field("until", Kind.MOMENT, (Operator.LT,), "finished, or submitted if live, before then", "until:2026-11-20"),
        Field("text", Kind.TEXT, (Operator.CONTAINS,), "a part of error, key or handler", 'Timeout "db is gone"'),
    )
}
"""Every field by its name, in the order to show them."""
