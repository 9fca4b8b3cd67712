"""CommandScreen: one line below the screen, to type a command into."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from tasktui.typed.commands import complete_command
from tasktui.widgets.typed import Typed


class CommandScreen(ModalScreen[str | None]):
    """A line to type a command into; escape closes it.

    Args:
        names: of queues, handlers and views, to complete.
        begun: what stands in the line at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, names: Mapping[str, Sequence[str]], begun: str = "") -> None:
        super().__init__()
        self._names = names
        self._begun = begun

    def compose(self) -> ComposeResult:
        """The line."""
        complete = partial(complete_command, names=self._names)
        line = Typed(complete, ": a command; ? lists them", self._begun, id="command")
        line.select_on_focus = False  # what is typed goes on from what stands there
        yield line

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
