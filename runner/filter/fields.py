"""The fields of filters with their kinds of value, operators and help, and the orders of a task list."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from difflib import get_close_matches
from enum import Enum, StrEnum, auto
from typing import NamedTuple, TypeAlias

from runner.errors import InvalidInput, InvalidSort
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
            case FieldKind.WHOLE:
                return self._read_whole(text)
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
        if not _WHOLE_NUMBER.fullmatch(text):
            raise InvalidInput(why=f"{self.name} must be a whole number, not {text!r}")
        if not self.lowest <= int(text) <= self.highest:
            raise InvalidInput(why=f"{self.name} must be from {self.lowest} to {self.highest}, not {text}")
        return int(text)


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


ASC, DESC = "asc", "desc"
UP, DOWN = "↑", "↓"


class SortField(StrEnum):
    """The sort fields."""

    ID = "id"
    AGE = "age"
    RUN_AT = "run_at"
    PRIORITY = "priority"
    CLAIMED_AT = "claimed_at"
    FINISHED_AT = "finished_at"
    ATTEMPTS = "attempts"


class Meaning(NamedTuple):
    """The description of a sort field.

    Args:
        of: the tasks that have the field; the list leaves out all others.
        ascending: a description of the ascending order.
        descending: a description of the descending order.
        falls: True if the default order is descending.
    """

    of: str
    ascending: str
    descending: str
    falls: bool


SORTS = {
    SortField.ID: Meaning("all tasks", "oldest first", "newest first", falls=True),
    SortField.AGE: Meaning("all tasks", "newest first", "oldest first", falls=True),
    SortField.RUN_AT: Meaning("waiting tasks", "due first", "due last first", falls=False),
    SortField.PRIORITY: Meaning("waiting tasks", "lowest first", "highest first, in claim order", falls=True),
    SortField.CLAIMED_AT: Meaning("running tasks", "running longest first", "started last first", falls=False),
    SortField.FINISHED_AT: Meaning("finished tasks", "ended longest ago first", "ended last first", falls=True),
    SortField.ATTEMPTS: Meaning("all", "fewest first", "most first", falls=True),
}
"""Every sort field, in display order."""


@dataclass(frozen=True, slots=True)
class Sort:
    """An order; its text parses back to an equal one.

    Args:
        by: the sort field; the id breaks ties.
        descending: True for the greatest first.
    """

    by: SortField = SortField.ID
    descending: bool = True

    def __str__(self) -> str:
        return f"{self.by} {DESC if self.descending else ASC}"

    @property
    def words(self) -> str:
        """A description of the order."""
        meaning = SORTS[self.by]
        return meaning.descending if self.descending else meaning.ascending

    @property
    def arrow(self) -> str:
        """The direction of the values, down the list."""
        return DOWN if self.descending else UP

    @property
    def reverse(self) -> "Sort":
        """The reverse order."""
        return Sort(self.by, not self.descending)


NEWEST = Sort(SortField.ID, descending=True)


def sort_by(name: str, *, descending: bool | None = None) -> Sort:
    """The order by a field.

    Args:
        descending: the direction; None for the default of the field.

    Raises:
        InvalidSort: the field is unknown.
    """
    if name not in SORTS:
        fields = ", ".join(SORTS)
        raise InvalidSort(sort=repr(name[:30]), why=f"the sort fields are {fields}{suggestion(name, tuple(SORTS))}")
    by = SortField(name)
    return Sort(by, SORTS[by].falls if descending is None else descending)


def parse_sort(text: str) -> Sort:
    """Parse an order: `run_at`, `run_at desc`.

    Raises:
        InvalidSort: the text is not an order.
    """
    name, *direction = text.split() or [""]
    if len(direction) > 1 or not {ASC, DESC}.issuperset(direction):
        raise InvalidSort(sort=repr(text[:40]), why=f"write a field, then {ASC}, {DESC} or nothing")
    return sort_by(name, descending=direction[0] == DESC if direction else None)
