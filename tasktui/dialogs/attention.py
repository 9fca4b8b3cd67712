"""AttentionScreen: a dialog with all alerts, each cause with its effects."""

import textwrap
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from typing import Any, ClassVar, NamedTuple

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content

from runner.db.transaction import Transaction
from runner.model.alert import Alert, Silence
from runner.queries.alerts.facts import AlertFacts
from runner.queries.alerts.reading import read_facts
from runner.queries.alerts.records import read_silences
from runner.queries.alerts.rules import alerts
from runner.queries.alerts.thresholds import Thresholds
from tasktui.actions.action import Action, ActionTarget, Targets
from tasktui.actions.actions import ACTIONS
from tasktui.data.alerts import SIGNS, AlertCause, Attention, cause_line, causes
from tasktui.dialogs.answer import AnswerScreen
from tasktui.render.render import content
from tasktui.render.rows import collapsed
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session

READ_EVERY = 10.0
"""Seconds between reads: the facts of all rules take about thirty statements."""


class AttentionChoice(NamedTuple):
    """The alert that the operator chose.

    Args:
        explain: explain its tasks, and do not go to its screen.
        action: the action to ask about; empty for none.
    """

    alert: Alert
    explain: bool = False
    action: str = ""

    @property
    def targets(self) -> Targets:
        """The subject of the alert, for actions."""
        return targets_of(self.alert)


def targets_of(alert: Alert) -> Targets:
    """The subject of an alert, and the alert itself, for actions."""
    kind, subject = alert.rule.subject, alert.subject or None
    return Targets(
        alert=lambda: alert.name,
        queue=lambda: subject if kind == "queue" else None,
        handler=lambda: subject if kind == "handler" else None,
    )


HARM = ("limit queue", "limit handler", "pause", "pause --handler", "breaker", "alerts silence")
"""The actions on alerts in their order: those that help, the least harmful first, then the silence, which only hides.

A limit slows tasks down, a pause stops them, and the breaker overrides the result of its probes.
"""


def actions_of(alert: Alert) -> list[Action]:
    """The actions on the subject of an alert, and on the alert itself, in the order of HARM."""
    targets = {ActionTarget.ALERT}
    if alert.subject and alert.rule.subject in ("queue", "handler"):
        targets.add(ActionTarget(alert.rule.subject))
    return [ACTIONS[name] for name in HARM if ACTIONS[name].target in targets]


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
        self._at = session.now()
        self._cache = TtlCache[list[AlertCause]](READ_EVERY)

    async def read(self) -> object:
        """Read the facts of all rules."""
        return await self._cache.get(None, self._causes, self.session.distance)

    async def _causes(self) -> list[AlertCause]:
        thresholds = Thresholds.of(self.session.settings)
        facts, silences = await self.session.read(_facts, thresholds, self.session.zone)
        self._at = facts.overview.at
        return causes(list(alerts(facts)), facts, silences)

    def hint(self) -> str:
        """Return the keys to show below the alerts."""
        if not self._answer:
            return "escape closes"
        keys = ", ".join(f"{action.key} {_verb(action)}" for action in actions_of(self._selected))
        return f"enter goes there, w explains, {keys}"

    def answer_lines(self, answer: Any, width: int) -> Iterable[Content]:
        """Render the causes with their effects."""
        shown = [cause_line(cause, self._at, self.session.zone) for cause in answer]
        return cause_lines(answer, shown, width, self._position)

    @property
    def _position(self) -> int:
        return max(0, min(self._index, len(self._answer or ()) - 1))

    @property
    def _selected(self) -> Alert:
        alert: Alert = self._answer[self._position].alert
        return alert

    def on_key(self, event: events.Key) -> None:
        """Close with the action of a key on the selected cause."""
        if self._answer:
            action = next((each for each in actions_of(self._selected) if each.key == event.key), None)
            if action is not None:
                event.stop()
                self.dismiss(AttentionChoice(self._selected, action=action.name))

    def action_move(self, by: int) -> None:
        """Select another cause."""
        self._index = self._position + by
        self._index = self._position
        self.draw()

    def action_choose(self, explain: bool) -> None:
        """Close with the selected cause."""
        if self._answer:
            self.dismiss(AttentionChoice(self._selected, explain))


def _verb(action: Action) -> str:
    """The label of an action without its kind of subject, which the selected alert names."""
    return action.label.lower().removesuffix(f" {action.target.word}")


async def _facts(tx: Transaction, thresholds: Thresholds, zone: tzinfo) -> tuple[AlertFacts, tuple[Silence, ...]]:
    return await tx.gather(read_facts(tx, thresholds, zone), read_silences(tx))


def cause_lines(
    causes: Sequence[AlertCause], shown: Sequence[Attention], width: int, selected: int
) -> Iterable[Content]:
    """Render the causes with their effects.

    Args:
        shown: the causes as lines of the overview.
        width: cells of a line.
        selected: position of the selected cause.
    """
    if not causes:
        yield content(("Nothing needs attention.", "bold succeeded"))
    for position, (cause, shown_cause) in enumerate(zip(causes, shown, strict=True)):
        mark = "▸" if position == selected else " "
        first, *rest = textwrap.wrap(shown_cause.sentence, max(20, width - 4))
        text = "\n    ".join([first, *rest])
        yield content((f"{mark} {SIGNS[shown_cause.role]} ", f"bold {shown_cause.role}"), (text, "bold strong"))
        for effect in cause.effects:
            yield content(("    └ ", "faint"), (collapsed(effect.sentence, max(20, width - 6)), "muted"))
