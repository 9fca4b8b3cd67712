"""Tolerant reading of rows, so that no value from a foreign client breaks a list.

SQLite stores any type in any column; PostgreSQL stores times outside of Python's range. An unreadable value becomes
None, zero or a replacement character.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar, get_type_hints

import sqlalchemy as sa

from runner.db.dialects import Dialect
from runner.db.transaction import Transaction
from runner.db.types import Instant, instant_from_text
from runner.model.task import Shown, State

T = TypeVar("T")


def readable(source: Transaction | Dialect, columns: Iterable[Any]) -> list[sa.ColumnElement[Any]]:
    """The columns in a form that the driver can always fetch, under their own names."""
    dialect = source.dialect if isinstance(source, Transaction) else source
    return [_fetchable(dialect, column).label(column.name) for column in columns]


def _fetchable(dialect: Dialect, column: Any) -> sa.ColumnElement[Any]:
    match column.type:
        case Instant():
            return dialect.readable_time(column)
        case sa.Boolean() | sa.Float():
            return sa.type_coerce(column, sa.types.NullType())
        case _:
            coerced: sa.ColumnElement[Any] = column
            return coerced


def moment(value: Any) -> datetime | None:
    """A time; None if unreadable."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    try:
        return instant_from_text(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def text(value: Any) -> str | None:
    """A text; bytes, which SQLite may return, are decoded with replacement characters."""
    match value:
        case None | str():
            return value
        case bytes():
            return value.decode(errors="replace")
    return str(value)


def as_text(value: Any) -> str:
    """A text from a column without NULL."""
    return text(value) or ""


def as_int(value: Any) -> int:
    """An integer; zero for any other value."""
    return value if isinstance(value, int) else 0


def number(value: Any) -> float | None:
    """A number; None for any other value."""
    return float(value) if isinstance(value, (int, float)) else None


def _span(value: Any) -> timedelta | None:
    try:
        return None if (seconds := number(value)) is None else timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None


def texts(value: Any) -> tuple[str, ...]:
    """The texts in a JSON array; none for any other value."""
    try:
        items = json.loads(as_text(value) or "[]")
    except (ValueError, RecursionError):
        return ()
    return tuple(item for item in items if isinstance(item, str)) if isinstance(items, list) else ()


READERS: Mapping[Any, Callable[[Any], Any]] = {
    int: as_int,
    int | None: lambda value: None if value is None else as_int(value),
    float: lambda value: number(value) or 0.0,
    float | None: number,
    bool: lambda value: value in (1, True),
    str: as_text,
    str | None: text,
    tuple[str, ...]: texts,
    datetime | None: moment,
    timedelta | None: _span,
    State: State,
    Shown: Shown,
}
"""The functions that read a value, by the type of its field."""


def from_row(kind: Callable[..., T], row: Mapping[Any, Any], **others: Any) -> T:
    """A read model from a row of `readable` columns: each field from the column of its name, as its type demands.

    A column that only one of two tables has, such as `finished_at`, reads as NULL from the other one.

    Args:
        kind: a dataclass or a named tuple.
        others: values of the fields that are not columns.
    """
    columns = dict(zip(row.keys(), row.values(), strict=True))  # each look-up in a row of SQLAlchemy is slow
    values = {name: read(columns.get(name)) for name, read in _readers(kind) if name not in others}
    return kind(**values, **others)


@cache
def _readers(kind: Callable[..., Any]) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    return tuple((name, READERS[hint]) for name, hint in get_type_hints(kind).items() if hint in READERS)


def values_of(recorded: str | None) -> Mapping[str, Any]:
    """The values of an audit entry; empty if they are unreadable."""
    with suppress(ValueError, RecursionError):
        values = json.loads(recorded or "{}")
        return values if isinstance(values, dict) else {}
    return {}


def read_time(value: object) -> datetime | None:
    """A time from a row or from an audit entry; None if it is missing or unreadable."""
    with suppress(ValueError):
        if isinstance(value, str) and (parsed := datetime.fromisoformat(value)).tzinfo is not None:
            return parsed
    return moment(value)
