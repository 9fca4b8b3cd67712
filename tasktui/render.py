"""The gate in front of the screen: whatever a database holds becomes harmless text here, and nowhere else.

Everything that widgets are given passes through `line`, `block` or one of the cells below, and is drawn as plain text:
markup in it means nothing.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from runner.store.observe import TaskRow
from runner.task import Shown
from runner.terminal import CUT, SIGNS, clean, one_line
from runner.times import format_age, format_moment

NOTHING = "-"
"""Stands where there is no value."""

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
    return NOTHING if value is None or value == "" else clean(str(value), limit)


def block(text: str) -> str:
    """A text that has its lines to itself, safe to show."""
    return clean(text, newlines=True)


def reason(error: str | None) -> str:
    """The first line of an error."""
    return one_line(error) if error else ""


def content(*parts: str | tuple[str, str]) -> Content:
    """Put safe texts together, each plain or with a style; none of them is read as markup."""
    return Content.assemble(*parts)


def lines(parts: Iterable[Content]) -> Content:
    """Put contents below each other."""
    return Content("\n").join(parts)


def age(length: timedelta | float | None) -> str:
    """A length of time for a glance.

    Args:
        length: seconds or timedelta; None for nothing.
    """
    if length is None:
        return NOTHING
    try:
        return format_age(length if isinstance(length, timedelta) else timedelta(seconds=length))
    except (OverflowError, ValueError):  # whoever wrote the row by hand may have written anything
        return "?"


def duration(length: timedelta | float | None) -> str:
    """How long something took: an age, but telling apart what takes less than a second."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds is None or not 0 <= seconds < 1:
        return age(seconds)
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f}ms"


def since(moment: datetime | None, at: datetime) -> str:
    """How long ago something was, at the time `at`."""
    return NOTHING if moment is None else age(at - moment)


def distance(moment: datetime | None, at: datetime) -> str:
    """How far away a time is: `in 3m10s`, `now`, `2m ago`."""
    if moment is None:
        return NOTHING
    if abs(moment - at) < timedelta(seconds=1):
        return "now"
    return f"in {age(moment - at)}" if moment > at else f"{age(at - moment)} ago"


def exact(moment: datetime | None, at: datetime, zone: tzinfo) -> str:
    """A time to the second in the operator's zone, and how far away it is."""
    return NOTHING if moment is None else f"{format_moment(moment, zone)}  {distance(moment, at)}"


def tries(task: TaskRow) -> str:
    """Attempts used and allowed: `2/4`."""
    return f"{task.attempt}/{task.max_attempts}" if task.max_attempts else str(task.attempt)


def state(shown: Shown) -> Cell:
    """A state: sign and word, and a colour besides."""
    return Cell(f"{SIGNS[shown]} {shown.value}", COLOURS.get(shown, ""))


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
            Cell(tries(task)),
            Cell(distance(when(task), at)),
            Cell(since(task.submitted_at, at)),
            Cell(reason(task.error)),
        ),
        struck=ended or gone,
    )


def when(task: TaskRow) -> datetime | None:
    """The time that tells most about a task: its end, the start of its run, or when it is due."""
    if task.state.final:
        return task.finished_at
    return task.claimed_at if task.shown in (Shown.RUNNING, Shown.LOST) else task.run_at


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """Cut or pad a safe text to a number of terminal cells."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + CUT if width > 0 else ""
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding
