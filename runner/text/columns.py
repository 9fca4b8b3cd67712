"""The columns of a read model, from which its table and its JSON object derive."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

thousands: Callable[[Any], str] = "{:,}".format
"""A number with a comma after each three digits."""


class Column(NamedTuple, Generic[T]):
    """A column of a read model.

    Args:
        title: its heading; empty if only the JSON object has it.
        value: reads it from a row.
        text: the cell of a value.
        key: its key in the JSON object; empty if only tables have it.
        right: align right, for numbers and ages.
        fixed: never truncate, even on a narrow terminal.
    """

    title: str
    value: Callable[[T], Any]
    text: Callable[[Any], str] = str
    key: str = ""
    right: bool = False
    fixed: bool = False

    def cell(self, row: T) -> str:
        """The cell of a row."""
        return self.text(self.value(row))


def figure(title: str, value: Callable[[T], Any], text: Callable[[Any], str] = str, key: str = "") -> Column[T]:
    """A column of numbers or ages."""
    return Column(title, value, text, key, right=True, fixed=True)


def cells(columns: Iterable[Column[T]], row: T) -> list[str]:
    """The cells of a row, one for each heading."""
    return [column.cell(row) for column in columns if column.title]


def document(columns: Iterable[Column[T]], row: T) -> dict[str, Any]:
    """The JSON object of a row."""
    return {column.key: column.value(row) for column in columns if column.key}
