"""Canvas: rows of styled text, redrawn only where they differ."""

from collections.abc import Callable, Sequence

from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tasktui.render.rows import BLANK, Row, strip_of
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
