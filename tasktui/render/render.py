"""Texts, cells and columns of tables. Every text from a database is sanitized by this module.

Widgets accept only the output of `line`, `block` and the cells below, and draw it as plain text without markup.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Self

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from runner.model.task import Shown, State
from runner.text import formatting
from runner.text.sanitize import CUT, before_number, clean
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

    @classmethod
    def of(cls, parts: "Sequence[tuple[str, str]]", style: str) -> Self:
        """A cell with a text in several styles."""
        return cls("".join(text for text, _ in parts), style, tuple(parts))


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
    return Cell(formatting.state(shown), f"{strong}{shown}")


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
    """Truncate or pad a sanitized text to a width in terminal cells; no number loses digits if a text is before it."""
    if cell_len(text) > width:
        cut = set_cell_size(text, width - 1) if width > 0 else ""
        if cut and text.startswith(cut):
            cut = text[: before_number(text, len(cut))]
        return set_cell_size(cut + CUT, width) if width > 0 else ""
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
        name: the texts are names: they get the first spare cells, and are cut in the middle, so that they differ.
    """

    title: str
    width: int
    right: bool = False
    grow: int = 0
    drop: int = 0
    name: bool = False

    @property
    def follows_content(self) -> bool:
        """True if its width depends on its texts: no number is cut, and a name or a growing text only without room."""
        return self.right or self.name or self.grow > 0


SHORT_NAME = 16
"""Cells of a name for which other columns are hidden."""


def widths(columns: Sequence[ListColumn], room: int, needs: Sequence[int] = ()) -> list[int]:
    """Compute the width of each column.

    Args:
        room: cells for all columns and the gaps between them.
        needs: cells of the longest text of each column; empty if unknown.

    Returns:
        Widths in cells; 0 for hidden columns.
    """
    needed = dict(zip(columns, needs, strict=True)) if any(needs) else {}
    least = {column: column._replace(width=_least(column, needed.get(column))) for column in columns}
    visible = list(columns)
    while _total_width([least[column] for column in visible], room) > room and (hidden := _dropped(visible)):
        visible.remove(hidden)
    sizes = {column: least[column].width for column in visible}
    spare = max(0, room - _total_width([least[column] for column in visible], room))
    lacks = {column: needed.get(column, 0) - sizes[column] for column in visible if column.name}
    while spare and lacks and max(lacks.values()) > 0:  # The longest name gets the next cell.
        column = max(lacks, key=lacks.__getitem__)
        lacks[column], sizes[column], spare = lacks[column] - 1, sizes[column] + 1, spare - 1
    growing = [column for column in visible if column.grow and not (needed and column.name)]
    growing = growing or [column for column in visible if column.grow]
    cut = [column for column in growing if not column.name and needed.get(column, 0) > sizes[column]]
    for column in sorted(cut, key=lambda column: needed[column]):  # The shortest texts are whole first.
        more = min(spare, needed[column] - sizes[column])
        sizes[column], spare = sizes[column] + more, spare - more
    shares = sum(column.grow for column in growing)
    for column in growing:
        extra = spare * column.grow // shares
        spare, shares = spare - extra, shares - column.grow
        sizes[column] += extra
    return [sizes.get(column, 0) for column in columns]


def _dropped(visible: Sequence[ListColumn]) -> ListColumn | None:
    """The next column to hide: by its number, then the last one of numbers, which are never cut; None for neither."""
    by_number = max(visible, key=lambda column: column.drop, default=None)
    if by_number is not None and by_number.drop:
        return by_number
    return next((column for column in reversed(visible[1:]) if column.right and not column.grow), None)


def _least(column: ListColumn, needed: int | None) -> int:
    """The cells that a column needs at least; a name column without names gives its room to others."""
    if needed is None:
        return column.width
    if column.name:
        return max(cell_len(column.title), min(needed, SHORT_NAME))
    return max(column.width, min(needed, SHORT_NAME) if column.right else 0)


def cut_middle(parts: Sequence[tuple[str, str]], width: int, shared: int = 0) -> list[tuple[str, str]]:
    """Cut sanitized texts in the middle if they are longer than a width: names differ at their beginning or end.

    Args:
        shared: characters of a beginning that others share, of which a quarter of the room is kept.
    """
    if sum(cell_len(text) for text, _ in parts) <= width or width < 1:
        return list(parts)
    cells = [(character, spec) for text, spec in parts for character in text]
    if shared:
        kept = min(shared, width // 4)
        return [*cells[:kept], (CUT, "faint"), *cut_middle(cells[shared:], width - kept - 1)]
    head: list[tuple[str, str]] = []
    tail: list[tuple[str, str]] = []
    room = width - 1
    while cells:
        taken = cells.pop(0) if len(head) <= len(tail) else cells.pop()
        room -= cell_len(taken[0])
        if room < 0:
            break
        (head if len(head) <= len(tail) else tail).append(taken)
    return [*head, (CUT, "faint"), *reversed(tail)]


def shared_beginnings(names: Iterable[str], width: int, shared: int = 0) -> dict[str, int]:
    """The characters that each sanitized name shares with those that a cut in the middle would make the same text.

    Args:
        width: cells, enough for a few letters.
        shared: characters that all names share.

    Returns:
        The numbers by name, for `cut_middle`; 0 for names that differ when cut.
    """
    alike = defaultdict[str, list[str]](list)
    for name in names:
        alike["".join(text for text, _ in cut_middle([(name, "")], width, shared))].append(name)
    numbers: dict[str, int] = {}
    for group in alike.values():
        places = enumerate(zip(*group, strict=False))
        common = next((place for place, signs in places if len({*signs}) > 1), min(map(len, group)))
        differ = len(group) > 1 and common > shared
        numbers |= shared_beginnings(group, width, common) if differ else dict.fromkeys(group, shared)
    return numbers


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
