"""A dialog that shows an answer of the database."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from runner.errors import RunnerError
from tasktui.dialogs.modal import ModalDialog
from tasktui.messages import ReadFailed, SnapshotRead
from tasktui.render.render import block, content, lines
from tasktui.session.session import Session
from tasktui.shell.heading import Heading
from tasktui.terminal.keyboard import key_buffer

EVERY = 2.0
"""Seconds between reads: the answer has countdowns."""

NARROWEST = 30
"""The fewest cells of a line."""

T = TypeVar("T")


class AnswerScreen(ModalDialog[T]):
    """A dialog whose answer a worker reads again and again.

    Args:
        topic: title until the first answer.
    """

    FAILING: ClassVar[str] = "No answer"
    """Title above an error of the database."""

    ABOUT: ClassVar[str] = "The answer is read again every two seconds."
    """Description for the help."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Close"),
        Binding("question_mark", "app.help", "Help"),
    ]

    def __init__(self, session: Session, topic: str) -> None:
        super().__init__()
        self.session = session
        self._topic = topic
        self._reading = False
        self._answer: Any = None
        self._error: Content | None = None
        self._waiting_keys: Callable[[], None] | None = None

    def open(self, app: App[Any], on_close: Callable[[T | None], None]) -> None:
        """Open the dialog. The keys typed until its first answer wait for it, but those that close it.

        Args:
            on_close: takes its result; None if the operator closed it.
        """
        ahead = key_buffer(app).ahead
        ahead.hold("q")
        self._waiting_keys = ahead.release
        app.push_screen(self, on_close)

    def _release_keys(self) -> None:
        release, self._waiting_keys = self._waiting_keys, None
        if release is not None:
            release()

    async def read(self) -> object:
        """Read the answer; runs in a worker."""
        raise NotImplementedError

    def topic(self) -> str:
        """Return the title, which may depend on the answer."""
        return self._topic

    def hint(self) -> str:
        """Return the keys to show below the answer."""
        return "escape closes"

    def answer_lines(self, answer: Any, width: int) -> Iterable[Content]:
        """Render the answer in lines of `width` cells."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """Build one scrollable text."""
        yield Heading()
        dialog = VerticalScroll(Static(content(("reading", "muted")), id="answer"), classes="dialog")
        dialog.border_title, dialog.border_subtitle = content(self._topic), content(self.hint())
        yield dialog

    def on_mount(self) -> None:
        """Read immediately, then periodically."""
        self._start_read()
        self.set_interval(EVERY, self._start_read)

    def _start_read(self) -> None:
        if not self._reading:
            self._reading = True
            self.run_worker(self._read, group="read")  # type: ignore[arg-type]  # A coroutine might never be awaited.

    async def _read(self) -> None:
        try:
            answer = await self.read()
        except RunnerError as error:
            self.post_message(ReadFailed(error))
        else:
            self.post_message(SnapshotRead(answer, None, 0.0))

    @on(SnapshotRead)
    def _show_answer(self, message: SnapshotRead) -> None:
        self._answer, self._error = message.snapshot, None
        self.draw()

    def draw(self) -> None:
        """Show the latest answer, on which the keys act, below the error of a later read."""
        if self._answer is not None:
            width = max(NARROWEST, self.query_one("#answer").size.width)
            error = [self._error, content("")] if self._error is not None else []
            self._show(lines([*error, *self.answer_lines(self._answer, width)]))
            dialog = self.query_one(".dialog")
            dialog.border_title, dialog.border_subtitle = content(self.topic()), content(self.hint())

    @on(ReadFailed)
    def _show_error(self, message: ReadFailed) -> None:
        self._error = content((f"{self.FAILING}\n", "bold dead"), block(str(message.error)))
        self._show(self._error)
        self.draw()

    def _show(self, text: Content) -> None:
        self._reading = False
        self.query_one("#answer", Static).update(text)
        self._release_keys()

    def on_unmount(self) -> None:
        """Handle the keys that waited for an answer."""
        self._release_keys()
