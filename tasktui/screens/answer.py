"""AnswerScreen: an answer of the database, in front of the screen, asked for again and again while it is open."""

from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from runner.errors import RunnerError
from tasktui.draw.render import block, content, lines
from tasktui.messages import Failed, Looked
from tasktui.operator.session import Session

EVERY = 2.0
"""Seconds between looks: what is said counts down."""

NARROWEST = 30
"""Cells of a line at least."""

T = TypeVar("T")


class AnswerScreen(ModalScreen[T]):
    """A question, asked in a worker as long as the answer is on the screen.

    Args:
        session: of the operator.
        topic: what is asked about, shown until the first answer.
    """

    FAILING: ClassVar[str] = "There is no answer"
    """Said above the reason when the database refuses."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Close")]

    def __init__(self, session: Session, topic: str) -> None:
        super().__init__()
        self.session = session
        self._topic = topic
        self._looking = False
        self._found: Any = None

    async def look(self) -> object:
        """Ask the database; runs in a worker."""
        raise NotImplementedError

    def closing(self) -> str:
        """What can be pressed, behind the answer."""
        return "escape closes"

    def told(self, found: Any, width: int) -> Iterable[Content]:
        """Tell the answer, in lines that are so many cells wide."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """One text that can be scrolled."""
        yield VerticalScroll(Static(content((f"{self._topic} ...", "dim")), id="answer"), classes="dialog")

    def on_mount(self) -> None:
        """Look at once, and then now and then."""
        self._ask()
        self.set_interval(EVERY, self._ask)

    def _ask(self) -> None:
        if not self._looking:
            self._looking = True
            self.run_worker(self._answer(), group="look")

    async def _answer(self) -> None:
        try:
            found = await self.look()
        except RunnerError as error:
            self.post_message(Failed(error))
        else:
            self.post_message(Looked(found, None, 0.0))

    @on(Looked)
    def _looked(self, message: Looked) -> None:
        self._found = message.snapshot
        self.draw()

    def draw(self) -> None:
        """Show the answer as it is now."""
        if self._found is not None:
            width = max(NARROWEST, self.query_one("#answer").size.width)
            told = list(self.told(self._found, width))
            self._show(lines([*told, content((f"\n{self.closing()}", "dim"))]))

    @on(Failed)
    def _failed(self, message: Failed) -> None:
        self._show(content((f"{self.FAILING}\n", "bold red"), block(str(message.error))))

    def _show(self, about: Content) -> None:
        self._looking = False
        self.query_one("#answer", Static).update(about)
