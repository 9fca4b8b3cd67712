"""CommandScreen: the command line of the console."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from runner.errors import InvalidInput
from runner.filter import saved
from tasktui.commands.syntax import complete_command
from tasktui.dialogs.modal import ModalDialog
from tasktui.session.session import Session
from tasktui.widgets.input import CompletionInput


def saved_views(session: Session) -> dict[str, str]:
    """Return the saved filters by name; empty if the file is unreadable, which `:views` reports."""
    try:
        return saved.load(session.views)
    except InvalidInput:
        return {}


class CommandScreen(ModalDialog[None]):
    """An input for a command. Enter closes it and runs the command before the next key; escape closes it.

    Args:
        names: names of queues, handlers and views for completion.
        text: initial text of the input.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel")]

    def __init__(self, names: Mapping[str, Sequence[str]], run: Callable[[str], object] = str, text: str = "") -> None:
        super().__init__()
        self._names = names
        self._run = run
        self._text = text

    def compose(self) -> ComposeResult:
        """Build the input."""
        complete = partial(complete_command, names=self._names)
        line = CompletionInput(complete, ":", "command (? lists all)", self._text, id="command")
        line.select_on_focus = False  # Typing continues the initial text.
        line.on_submit = self._submit
        yield line

    @property
    def line(self) -> Input:
        """The input."""
        return self.query_one("#command", Input)

    def _submit(self, text: str) -> None:
        self.dismiss(None)
        if text.strip():
            self._run(text.strip())
