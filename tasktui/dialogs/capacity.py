"""The dialog of the capacity."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from textwrap import wrap
from typing import Any, ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.content import Content

from runner.queries.capacity import CAPACITY_COLUMNS, TENANT_COLUMNS, Capacity, drained_in
from runner.queries.capacity import capacity as read_capacity
from runner.text import formatting
from runner.text.columns import cells
from tasktui.dialogs.answer import AnswerScreen
from tasktui.render.render import ListColumn, content, cut_middle, fitted, gaps, line, shared_beginnings, widths
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session

CAPACITY_EVERY = 10.0
"""Seconds to cache a capacity."""


MOST_ROWS = 30


TITLES = ("QUEUE", *(column.title for column in CAPACITY_COLUMNS[1:]))


DROPS = {"WORK": 7, "OLDEST": 6, "USED": 5, "PER DAY": 4, "CAN/MIN": 3, "IN/MIN": 2, "DECIDED BY": 1}
"""The columns that a narrow line leaves out, those with the highest number first."""


NEARLY_FULL = 0.8


NOT_NOW = "not now: "
"""The beginning of a reason that another column repeats."""


class CapacityScreen(AnswerScreen[None]):
    """The capacity of the live runners for each queue, and when it is drained."""

    FAILING = "Cannot read the capacity"
    TITLE = "Capacity"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("c", "dismiss", "Close")]

    def __init__(self, session: Session) -> None:
        super().__init__(session, "Capacity of the live runners")
        self._cache = TtlCache[Capacity](CAPACITY_EVERY)

    async def read(self) -> object:
        """Read the capacity."""
        return await self._cache.get(None, lambda: self.session.read(read_capacity), self.session.distance)

    def answer_lines(self, answer: Any, width: int) -> Iterable[Content]:
        """Render the capacity."""
        return capacity_lines(answer, width)


def capacity_lines(capacity: Capacity, width: int) -> Iterator[Content]:
    """Render the capacity, with the queues that are drained last first.

    Args:
        width: cells of a line.
    """
    yield content((f"rates of the last {formatting.age(60 * int(capacity.minutes))}", "muted"))
    if not capacity.rows:
        yield content("No tasks are due, and none ended in the last hour.")
        return
    shown = capacity.rows[:MOST_ROWS]
    head, *rows = table(TITLES, [cells(CAPACITY_COLUMNS, row) for row in shown], width)
    yield content((head, "muted"))
    for row, text in zip(shown, rows, strict=True):
        used, never = row.utilisation or 0.0, row.drained_in == inf
        role = "dead" if never or used > 1 else "retrying" if used >= NEARLY_FULL else "text"
        why = drained_in(row).removeprefix(NOT_NOW) if never else cells(CAPACITY_COLUMNS[-1:], row)[0]
        yield content((text, role))
        if not text.rstrip().endswith(line(why)):  # The last column has no room for the whole reason.
            yield from (
                content((part, "muted"))
                for part in wrap(f"→ {line(why)}", width, initial_indent=" " * 4, subsequent_indent=" " * 6)
            )
    if len(capacity.rows) > MOST_ROWS:
        yield content((f"and {len(capacity.rows) - MOST_ROWS} more queues: runner capacity lists them", "faint"))
    for limit in capacity.tenants:
        yield content()
        yield content(line(str(limit)))
        titles = [column.title for column in TENANT_COLUMNS]
        head, *rows = table(titles, [cells(TENANT_COLUMNS, row) for row in limit.rows], width)
        yield content((head, "muted"))
        yield from map(content, rows)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The head and the rows in columns as wide as their texts: a name first, figures, and texts from DRAINED IN on.

    Args:
        width: cells of a line; the last column is cut to it, and others are left out by DROPS.
    """
    texts = [[line(cell) for cell in row] for row in (titles, *rows)]
    needs = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
    last = titles.index("DRAINED IN")
    columns = [
        ListColumn(
            title,
            cell_len(title) if title == "DECIDED BY" else need,
            right=0 < place < last,
            grow=int(title == "DECIDED BY"),
            drop=DROPS.get(title, 0),
            name=not place,
        )
        for place, (title, need) in enumerate(zip(titles, needs, strict=True))
    ]
    sizes = widths(columns, width, needs)
    sized = [each for each in zip(columns, sizes, strict=True) if each[1]]
    blanks = gaps([column for column, _ in sized], width)
    shared = shared_beginnings({row[0] for row in texts}, sizes[0])
    names = (cut_middle([(row[0], "")], sizes[0], shared[row[0]]) for row in texts)
    cut = [["".join(part for part, _ in name), *row[1:]] for name, row in zip(names, texts, strict=True)]
    return ["".join(_cells(row, columns, sizes, blanks)).rstrip() for row in cut]


def _cells(
    row: Sequence[str], columns: Sequence[ListColumn], sizes: Sequence[int], blanks: Sequence[int]
) -> Iterator[str]:
    after = iter(blanks)
    for text, column, size in zip(row, columns, sizes, strict=True):
        if size:
            yield fitted(text, size, right=column.right) + " " * next(after)
