"""A block of text that wraps."""

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static


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
