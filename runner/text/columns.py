"""The columns of a table of read models."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

S = TypeVar("S")
T = TypeVar("T")

thousands: Callable[[Any], str] = "{:,}".format
"""A number with a comma after each three digits."""


class Column(NamedTuple, Generic[T]):
    """A column of a read model.

    Args:
        title: its heading.
        value: reads it from a row.
        text: the cell of a value.
        right: align right, for numbers and ages.
        fixed: never truncate, even on a narrow terminal.
        wraps: take several lines in place of a cut.
    """

    title: str
    value: Callable[[T], Any]
    text: Callable[[Any], str] = str
    right: bool = False
    fixed: bool = False
    wraps: bool = False

    def of(self, part: Callable[[S], T]) -> "Column[S]":
        """The same column of rows that have the row as a part."""
        return Column(self.title, lambda row: self.value(part(row)), self.text, self.right, self.fixed, self.wraps)

    def cell(self, row: T) -> str:
        """The cell of a row."""
        return self.text(self.value(row))


def figure(title: str, value: Callable[[T], Any], text: Callable[[Any], str] = str) -> Column[T]:
    """A column of numbers or ages."""
    return Column(title, value, text, right=True, fixed=True)


def cells(columns: Iterable[Column[T]], row: T) -> list[str]:
    """The cells of a row."""
    return [column.cell(row) for column in columns]
