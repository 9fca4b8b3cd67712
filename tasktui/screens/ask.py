"""AskScreen: one question, answered in one line, in front of the screen."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tasktui.draw.render import content
from tasktui.widgets.text_line import TextLine


class AskScreen(ModalScreen[str | None]):
    """A question; enter answers it, escape does not.

    Args:
        question: above the line; safe to show.
        answer: what stands in the line at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, question: str, answer: str) -> None:
        super().__init__()
        self._question = question
        self._answer = answer

    def compose(self) -> ComposeResult:
        """The question, and a line for its answer."""
        with Vertical(classes="dialog"):
            yield Static(content((self._question, "bold")), classes="about")
            yield TextLine(self._answer, compact=True, id="answer")
            yield Static(content(("\nenter does it, escape leaves everything as it is", "dim")))

    def action_cancel(self) -> None:
        """Give no answer."""
        self.dismiss(None)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)
