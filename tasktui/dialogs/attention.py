"""AttentionScreen: a dialog with all alerts, each cause with its effects."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.content import Content

from runner.model.alert import Alert
from runner.queries.alerts.reading import read_facts
from runner.queries.alerts.rules import alerts
from runner.queries.alerts.thresholds import Thresholds
from tasktui.data.alerts import SIGNS, AlertCause, as_attention, folded
from tasktui.dialogs.answer import AnswerScreen
from tasktui.render.render import content
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session

READ_EVERY = 10.0
"""Seconds between reads: the facts of all rules take about thirty statements."""


class AttentionChoice(NamedTuple):
    """The alert that the operator chose, and whether to explain its tasks or to go to its screen."""

    alert: Alert
    explain: bool


class AttentionScreen(AnswerScreen[AttentionChoice | None]):
    """All alerts. It returns the one that the operator opens or asks about."""

    FAILING = "Cannot read the alerts"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("exclamation_mark", "dismiss", "Close"),
        Binding("up,k", "move(-1)", "Up", priority=True),
        Binding("down,j", "move(1)", "Down", priority=True),
        Binding("enter", "choose(False)", "Go", priority=True),
        Binding("w", "choose(True)", "Why"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session, "Needs attention")
        self._index = 0
        self._cache = TtlCache[list[AlertCause]](READ_EVERY)

    async def read(self) -> object:
        """Read the facts of all rules."""
        return await self._cache.get(None, self._causes, self.session.distance)

    async def _causes(self) -> list[AlertCause]:
        thresholds = Thresholds.of(self.session.settings)
        facts = await self.session.read(read_facts, thresholds, self.session.zone)
        return folded(list(alerts(facts)), facts)

    def hint(self) -> str:
        """Return the keys to show below the alerts."""
        return "enter goes there, w explains, escape closes" if self._answer else "escape closes"

    def answer_lines(self, answer: Any, width: int) -> Iterable[Content]:
        """Render the causes with their effects."""
        return cause_lines(answer, width, self._position)

    @property
    def _position(self) -> int:
        return max(0, min(self._index, len(self._answer or ()) - 1))

    def action_move(self, by: int) -> None:
        """Select another cause."""
        self._index = self._position + by
        self._index = self._position
        self.draw()

    def action_choose(self, explain: bool) -> None:
        """Close with the selected cause."""
        if self._answer:
            self.dismiss(AttentionChoice(self._answer[self._position].alert, explain))


def cause_lines(causes: Sequence[AlertCause], width: int, selected: int) -> Iterable[Content]:
    """Render the causes with their effects.

    Args:
        width: cells of a line.
        selected: position of the selected cause.
    """
    if not causes:
        yield content(("Nothing needs attention.", "bold succeeded"))
    for position, cause in enumerate(causes):
        shown = as_attention(cause.alert)
        mark = "▸" if position == selected else " "
        first, *rest = textwrap.wrap(shown.sentence, max(20, width - 4))
        text = "\n    ".join([first, *rest])
        yield content((f"{mark} {SIGNS[shown.role]} ", f"bold {shown.role}"), (text, "bold strong"))
        for effect in cause.effects:
            yield content(("    └ ", "faint"), (textwrap.shorten(effect.sentence, max(20, width - 6)), "muted"))
