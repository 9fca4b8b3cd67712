"""The cursor of a paged list, with its sort key in SQL."""

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.db.types import EARLIEST, Instant
from runner.errors import InvalidInput
from runner.filter.sort import Sort, SortField

Value: TypeAlias = str | int
"""A sort value: a number, or a time in the database's text form, which keeps all digits."""

BY_ID = (SortField.ID, SortField.AGE)

HIGHEST_ID = 2**63 - 1
LONGEST_ID = 20
"""The largest id of both databases, and its length with a sign."""


class Cursor(NamedTuple):
    """The position of a task in a list.

    Args:
        values: its sort values without the id; empty if the list is sorted by id.
    """

    id: int
    values: tuple[Value, ...] = ()


def written(cursor: Cursor, sort: Sort) -> str:
    """The text of a cursor: the id if the list is sorted by id, otherwise an opaque word."""
    if sort.by in BY_ID:
        return str(cursor.id)
    text = json.dumps([cursor.id, *cursor.values], separators=(",", ":")).encode()
    packed = zlib.crc32(text).to_bytes(4, "big") + text
    return f"{sort.by}.{urlsafe_b64encode(packed).decode().rstrip('=')}"


def parse_cursor(text: str, sort: Sort) -> Cursor:
    """Parse the text of a cursor for a list in the same order, or its reverse.

    Raises:
        InvalidInput: the text is not a cursor of this list.
    """
    by, dot, encoded = text.partition(".")
    try:
        if dot and sort.by == by:
            return _unpacked(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        if not dot and sort.by in BY_ID and len(text) <= LONGEST_ID and abs(int(text)) <= HIGHEST_ID:
            return Cursor(int(text))
    except (ValueError, TypeError):
        pass
    raise InvalidInput(
        why=f"{text[:60]!r} is not a cursor of a list sorted by {sort.by}; use the one that the previous page printed"
    )


def _unpacked(packed: bytes) -> Cursor:
    check, text = packed[:4], packed[4:]
    if zlib.crc32(text).to_bytes(4, "big") != check:
        raise ValueError(check)
    id, *values = json.loads(text)
    return Cursor(id, tuple(values))


SCAN_LIMIT = 20_000
"""Maximum number of rows that one search reads where no index serves the filter."""


class AccessPath(Enum):
    """How a search read the tables."""

    INDEX = auto()
    """Along an index that serves the whole filter."""

    FILTERED = auto()
    """Along an index, with the rest of the filter checked row by row."""

    SORTED = auto()
    """The newest rows, up to the scan limit, were read and sorted."""


@dataclass(frozen=True, slots=True)
class Page:
    """The tasks that one search found.

    Args:
        cursors: the position of each task.
        next: the cursor of the next search; None at the end.
        capped: True if the search stopped at the scan limit; a sorted result then covers only the newest tasks.
        access_path: how the search read the tables.
    """

    cursors: list[Cursor]
    next: Cursor | None
    capped: bool
    access_path: AccessPath = AccessPath.INDEX

    @property
    def ids(self) -> list[int]:
        """The ids of the tasks, in their order."""
        return [cursor.id for cursor in self.cursors]


class SortKey(NamedTuple):
    """A sort key; the id breaks ties.

    Args:
        names: the columns before the id.
        descending: True for the greatest first.
    """

    names: tuple[str, ...]
    descending: bool

    def columns(self, columns: Any) -> list[Any]:
        """The key's columns."""
        return [columns[name] for name in (*self.names, "id")]

    def carried(self, columns: Any) -> list[Any]:
        """The key's columns in a form that survives a round trip without losing digits."""
        return [_carried(column) for column in self.columns(columns)]

    def order(self, columns: Any, *, hidden: bool = False) -> list[Any]:
        """The ORDER BY of the key.

        Args:
            hidden: write the order so that no index can serve it.
        """
        key_columns = self.columns(columns)
        if hidden:
            key_columns[-1] = key_columns[-1] + 0
        return [column.desc() if self.descending else column.asc() for column in key_columns]

    def cursor(self, row: Sequence[Any]) -> Cursor:
        """The cursor of a row of carried columns."""
        *values, id = row
        return Cursor(id, tuple(values))


def compared(columns: Any, key: SortKey, cursor: Cursor, *, beyond: bool) -> sa.ColumnElement[bool]:
    """The condition that a row comes after a cursor, or not after it.

    Args:
        key: the sort key of the list.
        beyond: True for rows after the cursor, False for the others.
    """
    key_columns = key.columns(columns)
    values = [
        literal(value, column.type) for value, column in zip((*cursor.values, cursor.id), key_columns, strict=True)
    ]
    left, right = (
        (key_columns[0], values[0]) if len(key_columns) == 1 else (sa.tuple_(*key_columns), sa.tuple_(*values))
    )
    condition: sa.ColumnElement[bool]
    if beyond:
        condition = left < right if key.descending else left > right
    else:
        condition = left >= right if key.descending else left <= right
    return condition


def literal(value: Any, kind: Any) -> sa.ColumnElement[Any]:
    """A cursor's value as a literal of a column's type."""
    if isinstance(kind, Instant):
        return sa.cast(sa.literal(value, sa.Text), Instant)
    return sa.literal(value, kind)


def least(column: Any) -> sa.ColumnElement[Any]:
    """A column with NULL replaced by the least value, so that every row has a position; no index serves it."""
    default = sa.literal(EARLIEST, Instant) if isinstance(column.type, Instant) else sa.literal(0, column.type)
    return sa.func.coalesce(column, default, type_=column.type).label(column.name)


def _carried(column: Any) -> Any:
    return sa.cast(column, sa.Text) if isinstance(column.type, Instant) else column
