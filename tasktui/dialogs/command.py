"""CommandScreen: the command line at the bottom of the screen."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from tasktui.commands.parse import complete_command
from tasktui.widgets.input import CompletionInput


class CommandScreen(ModalScreen[None]):
    """An input for a command. Enter closes it and runs the command before the next key; escape closes it.

    Args:
        names: names of queues, handlers and views for completion.
        run: runs a command.
        text: initial text of the input.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, names: Mapping[str, Sequence[str]], run: Callable[[str], object] = str, text: str = "") -> None:
        super().__init__()
        self._names = names
        self._run = run
        self._text = text

    def compose(self) -> ComposeResult:
        """Build the input."""
        complete = partial(complete_command, names=self._names)
        line = CompletionInput(complete, ": command (? lists all)", self._text, id="command")
        line.select_on_focus = False  # Typing continues the initial text.
        line.on_submit = self._submit
        yield line

    @property
    def line(self) -> Input:
        """The input."""
        return self.query_one("#command", Input)

    def action_cancel(self) -> None:
        """Close without a command."""
        self.dismiss(None)

    def _submit(self, text: str) -> None:
        self.dismiss(None)
        if text.strip():
            self._run(text.strip())
