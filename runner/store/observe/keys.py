"""keys: what a list is sorted by, as columns, as an order, and as places between two rows of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import EARLIEST, Instant
from runner.store.observe.bookmark import Bookmark


class Key(NamedTuple):
    """What is sorted by, last of all by the id.

    Args:
        names: of columns before the id.
        descending: the greatest comes first.
    """

    names: tuple[str, ...]
    descending: bool

    def columns(self, columns: Any) -> list[Any]:
        """Its columns."""
        return [columns[name] for name in (*self.names, "id")]

    def carried(self, columns: Any) -> list[Any]:
        """Its columns, in a form that can be fetched, and be passed back to the last digit."""
        return [_carried(column) for column in self.columns(columns)]

    def order(self, columns: Any, *, hidden: bool = False) -> list[Any]:
        """The order, as a statement ends with it.

        Args:
            columns: of a table.
            hidden: written so that no index offers it.
        """
        found = self.columns(columns)
        if hidden:
            found[-1] = found[-1] + 0
        return [column.desc() if self.descending else column.asc() for column in found]

    def bookmark(self, row: Sequence[Any]) -> Bookmark:
        """The place of a row of carried columns."""
        *values, id = row
        return Bookmark(id, tuple(values))


def compared(columns: Any, key: Key, mark: Bookmark, *, beyond: bool) -> sa.ColumnElement[bool]:
    """The condition that a row comes behind a place in the list, or not behind it.

    Args:
        columns: of a table.
        key: of the list.
        mark: the place.
        beyond: behind it; else before it, or there.
    """
    mine = key.columns(columns)
    there = [given(value, column.type) for value, column in zip((*mark.values, mark.id), mine, strict=True)]
    one, other = (mine[0], there[0]) if len(mine) == 1 else (sa.tuple_(*mine), sa.tuple_(*there))
    condition: sa.ColumnElement[bool]
    if beyond:
        condition = one < other if key.descending else one > other
    else:
        condition = one >= other if key.descending else one <= other
    return condition


def given(value: Any, kind: Any) -> sa.ColumnElement[Any]:
    """A value of a place, for comparing it with a column of this type."""
    if isinstance(kind, Instant):
        return sa.cast(sa.literal(value, sa.Text), Instant)
    return sa.literal(value, kind)


def least(column: Any) -> sa.ColumnElement[Any]:
    """A column with something in the place of nothing, so that every row has its place; no index offers it."""
    nothing = sa.literal(EARLIEST, Instant) if isinstance(column.type, Instant) else sa.literal(0, column.type)
    return sa.func.coalesce(column, nothing, type_=column.type).label(column.name)


def _carried(column: Any) -> Any:
    return sa.cast(column, sa.Text) if isinstance(column.type, Instant) else column
