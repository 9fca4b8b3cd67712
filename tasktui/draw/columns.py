"""Columns of a table, and how wide each of them is on a screen of a given width."""

from collections.abc import Sequence
from typing import NamedTuple

GAP = 1
"""Cells between columns."""


class Column(NamedTuple):
    """A column.

    Args:
        title: above it.
        width: cells that it has at least.
        right: numbers stand at the right.
        grow: its share of the room that is left.
        drop: columns with the highest number go first when there is not enough room; 0 stays.
    """

    title: str
    width: int
    right: bool = False
    grow: int = 0
    drop: int = 0


def widths(columns: Sequence[Column], room: int) -> list[int]:
    """Give each column its width.

    Args:
        columns: in order.
        room: cells for all of them and the gaps between them.

    Returns:
        Cells for each; 0 for those that are not shown.
    """
    shown = list(columns)
    while _needed(shown) > room and any(column.drop for column in shown):
        shown.remove(max(shown, key=lambda column: column.drop))
    left, shares = max(0, room - _needed(shown)), sum(column.grow for column in shown)
    found = []
    for column in columns:
        if column not in shown:
            found.append(0)
            continue
        extra = left * column.grow // shares if column.grow else 0
        left, shares = left - extra, shares - column.grow
        found.append(column.width + extra)
    return found


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * max(0, len(columns) - 1)
