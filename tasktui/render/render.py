"""Texts, cells and columns of tables. Every text from a database is sanitized by this module.

Widgets accept only the output of `line`, `block` and the cells below, and draw it as plain text without markup.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from runner.model.task import Shown, State
from runner.text import formatting
from runner.text.sanitize import CUT, clean, state_text
from tasktui.render.theme import content_style

if TYPE_CHECKING:
    from runner.queries.task_list.row import TaskRow

MAX_LINE = 400

LATE = timedelta(minutes=5)
"""A ready task that is due for longer waits too long."""


class Cell(NamedTuple):
    """A table cell.

    Args:
        text: sanitized text.
        style: specification of its style, see `Palette`.
        parts: the same text in several styles; None for a single one.
    """

    text: str
    style: str = ""
    parts: "tuple[tuple[str, str], ...] | None" = None


class RenderedRow(NamedTuple):
    """A row of a table.

    Args:
        struck: the task has finished since it was loaded; its first cell is struck through.
    """

    cells: tuple[Cell, ...]
    struck: bool = False


def line(value: object, limit: int = MAX_LINE) -> str:
    """A sanitized value on one line; NOTHING for an empty one."""
    return clean(formatting.text(value), limit)


def block(text: str) -> str:
    """A sanitized text of several lines."""
    return clean(text, newlines=True)


def content(*parts: str | tuple[str, str]) -> Content:
    """Join sanitized texts, plain or with the specification of a style, without markup."""
    return Content.assemble(*(part if isinstance(part, str) else (part[0], content_style(part[1])) for part in parts))


def lines(parts: Iterable[Content]) -> Content:
    """Join contents as lines."""
    return Content("\n").join(parts)


def state(shown: Shown) -> Cell:
    """A state with sign, word and colour."""
    strong = "bold " if shown in (Shown.DEAD, Shown.LOST) else ""
    return Cell(state_text(shown), f"{strong}{shown}")


def handler_cell(name: str, spec: str = "text") -> Cell:
    """A sanitized handler name: its module is muted, its function is not."""
    module, dot, function = name.rpartition(".")
    return Cell(name, spec, ((module + dot, "muted"), (function, spec)) if dot else None)


def when_text(task: "TaskRow", at: datetime) -> tuple[str, str]:
    """The most relevant time of a task in words, and its role: `for 41s`, `due 9m`, `in 2m31s`, `4m ago`."""
    moment = task.relevant_time
    if task.state is State.BLOCKED:
        return "", "muted"
    if moment is None:
        return formatting.NOTHING, "faint"
    if task.state.final:
        return formatting.distance(moment, at), "muted"
    if task.state is State.RUNNING:
        return f"for {formatting.since(moment, at)}", str(task.shown)
    if moment <= at:
        late = task.shown is Shown.RETRYING or at - moment > LATE
        return f"due {formatting.since(moment, at)}", "retrying" if late else "muted"
    return formatting.distance(moment, at), "text"


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """Truncate or pad a sanitized text to a width in terminal cells."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + CUT if width > 0 else ""
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


GAP, ROOMY = 1, 96
"""Cells between columns; in a table of at least so many cells, one more between a number and the text after it."""


class ListColumn(NamedTuple):
    """A table column.

    Args:
        width: minimum width in cells.
        right: align right, for numbers.
        grow: share of spare width.
        drop: columns with the highest number are hidden first on a narrow screen; 0 always stays.
    """

    title: str
    width: int
    right: bool = False
    grow: int = 0
    drop: int = 0


def widths(columns: Sequence[ListColumn], room: int) -> list[int]:
    """Compute the width of each column.

    Args:
        room: cells for all columns and the gaps between them.

    Returns:
        Widths in cells; 0 for hidden columns.
    """
    visible = list(columns)
    while _total_width(visible, room) > room and any(column.drop for column in visible):
        visible.remove(max(visible, key=lambda column: column.drop))
    spare, shares = max(0, room - _total_width(visible, room)), sum(column.grow for column in visible)
    widths_in_order = []
    for column in columns:
        if column not in visible:
            widths_in_order.append(0)
            continue
        extra = spare * column.grow // shares if column.grow else 0
        spare, shares = spare - extra, shares - column.grow
        widths_in_order.append(column.width + extra)
    return widths_in_order


def gaps(columns: Sequence[ListColumn], room: int) -> list[int]:
    """Blanks after each of the visible columns of a table."""
    return [
        GAP + (room >= ROOMY and _touch(one, other)) for one, other in zip(columns, [*columns[1:], None], strict=True)
    ]


def _touch(number: ListColumn, text: ListColumn | None) -> bool:
    """True if a number ends where the text after it begins; some texts begin with a blank of their own."""
    return text is not None and number.right and not text.right and not text.title.startswith(" ")


def _total_width(columns: Sequence[ListColumn], room: int) -> int:
    return sum(column.width for column in columns) + sum(gaps(columns, room)[:-1])
