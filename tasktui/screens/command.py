"""CommandScreen: one line below the screen, to type a command into."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from tasktui.query import complete_command
from tasktui.widgets.typed import Typed


class CommandScreen(ModalScreen[str | None]):
    """A line to type a command into; escape closes it.

    Args:
        queues: names to complete.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, queues: Sequence[str] = ()) -> None:
        super().__init__()
        self._queues = queues

    def compose(self) -> ComposeResult:
        """The line."""
        yield Typed(lambda text: complete_command(text, self._queues), ": a command; ? lists them", id="command")

    @property
    def line(self) -> Input:
        """What is typed into."""
        return self.query_one("#command", Input)

    def action_cancel(self) -> None:
        """Close it."""
        self.dismiss(None)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)
