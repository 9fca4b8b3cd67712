"""Canvas, TextBlock and Caps: texts that change often and redraw only where they differ, and keys to click."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from tasktui.render.rows import BLANK, Part, Row, cap, ends, strip_of, width_of
from tasktui.render.theme import current
from tasktui.widgets.drag import selectable, selected_text


class Canvas(Widget):
    """Rows of styled text. A line is drawn again only if its row has changed."""

    DEFAULT_CSS = "Canvas { height: auto; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.rows: tuple[Row, ...] = ()
        self._strips: dict[int, Strip] = {}
        self._drawn_for: tuple[object, ...] = ()

    def draw(self, rows: Sequence[Row]) -> None:
        """Show rows. The same rows again cost nothing."""
        before, self.rows = self.rows, tuple(rows)
        if len(before) != len(self.rows):
            self._strips.clear()
            self.refresh(layout=True)
            return
        for y, (old, new) in enumerate(zip(before, self.rows, strict=True)):
            if old != new:
                self._strips.pop(y, None)
                self.refresh(Region(0, y, self.size.width, 1))

    def redraw(self) -> None:
        """Draw every line again, after a change of the theme."""
        self._strips.clear()
        self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - the signature is Textual's
        """The number of rows."""
        return len(self.rows)

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        width, base = self.size.width, self.rich_style
        key = (width, base, current().name)
        if key != self._drawn_for:
            self._drawn_for = key
            self._strips.clear()
        if y not in self._strips:
            self._strips[y] = strip_of(self.rows[y] if y < len(self.rows) else BLANK, width, base)
        return selectable(self, self._strips[y], y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The text that the mouse has selected."""
        return selected_text(selection, lambda y: "".join(text for text, _ in self.rows[y]), len(self.rows))

    def text_select_all(self) -> None:
        """Select nothing: a double click opens a row."""


class FittedCanvas(Canvas):
    """Rows that depend on the width: they are made again in each new width, as beside a scroll bar."""

    _rows_of: Callable[[int], Sequence[Row]] | None = None

    def show(self, rows_of: Callable[[int], Sequence[Row]]) -> None:
        """Show the rows that a function makes for a width."""
        self._rows_of = rows_of
        self.on_resize()

    def on_resize(self) -> None:
        """Make the rows for the width."""
        if self._rows_of is not None and self.size.width:
            self.draw(self._rows_of(self.size.width))


class TextBlock(Static):
    """A block of text that wraps.

    Textual lays out the whole screen for every new text. This widget requests a layout only if its size changes.
    """

    _text: Content | None = None
    _shape: tuple[int, int] | None = None

    def set_text(self, text: Content) -> None:
        """Show a text. The same text again costs nothing."""
        if self._text is not None and text.is_same(self._text):
            return
        shape = self._shape_of(text)
        self.update(text, layout=shape is None or shape != self._shape)
        self._text, self._shape = text, shape

    def _shape_of(self, text: Content) -> tuple[int, int] | None:
        """Width and height; None if a line wraps, which makes the height unknown."""
        width = self.content_region.width
        lines = text.plain.split("\n")
        return (width, len(lines)) if text.plain and all(cell_len(line) <= width for line in lines) else None


class Cap(NamedTuple):
    """A key of a dialog.

    Args:
        key: the key as it is written on a cap.
        label: its effect in a few words, sanitized.
        action: action of the dialog that a click runs.
        locked: True if the key does nothing yet.
    """

    key: str
    label: str
    action: str
    locked: bool = False


class Caps(Canvas):
    """The keys of a dialog at the right end of a row, beside a text."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: tuple[Row, Sequence[Cap]] = ((), ())
        self._places: list[tuple[range, str]] = []

    def show(self, left: Row, caps: Sequence[Cap]) -> None:
        """Show a text and the keys; a locked key loses its cap."""
        self._shown = (left, caps)
        self._arrange()

    def on_resize(self) -> None:
        """Move the keys to the right end."""
        self._arrange()

    def _arrange(self) -> None:
        left, caps = self._shown
        parts: list[list[Part]] = [cap(hint.key, hint.label, locked=hint.locked) for hint in caps]
        width = self.size.width
        place = width - sum(map(width_of, parts))
        self._places = []
        for hint, part in zip(caps, parts, strict=True):
            self._places.append((range(place, place + width_of(part)), hint.action))
            place += width_of(part)
        self.draw([ends(left, [piece for part in parts for piece in part], width)])

    async def on_click(self, event: events.Click) -> None:
        """Run the action of the key under the pointer."""
        for cells, action in self._places:
            if event.x in cells:
                await self.screen.run_action(action)
