"""Table: lines by key. Cursor and marks are bound to keys, never to places; only the lines in sight are drawn."""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tasktui.draw.columns import GAP, Column, widths
from tasktui.draw.render import Line, fitted

K = TypeVar("K", bound=Hashable)

GUTTER = 2
"""Cells at the left for the signs of cursor and mark."""

STRUCK = Style(strike=True)
HEADER = Style(bold=True, dim=True)
CURSOR = Style(reverse=True)


class Table(ScrollView, Generic[K], can_focus=True):
    """Lines by key.

    When the key under the cursor goes away there is no cursor until the operator moves it: an action never falls on
    whatever came to stand in its place.
    """

    DEFAULT_CSS = "Table { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("home,g", "first", "First", show=False),
        Binding("end,G", "last", "Last", show=False),
        Binding("enter", "choose", "Open", show=False),
    ]

    class Moved(Message):
        """The cursor has been moved."""

    class Chosen(Message):
        """The line under the cursor has been chosen with enter or a second click."""

        def __init__(self, key: Any) -> None:
            self.key = key
            super().__init__()

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.keys: tuple[K, ...] = ()
        self.cursor: K | None = None
        self._places: dict[K, int] = {}
        self._last_place = 0
        self._line: Callable[[K], Line] = lambda _key: Line(())
        self._marked: Collection[K] = ()
        self._lines: dict[K, Line] = {}
        self._order: tuple[object, ...] = ()

    def show(self, keys: Sequence[K], line: Callable[[K], Line], marked: Collection[K] = ()) -> None:
        """Show lines; the cursor stays on its key.

        Args:
            keys: in order, each once.
            line: what stands in the line of a key; asked for those in sight only.
            marked: keys with a mark.
        """
        begin, lines, marks = not self.keys, self._lines, self._marked
        self.keys, self._line, self._marked, self._lines = tuple(keys), line, marked, {}
        self._places = {key: place for place, key in enumerate(self.keys)}
        if self.cursor not in self._places:
            self.cursor = self.keys[0] if begin and self.keys else None
        elif self.cursor is not None:
            self._last_place = self._places[self.cursor]
        self.virtual_size = Size(self.size.width, len(self.keys) + 1)
        order = (self.keys, self.cursor, self.columns)
        if order != self._order:
            self._order = order
            self.refresh()
            return
        for key in self.in_sight:
            if self._line_of(key) != lines.get(key) or (key in marks) != (key in marked):
                self._refresh_line(key)

    @property
    def in_sight(self) -> tuple[K, ...]:
        """The keys whose lines are on the screen."""
        top = self.scroll_offset.y
        return self.keys[top : top + max(0, self.size.height - 1)]

    def place(self, key: K | None) -> int | None:
        """Where the line of a key stands, counted from 0; None when it stands nowhere."""
        return None if key is None else self._places.get(key)

    def put(self, key: K) -> None:
        """Put the cursor on a key that is shown."""
        place, before = self._places[key], self.cursor
        self.cursor, self._last_place = key, place
        top, room = self.scroll_offset.y, max(1, self.size.height - 1)
        if not top <= place < top + room:
            self.scroll_to(y=place if place < top else place - room + 1, animate=False, immediate=True)
            self.refresh()
        else:
            for changed in (key, before):
                self._refresh_line(changed)
        self.post_message(self.Moved())

    def action_move(self, by: int) -> None:
        """Move the cursor by so many lines; without one, to where it was last."""
        if self.keys:
            place = self.place(self.cursor)
            target = self._last_place if place is None else place + by
            self.put(self.keys[min(max(target, 0), len(self.keys) - 1)])

    def action_page(self, direction: int) -> None:
        """Move the cursor by a screenful."""
        self.action_move(direction * max(1, self.size.height - 2))

    def action_first(self) -> None:
        """Move the cursor to the first line."""
        if self.keys:
            self.put(self.keys[0])

    def action_last(self) -> None:
        """Move the cursor to the last line."""
        if self.keys:
            self.put(self.keys[-1])

    def action_choose(self) -> None:
        """Choose the line under the cursor."""
        if self.cursor is not None:
            self.post_message(self.Chosen(self.cursor))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to a line, and choose it when it is there already."""
        place = self.scroll_offset.y + event.y - 1
        if event.y < 1 or place >= len(self.keys):
            return
        if self.keys[place] == self.cursor:
            self.action_choose()
        else:
            self.put(self.keys[place])

    def render_line(self, y: int) -> Strip:
        """Draw one line: the titles stay at the top."""
        place = self.scroll_offset.y + y - 1
        if y == 0:
            return self._drawn("  ", [(column.title, HEADER) for column in self.columns], self.rich_style + HEADER)
        if place >= len(self.keys):
            return Strip.blank(self.size.width, self.rich_style)
        return self._row(self.keys[place])

    def _refresh_line(self, key: K | None) -> None:
        place = self.place(key)
        if place is not None:
            self.refresh_line(place + 1)  # the titles stand above the first one

    def _line_of(self, key: K) -> Line:
        """What stands in the line of a key, asked for once after each `show`."""
        if key not in self._lines:
            self._lines[key] = self._line(key)
        return self._lines[key]

    def _row(self, key: K) -> Strip:
        here = key == self.cursor
        line = self._line_of(key)
        base = self.rich_style + (CURSOR if here and self.has_focus else Style.null())
        signs = ("▶" if here else " ") + ("●" if key in self._marked else " ")
        # Colours under a reversed cursor would be hard to read.
        plain = here and self.has_focus
        cells = [(cell.text, Style.null() if plain else Style.parse(cell.style)) for cell in line.cells]
        if line.struck:
            (text, style), *rest = cells
            cells = [(text, style + STRUCK), *rest]
        return self._drawn(signs, cells, base)

    def _drawn(self, signs: str, cells: Sequence[tuple[str, Style]], base: Style) -> Strip:
        room = self.scrollable_content_region.width  # beside the scroll bar, where there is one
        segments = [Segment(signs, base)]
        given = widths(self.columns, room - GUTTER)
        for column, width, (text, style) in zip(self.columns, given, cells, strict=False):
            if width:
                shown = fitted(text, width, right=column.right) + " " * GAP
                segments.append(Segment(shown, base + style))
        return Strip(segments).adjust_cell_length(room, base)
