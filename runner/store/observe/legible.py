"""legible: fetch rows that a foreign client may have filled with anything, without one of them breaking a list.

SQLite keeps any type in any column; PostgreSQL keeps times that Python has no date for. Whatever cannot be read becomes
None, zero or a replacement sign: a list that shows a hole is of use, a list that cannot be shown is of none.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from runner.columns import Instant, db_now, instant_from_text
from runner.store.transaction import Transaction


def legible(tx: Transaction, columns: Iterable[Any]) -> list[sa.ColumnElement[Any]]:
    """Columns in a form that can always be fetched, under their own names."""
    return [_fetchable(tx, column).label(column.name) for column in columns]


def _fetchable(tx: Transaction, column: Any) -> sa.ColumnElement[Any]:
    match column.type:
        case Instant():
            return tx.dialect.legible(column)
        case sa.Boolean() | sa.Float():
            return sa.type_coerce(column, sa.types.NullType())
        case _:
            coerced: sa.ColumnElement[Any] = column
            return coerced


def moment(value: Any) -> datetime | None:
    """A time; None where there is none that can be read."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    try:
        return instant_from_text(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def text(value: Any) -> str | None:
    """A text; bytes that SQLite was given in its place are shown as well as they can be."""
    match value:
        case None | str():
            return value
        case bytes():
            return value.decode(errors="replace")
    return str(value)


def words(value: Any) -> str:
    """A text where there is always one."""
    return text(value) or ""


def whole(value: Any) -> int:
    """A whole number; zero where something else stands."""
    return value if isinstance(value, int) else 0


def number(value: Any) -> float | None:
    """A number, or None."""
    return float(value) if isinstance(value, (int, float)) else None


def texts(value: Any) -> tuple[str, ...]:
    """The texts in a JSON array; none where something else stands."""
    try:
        found = json.loads(words(value) or "[]")
    except (ValueError, RecursionError):
        return ()
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list) else ()


async def clock(tx: Transaction) -> datetime:
    """The database's time: what every age on a screen counts from."""
    now: datetime = await tx.scalar(sa.select(db_now()))
    return now
