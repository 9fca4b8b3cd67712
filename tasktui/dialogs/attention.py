"""AttentionScreen: a dialog with all problems of the overview, each cause with its effects."""

import textwrap
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from typing import Any, ClassVar, NamedTuple

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content

from runner.db.transaction import Transaction
from runner.model.alert import Silence
from runner.queries.alerts.facts import AlertFacts
from runner.queries.alerts.reading import read_facts
from runner.queries.alerts.records import read_silences
from runner.queries.alerts.thresholds import Thresholds
from tasktui.actions.action import Action, ActionTarget, Targets
from tasktui.actions.actions import ACTIONS
from tasktui.data.alerts import SIGNS, Attention, attention, unavailable_databases
from tasktui.dialogs.answer import AnswerScreen
from tasktui.render.render import content
from tasktui.session.cache import TtlCache
from tasktui.session.databases import Databases

READ_EVERY = 10.0
"""Seconds between reads: the facts of all rules take about thirty statements."""


class AttentionChoice(NamedTuple):
    """The problem that the operator chose.

    Args:
        explain: explain its tasks, and do not go to its screen.
        action: the action to ask about; empty for none.
    """

    problem: Attention
    explain: bool = False
    action: str = ""

    @property
    def targets(self) -> Targets:
        """The subject of the problem, and its alert, for actions."""
        kind, subject, alert = self.problem.kind, self.problem.subject or None, self.problem.alert or None
        return Targets(
            alert=lambda: alert,
            queue=lambda: subject if kind == "queue" else None,
            handler=lambda: subject if kind == "handler" else None,
        )


HARM = ("limit queue", "limit handler", "pause", "pause --handler", "breaker", "alerts silence")
"""The actions on alerts in their order: those that help, the least harmful first, then the silence, which only hides.

A limit slows tasks down, a pause stops them, and the breaker overrides the result of its probes.
"""


def actions_of(problem: Attention) -> list[Action]:
    """The actions on the subject of a problem, and on its alert, in the order of HARM."""
    targets = {ActionTarget.ALERT} if problem.alert else set()
    if problem.subject and problem.kind in ("queue", "handler"):
        targets.add(ActionTarget(problem.kind))
    return [ACTIONS[name] for name in HARM if ACTIONS[name].target in targets]


class AttentionScreen(AnswerScreen[AttentionChoice | None]):
    """All problems. It returns the one that the operator opens or asks about.

    Args:
        databases: those of the console; it shows the problems of the one in front, and the unavailable ones.
    """

    FAILING = "Cannot read the alerts"
    TITLE = "Alerts"
    ABOUT = "All alerts, effects below their cause. A letter below the alerts acts on the subject of the selected one."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("exclamation_mark", "dismiss", "Close"),
        Binding("up,k", "move(-1)", "Up", priority=True),
        Binding("down,j", "move(1)", "Down", priority=True),
        Binding("enter", "choose(False)", "Go", priority=True),
        Binding("w", "choose(True)", "Why"),
    ]

    def __init__(self, databases: Databases) -> None:
        super().__init__(databases.front, "Needs attention")
        self._databases = databases
        self._index = 0
        self._cache = TtlCache[list[Attention]](READ_EVERY)

    async def read(self) -> object:
        """Read the facts of all rules."""
        problems = await self._cache.get(None, self._problems, self.session.distance)
        return [*unavailable_databases(self._databases.behind), *problems]

    async def _problems(self) -> list[Attention]:
        return attention(*await self.session.read(_facts, Thresholds.of(self.session.settings), self.session.zone))

    def hint(self) -> str:
        """Return the keys to show below the alerts."""
        if not self._answer:
            return "escape closes"
        keys = [f"{action.key} {_verb(action, self._selected)}" for action in actions_of(self._selected)]
        return ", ".join(["enter goes there", "w explains", *keys])

    def answer_lines(self, answer: Any, width: int) -> Iterable[Content]:
        """Render the problems with their effects."""
        return problem_lines(answer, width, self._position)

    @property
    def _position(self) -> int:
        return max(0, min(self._index, len(self._answer or ()) - 1))

    @property
    def _selected(self) -> Attention:
        problem: Attention = self._answer[self._position]
        return problem

    def on_key(self, event: events.Key) -> None:
        """Close with the action of a key on the selected problem."""
        if self._answer:
            action = next((each for each in actions_of(self._selected) if each.key == event.key), None)
            if action is not None:
                event.stop()
                self.dismiss(AttentionChoice(self._selected, action=action.name))

    def action_move(self, by: int) -> None:
        """Select another problem."""
        self._index = self._position + by
        self._index = self._position
        self.draw()

    def action_choose(self, explain: bool) -> None:
        """Close with the selected problem."""
        if self._answer:
            self.dismiss(AttentionChoice(self._selected, explain))


def _verb(action: Action, problem: Attention) -> str:
    """The label of an action without its kind of subject, which the selected problem names."""
    if problem.role == "paused" and not problem.alert and action.name.startswith("pause"):
        return "resume"
    return action.label.lower().removesuffix(f" {action.target.word}")


async def _facts(tx: Transaction, thresholds: Thresholds, zone: tzinfo) -> tuple[AlertFacts, tuple[Silence, ...]]:
    return await tx.gather(read_facts(tx, thresholds, zone), read_silences(tx))


def problem_lines(problems: Sequence[Attention], width: int, selected: int) -> Iterable[Content]:
    """Render the problems with their effects.

    Args:
        width: cells of a line.
        selected: position of the selected problem.
    """
    if not problems:
        yield content(("Nothing needs attention.", "bold succeeded"))
    for position, problem in enumerate(problems):
        mark = "▸" if position == selected else " "
        first, *rest = textwrap.wrap(problem.sentence, max(20, width - 4))
        text = "\n    ".join([first, *rest])
        yield content((f"{mark} {SIGNS[problem.role]} ", f"bold {problem.role}"), (text, "bold strong"))
        for effect in problem.effects:
            for place, part in enumerate(textwrap.wrap(effect.sentence, max(20, width - 6))):
                yield content(("      " if place else "    └ ", "faint"), (part, "muted"))
