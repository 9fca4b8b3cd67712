"""The dialog of the capacity."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from textwrap import wrap
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from runner.queries.capacity import CAPACITY_COLUMNS, TENANT_COLUMNS, Capacity, drained_in
from runner.queries.capacity import capacity as read_capacity
from runner.text import formatting
from runner.text.columns import cells
from tasktui.dialogs.answer import AnswerScreen
from tasktui.render.render import content, line
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session

CAPACITY_EVERY = 10.0
"""Seconds to cache a capacity."""


MOST_ROWS = 30


WIDTHS = (-15, 6, 7, 7, 6, 7, 7, 7)
"""Cells of the columns before the text at the end; negative if aligned to the left."""


DRAINED = 10
"""Cells of the time until a queue is drained."""


TITLES = ("QUEUE", *(column.title for column in CAPACITY_COLUMNS[1:]))


WIDE = 92
"""Cells of a line that has room for all columns."""


ALL_COLUMNS, FEW_COLUMNS = (0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 5)
"""The columns before the text at the end; a narrower line has no USED, OLDEST and WORK."""


NEARLY_FULL = 0.8


NOT_NOW = "not now: "
"""The beginning of a reason that another column repeats."""


TENANT_WIDTHS = (-24, 10, 8, 7, DRAINED)


class CapacityScreen(AnswerScreen[None]):
    """The capacity of the live runners for each queue, and when it is drained."""

    FAILING = "Cannot read the capacity"
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
    yield content((_columns(TITLES, width), "muted"))
    for row in capacity.rows[:MOST_ROWS]:
        used, never = row.utilisation or 0.0, row.drained_in == inf
        role = "dead" if never or used > 1 else "retrying" if used >= NEARLY_FULL else "text"
        shown, why = _columns(cells(CAPACITY_COLUMNS, row), width), drained_in(row).removeprefix(NOT_NOW)
        yield content((shown, role))
        if never and not shown.endswith(line(why)):  # The last column has no room for the whole reason.
            yield from (
                content((text, "muted"))
                for text in wrap(f"→ {line(why)}", width, initial_indent=" " * 17, subsequent_indent=" " * 19)
            )
    if len(capacity.rows) > MOST_ROWS:
        yield content((f"and {len(capacity.rows) - MOST_ROWS} more queues: runner capacity lists them", "faint"))
    for limit in capacity.tenants:
        yield content()
        yield content(line(str(limit)))
        yield content((_in_columns([column.title for column in TENANT_COLUMNS], TENANT_WIDTHS), "muted"))
        yield from (content(_in_columns(cells(TENANT_COLUMNS, row), TENANT_WIDTHS)) for row in limit.rows)


def _columns(texts: Sequence[str], width: int) -> str:
    """The cells in columns; the last two share the rest of the line."""
    places = ALL_COLUMNS if width >= WIDE else FEW_COLUMNS
    numbers = _in_columns([texts[place] for place in places], [WIDTHS[place] for place in places])
    start = f"{numbers}  {line(texts[-2]):<{DRAINED}} "
    return f"{start}{line(texts[-1], max(1, width - len(start)))}"


def _in_columns(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Each cell in its width."""
    sized = zip(texts, widths, strict=True)
    return " ".join(f"{line(cell, abs(size)):{'<' if size < 0 else '>'}{abs(size)}}" for cell, size in sized)
