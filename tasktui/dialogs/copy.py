"""CopyScreen: the values under the cursor, each with the key that copies it."""

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from runner.text.sanitize import count_noun
from tasktui.data.values import Copyable, CopyItem
from tasktui.dialogs.modal import ModalDialog
from tasktui.render.render import content
from tasktui.render.rows import BLANK, Row, fit
from tasktui.shell.heading import Heading
from tasktui.widgets.canvas import FittedCanvas

LABEL = 10
"""Cells of the name of a value."""


class CopyScreen(ModalDialog[CopyItem | None]):
    """A dialog that returns the value of the pressed key. Escape cancels.

    Args:
        copyable: the thing with its texts.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Close")]

    def __init__(self, copyable: Copyable) -> None:
        super().__init__()
        self._copyable = copyable

    def compose(self) -> ComposeResult:
        """Build a row for each value."""
        yield Heading()
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = content((f"Copy of {self._copyable.subject}", "bold strong"))
            dialog.border_subtitle = "a key copies, escape closes"
            yield FittedCanvas(id="items")

    def on_mount(self) -> None:
        """Draw the values in the width of the dialog."""
        self.query_one("#items", FittedCanvas).show(self._rows)

    def _rows(self, width: int) -> list[Row]:
        rows: list[Row] = []
        for item in self._copyable.items:
            sign = (f" {item.key} ", "bold accent on cap") if item.text else (f" {item.key} ", "faint")
            first, _, rest = (item.text or "none").partition("\n")
            more = f"  +{count_noun(rest.count(chr(10)) + 1, 'line')}" if rest else ""
            text = (first, "text" if item.text else "faint")
            rows.append(fit([sign, (f" {item.name:{LABEL}}", "muted"), text, (more, "faint")], width))
        return [*rows, BLANK]

    def on_key(self, event: events.Key) -> None:
        """Return the value of a key."""
        for item in self._copyable.items:
            if event.key == item.key and item.text:
                event.stop()
                self.dismiss(item)
