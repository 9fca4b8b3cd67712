"""The gate in front of the screen: whatever a database holds becomes harmless text here, and nowhere else.

Everything that widgets are given passes through `line`, `block` or one of the cells below, and is drawn as plain text:
markup in it means nothing.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from runner.people import cells
from runner.people.terminal import CUT, clean, state_text
from runner.store.observe import TaskRow
from runner.task import Shown

LONGEST_LINE = 400

COLOURS = {
    Shown.RETRYING: "yellow",
    Shown.RUNNING: "cyan",
    Shown.LOST: "bold red",
    Shown.SUCCEEDED: "green",
    Shown.DEAD: "red",
    Shown.CANCELLED: "dim",
    Shown.SCHEDULED: "dim",
}
"""Beside sign and word, never instead of them."""


_MODULE = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?:: |$))")


class Cell(NamedTuple):
    """What stands in one cell of a table, and its Rich style."""

    text: str
    style: str = ""


class Line(NamedTuple):
    """One row of a table.

    Args:
        cells: one for each column.
        struck: it is over since it was loaded; its first cell is struck through.
    """

    cells: tuple[Cell, ...]
    struck: bool = False


def line(value: object, limit: int = LONGEST_LINE) -> str:
    """A value on one line, safe to show; NOTHING where there is none."""
    return clean(cells.text(value), limit)


def block(text: str) -> str:
    """A text that has its lines to itself, safe to show."""
    return clean(text, newlines=True)


def content(*parts: str | tuple[str, str]) -> Content:
    """Put safe texts together, each plain or with a style; none of them is read as markup."""
    return Content.assemble(*parts)


def lines(parts: Iterable[Content]) -> Content:
    """Put contents below each other."""
    return Content("\n").join(parts)


def state(shown: Shown) -> Cell:
    """A state: sign and word, and a colour besides."""
    return Cell(state_text(shown), COLOURS.get(shown, ""))


def task_line(task: TaskRow, at: datetime, *, ended: bool = False, gone: bool = False) -> Line:
    """A task of the list, at the database's time `at`.

    Args:
        task: as it was read last.
        at: the database's time then.
        ended: it has ended since it was loaded.
        gone: it has been pruned since.
    """
    requested = "!" if task.cancel_requested else ""
    shown = state(task.shown)
    return Line(
        (
            Cell(str(task.id)),
            Cell("gone", "dim") if gone else Cell(f"{shown.text}{requested}", shown.style),
            Cell(line(task.queue)),
            Cell(line(task.handler)),
            Cell(line(task.key)),
            Cell(cells.tries(task.attempt, task.max_attempts)),
            Cell(cells.distance(task.telling, at)),
            Cell(cells.since(task.submitted_at, at)),
            Cell(brief(task.remark)),
        ),
        struck=ended or gone,
    )


def brief(error: str | None) -> str:
    """The first line of an error for a narrow cell: its type without the module that it comes from."""
    return _MODULE.sub("", cells.reason(error), count=1)


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """Cut or pad a safe text to a number of terminal cells."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + CUT if width > 0 else ""
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding
