"""Table: rows by key, of which only the visible ones are drawn.

The cursor and the marks belong to keys, not to positions.
"""

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Generic, TypeVar

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Offset, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from tasktui.render.render import Cell, ListColumn, RenderedRow, cut_middle, fitted, gaps, shared_beginnings, widths
from tasktui.render.rows import BLANK, Part, fit, strip_of, width_of
from tasktui.render.theme import current, style
from tasktui.widgets.drag import selectable, selected_text

K = TypeVar("K", bound=Hashable)

GUTTER = 2
"""Cells on the left for the cursor and mark signs."""

MARGIN = 1
"""Cells on the right, as beside the titles of the panels."""


HOLD = 5.0
"""Seconds after a move of the cursor in which the rows keep their order."""

TREMBLE = 1
"""Cells by which the pointer may move during a click."""

HELD = ", order held"
"""The mark of rows that keep an order which is no longer theirs."""


class Table(ScrollView, Generic[K], can_focus=True):
    """Rows by key.

    If the key under the cursor disappears, the table has no cursor until the operator moves it. An action never
    applies to the row that took the position.
    """

    DEFAULT_CSS = "Table { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("home,g", "first", "First", show=False),
        Binding("end,G", "last", "Last", show=False),
        Binding("enter", "select", "Open", show=False),
    ]

    class CursorMoved(Message):
        """The cursor has moved."""

    @dataclass(eq=False, repr=False)
    class Selected(Message):
        """Enter or a second click selected the row under the cursor."""

        key: Any

    @dataclass(eq=False, repr=False)
    class HeadClicked(Message):
        """A click on the title of a column, without the arrow of the sorted one."""

        title: str

    def __init__(self, columns: Sequence[ListColumn], *, id: str | None = None, beside: bool = False) -> None:
        """Make an empty table.

        Args:
            beside: it is beside another one, so that only the one with the focus shows its cursor.
        """
        super().__init__(id=id)
        self.columns = tuple(columns)
        self._beside = beside
        self.keys: tuple[K, ...] = ()
        self.cursor: K | None = None
        self._positions: dict[K, int] = {}
        self._last_position = 0
        self._line: Callable[[K], RenderedRow] = lambda _key: RenderedRow(())
        self._marked: Collection[K] = ()
        self._titles: Collection[K] = ()
        self._lines: dict[K, RenderedRow] = {}
        self._order: tuple[object, ...] = ()
        self._arranged_for: tuple[object, ...] = ()
        self._arranged: list[tuple[ListColumn, int, int]] = []
        self._needs: dict[tuple[ListColumn, ...], tuple[int, ...]] = {}
        self._shared: dict[int, dict[str, int]] = {}
        self._moved_at, self._sort = -inf, ""
        self._pressed_at = Offset()

    def steady(self, keys: Iterable[K], sort: str = "") -> tuple[K, ...]:
        """Keep the present order of rows while the operator navigates, so that none jumps under the cursor.

        Args:
            keys: unique keys in their new order.
            sort: name of that order; the rows of another one do not wait.

        Returns:
            The keys for `show`; new ones come last while the order is held.
        """
        ordered = dict.fromkeys(keys)
        if sort == self._sort and time.monotonic() - self._moved_at < HOLD:
            present = [key for key in self.keys if key in ordered]
            ordered = dict.fromkeys([*present, *ordered])
        self._sort = sort
        return tuple(ordered)

    def show(
        self,
        keys: Sequence[K],
        line: Callable[[K], RenderedRow],
        marked: Collection[K] = (),
        titles: Collection[K] = (),
    ) -> None:
        """Show rows; the cursor stays on its key.

        Args:
            keys: unique keys in order.
            line: returns the row of a key; called for visible keys only.
            marked: marked keys.
            titles: keys of rows between the others, whose one cell takes the whole width; the cursor skips them.
        """
        was_empty, lines, marks = not self.keys, self._lines, self._marked
        is_in_sight = self.cursor in self.visible_keys
        self.keys, self._line, self._marked, self._lines = tuple(keys), line, marked, {}
        self._titles = titles
        self._positions = {key: position for position, key in enumerate(self.keys)}
        if self.cursor not in self._positions:
            self.cursor = next((key for key in self.keys if key not in titles), None) if was_empty else None
        elif self.cursor is not None:
            self._last_position = self._positions[self.cursor]
        self.virtual_size = Size(self.size.width, len(self.keys) + 1)
        if is_in_sight and self.cursor is not None:
            self._reveal(self._positions[self.cursor])
        order = (self.keys, self.cursor, self.columns)
        if self._measure() or order != self._order:
            self._order = order
            self.refresh()
            return
        for key in self.visible_keys:
            if self._line_of(key) != lines.get(key) or (key in marks) != (key in marked):
                self._refresh_line(key)

    @property
    def visible_keys(self) -> tuple[K, ...]:
        """The keys on the screen."""
        top = self.scroll_offset.y
        return self.keys[top : top + max(0, self.size.height - 1)]

    def position(self, key: K | None) -> int | None:
        """Return the index of a key; None if it is not in the table."""
        return None if key is None else self._positions.get(key)

    def move_to(self, key: K) -> None:
        """Move the cursor to a key of the table."""
        position, previous = self._positions[key], self.cursor
        self._moved_at = time.monotonic()
        self.cursor, self._last_position = key, position
        self._order = (self.keys, key, self.columns)  # The next `show` compares the rows, and draws what differs.
        if not self._reveal(position):
            for changed in (key, previous):
                self._refresh_line(changed)
        self.post_message(self.CursorMoved())

    def _reveal(self, position: int) -> bool:
        """Scroll to a row that is not on the screen; False if it is."""
        top, room = self.scroll_offset.y, max(1, self.size.height - 1)
        if top <= position < top + room:
            return False
        self.scroll_to(y=position if position < top else position - room + 1, animate=False, immediate=True)
        self.refresh()
        return True

    def action_move(self, by: int) -> None:
        """Move the cursor by a number of rows; restore it at its last position if there is none."""
        if self.keys:
            position = self.position(self.cursor)
            target = self._last_position if position is None else position + by
            self.move_to(self._nearest(min(max(target, 0), len(self.keys) - 1), -1 if by < 0 else 1))

    def _nearest(self, position: int, step: int) -> K:
        """The row at a position; instead of a title the next row in this direction, else the one before it."""
        later = range(position, len(self.keys) if step > 0 else -1, step)
        earlier = range(position, -1 if step > 0 else len(self.keys), -step)
        rows = (self.keys[place] for place in (*later, *earlier))
        return next((key for key in rows if key not in self._titles), self.keys[position])

    def action_page(self, direction: int) -> None:
        """Move the cursor by a screenful."""
        self.action_move(direction * max(1, self.size.height - 2))

    def action_first(self) -> None:
        """Move the cursor to the first row."""
        if self.keys:
            self.move_to(self._nearest(0, 1))

    def action_last(self) -> None:
        """Move the cursor to the last row."""
        if self.keys:
            self.move_to(self._nearest(len(self.keys) - 1, -1))

    def action_select(self) -> None:
        """Select the row under the cursor."""
        if self.cursor is not None:
            self.post_message(self.Selected(self.cursor))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Note where a click or a drag begins."""
        self._pressed_at = event.screen_offset

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked row, or select the row if it has the cursor; a drag selects text alone."""
        moved = event.screen_offset - self._pressed_at
        if moved.y or abs(moved.x) > TREMBLE:
            return
        position = self.scroll_offset.y + event.y - 1
        if event.y == 0 and (title := self._title_at(event.x)):
            self.post_message(self.HeadClicked(title))
        if event.y < 1 or position >= len(self.keys) or self.keys[position] in self._titles:
            return
        if self.keys[position] == self.cursor:
            self.action_select()
        else:
            self.move_to(self.keys[position])

    def _title_at(self, x: int) -> str:
        """The title of the column at a cell; empty between and behind the columns."""
        left = GUTTER
        for column, width, gap in self._layout():
            if left <= x < left + width:
                return column.title.partition(" ")[0]
            left += width + gap
        return ""

    def span(self, position: int) -> tuple[int, int]:
        """The first cell of a column, and its width."""
        layout = self._layout()
        return GUTTER + sum(width + gap for _, width, gap in layout[:position]), layout[position][1]

    def _layout(self) -> list[tuple[ListColumn, int, int]]:
        """The columns with their widths and the blanks after them; both are 0 for a hidden one."""
        before_layout = self.app.size.width if self.is_attached else 0
        room = (self.scrollable_content_region.width or before_layout) - GUTTER - MARGIN  # without the scroll bar
        needs = self._needs.get(self.columns, ())
        if (self.columns, room, needs) == self._arranged_for:
            return self._arranged
        each = widths(self.columns, room, needs)
        blanks = iter(gaps([column for column, width in zip(self.columns, each, strict=True) if width], room))
        self._arranged_for = (self.columns, room, needs)
        self._arranged = [
            (column, width, next(blanks) if width else 0) for column, width in zip(self.columns, each, strict=True)
        ]
        return self._arranged

    def _measure(self) -> bool:
        """Note the longest texts of the visible rows; True if one is new. No column becomes narrower again.

        Names that a cut would make the same text are cut where they differ.
        """
        known = self._needs.get(self.columns, (0,) * len(self.columns))
        rows = [self._line_of(key).cells for key in self.visible_keys if key not in self._titles]
        needs = tuple(
            max([need, *(cell_len(cells[place].text) for cells in rows if place < len(cells))])
            if column.follows_content
            else 0
            for place, (column, need) in enumerate(zip(self.columns, known, strict=True))
        )
        self._needs = {self.columns: needs}
        cut = [place for place, (column, width, _) in enumerate(self._layout()) if column.name and width < needs[place]]
        shared = {
            place: shared_beginnings({cells[place].text for cells in rows if place < len(cells)}, width)
            for place in cut
            if (width := self._layout()[place][1])
        }
        changed, self._shared = shared != self._shared, shared
        return changed or needs != known

    def render_line(self, y: int) -> Strip:
        """Draw one line; the titles stay at the top."""
        position = self.scroll_offset.y + y - 1
        if y == 0 and self.is_attached:  # All lines are drawn again, after a scroll for example.
            self._measure()
            titles = [Cell(column.title, "muted") for column in self.columns]
            return self._strip([("  ", "")], titles, self.rich_style)
        if position >= len(self.keys):
            return Strip.blank(self.size.width, self.rich_style)
        return selectable(self, self._row(self.keys[position]), position)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The text that the mouse has selected."""
        return selected_text(selection, lambda place: self._row(self.keys[place]).text, len(self.keys))

    def text_select_all(self) -> None:
        """Select nothing: a double click opens a row."""

    def _refresh_line(self, key: K | None) -> None:
        position = self.position(key)
        if position is not None:
            self.refresh_line(position + 1)  # The titles take the first line.

    def _line_of(self, key: K) -> RenderedRow:
        """Return the row of a key, cached until the next `show`."""
        if key not in self._lines:
            self._lines[key] = self._line(key)
        return self._lines[key]

    def _row(self, key: K) -> Strip:
        here = key == self.cursor and (self.has_focus or not self._beside)
        row = self._line_of(key)
        base = self.rich_style
        if key in self._titles:
            return strip_of(row.cells[0].parts or BLANK, self.scrollable_content_region.width, base)
        flat = here and current().flat
        if here:
            base += style("on sel") if self.has_focus or not current().flat else style("bold")
        sign = (">" if current().flat else "▌") if here else " "
        marked = key in self._marked
        signs = [(sign, "accent"), ("●" if marked else " ", "accent")]
        cells = row.cells
        if here and not flat:
            cells = tuple(_strong(cell) for cell in cells)
        if row.struck:
            cells = (cells[0]._replace(style="strike faint", parts=None), *cells[1:])
        return self._strip(signs, cells, base, plain=flat)

    def _strip(self, signs: Sequence[Part], cells: Sequence[Cell], base: Style, *, plain: bool = False) -> Strip:
        room = self.scrollable_content_region.width  # without the scroll bar
        row: list[Part] = list(signs)
        for place, ((column, width, gap), cell) in enumerate(zip(self._layout(), cells, strict=False)):
            if width and column.name:
                shared = self._shared.get(place, {}).get(cell.text, 0)
                row += fit(cut_middle(cell.parts or [(cell.text, cell.style)], width, shared), width)
            elif width and cell.parts is not None:
                padding = (" " * max(0, width - width_of(cell.parts)), "")
                row += [padding, *cell.parts] if column.right and padding[0] else fit(cell.parts, width)
            elif width:
                row.append((fitted(cell.text, width, right=column.right), cell.style))
            if width:
                row.append((" " * gap, ""))
        if plain:  # Colours are hard to read under a reversed cursor.
            row = [(text, "strike" if "strike" in spec else "") for text, spec in row]
        return strip_of(row, room, base)


def _strong(cell: Cell) -> Cell:
    """A cell of the row under the cursor: quiet text of other rows is readable here."""
    quiet = {"": "strong", "text": "strong", "faint": "muted"}
    if cell.parts is not None:
        parts = tuple((text, quiet.get(spec, spec) if text.strip("━╸▁▂▃▄▅▆▇ ") else spec) for text, spec in cell.parts)
        return cell._replace(parts=parts)
    return cell._replace(style=quiet.get(cell.style, cell.style))
