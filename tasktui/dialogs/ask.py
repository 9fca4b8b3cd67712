"""AskScreen and CommandScreen: dialogs with one input, for a question and for a command."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tasktui.commands.parse import complete_command
from tasktui.render.render import content
from tasktui.widgets.input import CompletionInput, TextLine


class AskScreen(ModalScreen[str | None]):
    """A question. Enter submits the answer, escape cancels.

    Args:
        question: the question, sanitized.
        answer: initial text of the input.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, question: str, answer: str) -> None:
        super().__init__()
        self._question = question
        self._answer = answer

    def compose(self) -> ComposeResult:
        """Build the question and its input."""
        with Vertical(classes="dialog"):
            yield Static(content((self._question, "bold")), classes="about")
            field = TextLine(self._answer, compact=True, id="answer")
            field.on_submit = self._submitted
            yield field
            yield Static(content(("\nenter submit, escape cancel", "muted")))

    def action_cancel(self) -> None:
        """Close without an answer."""
        self.dismiss(None)

    def _submitted(self, text: str) -> None:
        self.dismiss(text.strip() or None)


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
