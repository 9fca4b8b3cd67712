"""WhyScreen: why a task is not running, in front of the screen that it was asked on."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from runner.store import observe
from runner.store.observe import Sight, Why
from runner.store.observe.chances import sentence
from tasktui.act.shortcuts import shortcut
from tasktui.draw.render import content, line
from tasktui.operator.session import Session
from tasktui.screens.answer import AnswerScreen


class WhyScreen(AnswerScreen[Sight | None]):
    """The causes, the most decisive first; where one of them can be looked at, it ends with that.

    Args:
        session: of the operator.
        id: of the task.
    """

    FAILING = "Nobody can say why"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "dismiss", "Close"),
        # Before the text, which would be scrolled by the arrows; it still is by the keys for pages.
        Binding("up,k", "move(-1)", "Up", priority=True),
        Binding("down,j", "move(1)", "Down", priority=True),
        Binding("enter", "look", "Look at the cause", priority=True),
    ]

    def __init__(self, session: Session, id: int) -> None:
        super().__init__(session, f"Task {id}")
        self._task_id = id
        self._chosen = 0

    async def look(self) -> object:
        """Find the causes."""
        return await self.session.read(observe.why, self._task_id, self.session.zone)

    def told(self, found: Any, width: int) -> Iterable[Content]:
        """Tell the causes."""
        return said(found, width, self._sight)

    def closing(self) -> str:
        """What can be pressed."""
        more = ", up and down choose another cause" if len(self._sights) > 1 else ""
        return f"enter shows what ▶ speaks of{more}, escape closes" if self._sights else "escape closes"

    def action_move(self, by: int) -> None:
        """Choose another cause."""
        self._chosen = min(max(self._place + by, 0), max(0, len(self._sights) - 1))
        self.draw()

    def action_look(self) -> None:
        """Go to where the chosen cause can be seen."""
        if self._sight is not None:
            self.dismiss(self._sight)

    @property
    def _sights(self) -> list[Sight]:
        causes = self._found.causes if self._found is not None else ()
        return [cause.sight for cause in causes if cause.sight is not None]

    @property
    def _place(self) -> int:
        """Which of them is chosen: there may be fewer than when it was."""
        return min(self._chosen, max(0, len(self._sights) - 1))

    @property
    def _sight(self) -> Sight | None:
        return self._sights[self._place] if self._sights else None


def said(found: Why, width: int, chosen: Sight | None = None) -> Iterator[Content]:
    """Say why, in lines.

    Args:
        found: what was found.
        width: cells of a line.
        chosen: where the cause can be looked at that has a mark.
    """
    yield content((line(found.verdict), "bold"))
    for number, cause in enumerate(found.causes, 1):
        mark = "▶" if chosen is not None and cause.sight is chosen else " "
        first = f"{mark}{number}. " if len(found.causes) > 1 else f"{mark} "
        wrapped = textwrap.wrap(line(cause.text), width, initial_indent=first, subsequent_indent=" " * len(first))
        yield content("\n".join(wrapped))
        if cause.advice:
            key = shortcut(cause.advice, found.task.id)
            yield content((f"{' ' * len(first)}→ {line(cause.advice)}", "dim"), (key, "bold"))
    if found.chances:
        yield content("\n".join(textwrap.wrap(line(sentence(found.chances)), width, subsequent_indent=" ")))
    for chance in found.chances:
        yield content((f" → {line(chance.commands)}", "dim"), (shortcut(chance.commands, found.task.id), "bold"))
