"""The sort key of a list, as columns, as an order, and as conditions between rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.types import EARLIEST, Instant
from runner.queries.task_list.cursor import Cursor


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
            columns: the columns of a table.
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
        columns: the columns of a table.
        key: the sort key of the list.
        cursor: the cursor.
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
