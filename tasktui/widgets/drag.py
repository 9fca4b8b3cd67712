"""drag: the text that the mouse selects in widgets that draw lines."""

from collections.abc import Callable

from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget


def selectable(widget: Widget, strip: Strip, y: int) -> Strip:
    """A line that the mouse can select, with the selected part marked.

    Args:
        y: number of the line among all lines of the widget, on the screen or not.
    """
    selection = widget.text_selection
    span = selection.get_span(y) if selection is not None else None
    if span is not None:
        width = strip.cell_length
        start, end = span[0], width if span[1] < 0 else min(span[1], width)
        if start < end:
            style = widget.screen.get_component_rich_style("screen--selection")
            marked = strip.crop(start, end).apply_style(style)
            strip = Strip.join([strip.crop(0, start), marked, strip.crop(end, width)])
    return strip.apply_offsets(0, y)


def selected_text(selection: Selection, line: Callable[[int], str], count: int) -> tuple[str, str] | None:
    """The selected text of a widget and its ending, as Textual asks for it; None if nothing is selected.

    Args:
        line: returns the text of a line.
        count: number of lines.
    """
    first, left = (selection.start.y, selection.start.x) if selection.start is not None else (0, 0)
    last, right = (selection.end.y, selection.end.x) if selection.end is not None else (count - 1, None)
    last = min(last, count - 1)
    texts = []
    for y in range(first, last + 1):
        text = line(y)[: right if y == last else None]
        texts.append(text[left if y == first else 0 :].rstrip())
    return ("\n".join(texts), "\n") if any(texts) else None
