"""Colourless: what is drawn when NO_COLOR asks for no colours; the terminal's own are left, on any background."""

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

KEPT = ("bold", "dim", "italic", "underline", "reverse", "strike")
"""What tells things apart without colours."""


class Colourless(LineFilter):
    """Take the colours out of lines; Textual itself would paint in greys, on a black ground."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - the signature is Textual's
        """Draw with the terminal's own colours."""
        return [Segment(text, style and plain(style), control) for text, style, control in segments]


def plain(style: Style) -> Style:
    """A style without its colours; what a click on it does stays."""
    return Style(meta=style.meta, **{name: getattr(style, name) for name in KEPT})
