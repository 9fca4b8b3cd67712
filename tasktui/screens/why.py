"""WhyScreen: why a task is not running, in front of the screen that it was asked on."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from runner.store import observe
from runner.store.observe import Why
from tasktui.draw.render import content, line
from tasktui.operator.session import Session
from tasktui.screens.answer import AnswerScreen


class WhyScreen(AnswerScreen):
    """The causes, the most decisive first.

    Args:
        session: of the operator.
        id: of the task.
    """

    FAILING = "Nobody can say why"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "dismiss", "Close")]

    def __init__(self, session: Session, id: int) -> None:
        super().__init__(session, f"Task {id}")
        self._task_id = id

    async def look(self) -> object:
        """Find the causes."""
        return await self.session.read(observe.why, self._task_id, self.session.zone)

    def told(self, found: Any, width: int) -> Iterable[Content]:
        """Tell the causes."""
        return said(found, width)


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
