"""CommandScreen: the command line at the bottom of the screen."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from tasktui.commands.parse import complete_command
from tasktui.widgets.input import CompletionInput


class CommandScreen(ModalScreen[str | None]):
    """An input for a command. Escape closes it.

    Args:
        names: names of queues, handlers and views for completion.
        text: initial text of the input.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, names: Mapping[str, Sequence[str]], text: str = "") -> None:
        super().__init__()
        self._names = names
        self._text = text

    def compose(self) -> ComposeResult:
        """Build the input."""
        complete = partial(complete_command, names=self._names)
        line = CompletionInput(complete, ": command (? lists all)", self._text, id="command")
        line.select_on_focus = False  # Typing continues the initial text.
        yield line

    @property
    def line(self) -> Input:
        """The input."""
        return self.query_one("#command", Input)

    def action_cancel(self) -> None:
        """Close without a command."""
        self.dismiss(None)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)
