"""WhyScreen: why a task is not running, in front of the screen that it was asked on."""

import textwrap
from collections.abc import Iterator
from typing import ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from runner.errors import RunnerError
from runner.store import observe
from runner.store.observe import Why
from tasktui.messages import Failed, Looked
from tasktui.render import block, content, line, lines
from tasktui.session import Session

EVERY = 2.0
"""Seconds between looks: what is said counts down."""

NARROWEST = 30


class WhyScreen(ModalScreen[None]):
    """The causes, the most decisive first, looked up again and again while it is open.

    Args:
        session: of the operator.
        id: of the task.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,w,q", "dismiss", "Close")]

    def __init__(self, session: Session, id: int) -> None:
        super().__init__()
        self._session = session
        self._task_id = id
        self._looking = False

    def compose(self) -> ComposeResult:
        """One text that can be scrolled."""
        yield VerticalScroll(Static(content((f"Task {self._task_id} ...", "dim")), id="causes"), classes="dialog")

    def on_mount(self) -> None:
        """Look at once, and then now and then."""
        self._look()
        self.set_interval(EVERY, self._look)

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            self.run_worker(self._ask(), group="look")

    async def _ask(self) -> None:
        try:
            found = await self._session.read(observe.why, self._task_id, self._session.zone)
        except RunnerError as error:
            self.post_message(Failed(error))
        else:
            self.post_message(Looked(found, self._task_id, 0.0))

    @on(Looked)
    def _looked(self, message: Looked) -> None:
        self._looking = False
        width = max(NARROWEST, self.query_one("#causes").size.width)
        self._tell(lines(said(cast("Why", message.snapshot), width)))

    @on(Failed)
    def _failed(self, message: Failed) -> None:
        self._looking = False
        self._tell(content((block(str(message.error)), "bold red")))

    def _tell(self, about: Content) -> None:
        self.query_one("#causes", Static).update(about)


def said(found: Why, width: int) -> Iterator[Content]:
    """Say why, in lines.

    Args:
        found: what was found.
        width: cells of a line.
    """
    yield content((line(found.verdict), "bold"))
    for number, cause in enumerate(found.causes, 1):
        first = f" {number}. " if len(found.causes) > 1 else " "
        wrapped = textwrap.wrap(line(cause.text), width, initial_indent=first, subsequent_indent=" " * len(first))
        yield content("\n".join(wrapped))
        if cause.advice:
            yield content((f"{' ' * len(first)}→ {line(cause.advice)}", "dim"))
    yield content(("\nescape closes", "dim"))
