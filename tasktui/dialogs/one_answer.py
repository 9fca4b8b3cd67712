"""A dialog that asks the operator for one answer."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from tasktui.dialogs.modal import ModalDialog
from tasktui.render.render import content
from tasktui.widgets.input import TextLine


class AskScreen(ModalDialog[str | None]):
    """A question. Enter submits the answer, escape cancels.

    Args:
        question: the question, sanitized.
        answer: initial text of the input.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel")]

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
            yield Static(content(("\nenter submits, escape cancels", "muted")))

    def _submitted(self, text: str) -> None:
        self.dismiss(text.strip() or None)
