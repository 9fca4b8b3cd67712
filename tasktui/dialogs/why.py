"""WhyScreen: a dialog that explains why a task is not running."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from runner.queries.why.cause import RelatedView
from runner.queries.why.remedies import sentence
from runner.queries.why.why import Why, why
from runner.text import formatting
from tasktui.actions.shortcuts import shortcut
from tasktui.dialogs.answer import AnswerScreen
from tasktui.render.render import content, line
from tasktui.render.rows import pill
from tasktui.session.session import Session


class WhyScreen(AnswerScreen[RelatedView | None]):
    """The causes, most decisive first. It returns the cause that the operator opens.

    Args:
        session: the operator's session.
        id: id of the task.
    """

    FAILING = "Cannot determine why"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "dismiss", "Close"),
        # With priority over the text, which still scrolls by page.
        Binding("up,k", "move(-1)", "Up", priority=True),
        Binding("down,j", "move(1)", "Down", priority=True),
        Binding("enter", "open", "Open the cause", priority=True),
    ]

    def __init__(self, session: Session, id: int) -> None:
        super().__init__(session, f"Why is {id} not running?")
        self._task_id = id
        self._index = 0

    async def read(self) -> object:
        """Read the causes."""
        return await self.session.read(why, self._task_id, self.session.zone)

    def answer_lines(self, answer: Any, width: int) -> Iterable[Content]:
        """Render the causes."""
        return why_lines(answer, width, self._view)

    def hint(self) -> str:
        """Return the keys to show below the causes."""
        more = ", up/down select a cause" if len(self._views) > 1 else ""
        return f"enter open ▸{more}, escape close" if self._views else "escape close"

    def action_move(self, by: int) -> None:
        """Select another cause."""
        self._index = min(max(self._position + by, 0), max(0, len(self._views) - 1))
        self.draw()

    def action_open(self) -> None:
        """Open the screen that shows the selected cause."""
        if self._view is not None:
            self.dismiss(self._view)

    @property
    def _views(self) -> list[RelatedView]:
        causes = self._answer.causes if self._answer is not None else ()
        return [cause.view for cause in causes if cause.view is not None]

    @property
    def _position(self) -> int:
        """Index of the selected cause; the latest answer may have fewer causes."""
        return min(self._index, max(0, len(self._views) - 1))

    @property
    def _view(self) -> RelatedView | None:
        return self._views[self._position] if self._views else None


def why_lines(answer: Why, width: int, selected: RelatedView | None = None) -> Iterator[Content]:
    """Render the causes and their remedies.

    Args:
        answer: the verdict, causes and remedies.
        width: cells of a line.
        selected: the cause to mark.
    """
    task = answer.task
    text, role = pill(task.shown)
    attempt = formatting.attempts(task.attempt, task.max_attempts).replace("/", " of ")
    key = f"  {line(task.key, 40)}" if task.key else ""
    head = content((text, role), (f"  {line(task.handler, 40)}", "strong"), key, (f"   attempt {attempt}", "muted"))
    yield head
    yield content("")
    yield content((line(answer.verdict), "bold strong"))
    for number, cause in enumerate(answer.causes, 1):
        here = selected is not None and cause.view is selected
        mark = "▸" if here else " "
        first = f"{mark}{number}. " if len(answer.causes) > 1 else f"{mark} "
        wrapped = textwrap.wrap(line(cause.text), width - 2, initial_indent=first, subsequent_indent=" " * len(first))
        yield content(
            ("✗ " if number == 1 else "! ", "bold dead" if number == 1 else "retrying"), *_lines(wrapped, number)
        )
        if cause.advice:
            shown_key = shortcut(cause.advice, task.id)
            yield content((f"  {' ' * len(first)}→ {line(cause.advice)}", "muted"), (shown_key, "bold accent"))
    if answer.remedies:
        yield content("")
        yield content(("What helps", "bold strong"))
        yield content("\n".join(textwrap.wrap(line(sentence(answer.remedies)), width, subsequent_indent=" ")))
    for remedy in answer.remedies:
        shown_key = shortcut(remedy.commands, task.id)
        yield content((f" → {line(remedy.commands)}", "muted"), (shown_key, "bold accent"))


def _lines(wrapped: Sequence[str], number: int) -> list[tuple[str, str]]:
    return [("\n  ".join(wrapped), "bold strong" if number == 1 else "text")]
