"""Said: lines of text that change every now and then, and cost only as much as there is new in them."""

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static


class Said(Static):
    """Lines of text.

    A new layout of the whole screen, which Textual makes with every other text, is made only for one of another height.
    """

    _said: Content | None = None
    _shape: tuple[int, int] | None = None

    def say(self, said: Content) -> None:
        """Show a text; the same again costs nothing."""
        if self._said is not None and said.is_same(self._said):
            return
        shape = self._shape_of(said)
        self.update(said, layout=shape is None or shape != self._shape)
        self._said, self._shape = said, shape

    def _shape_of(self, said: Content) -> tuple[int, int] | None:
        """Width and height; None when a line has to be folded, so that its height is not known here."""
        width = self.content_region.width
        lines = said.plain.split("\n")
        return (width, len(lines)) if said.plain and all(cell_len(line) <= width for line in lines) else None
