"""The question about the checkpoint or the step from which a task continues."""

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from runner.db.transaction import Transaction
from runner.operations.results import Result
from runner.operations.rewind import StepPlace, checkpoint_numbers, checkpoint_objection, step_places, steps_from
from runner.text.sanitize import count_noun
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.actions import STEP, rewind_target
from tasktui.actions.plan import ActionPlan, plan
from tasktui.actions.question import BulkChange, Change, Dialog, Question
from tasktui.actions.task_question import question, refusal
from tasktui.messages import Notice
from tasktui.render.render import line
from tasktui.render.rows import Part
from tasktui.session.session import Job, Session

MOST_NUMBERS = 3
"""Numbers of checkpoints beside an input: the last ones."""


class Places(NamedTuple):
    """The places from which a task can continue, the oldest first.

    Args:
        checkpoints: the numbers of its checkpoints.
    """

    checkpoints: Sequence[int]
    steps: Sequence[StepPlace]

    @property
    def default(self) -> str:
        """The checkpoint before the last one, or the last step that can be typed; empty without both."""
        if len(self.checkpoints) > 1:
            return str(self.checkpoints[-2])
        names = (each.name for each in reversed(self.steps) if line(each.name).strip() == each.name)
        return next((name if rewind_target(name) == name else f"{STEP}{name}" for name in names), "")

    def meaning(self, typed: str) -> Part:
        """The effect of a rewind to a place, or the reason why it is impossible, and its role."""
        target = rewind_target(typed)
        if isinstance(target, int):
            why = checkpoint_objection(self.checkpoints, target)
            if target not in self.checkpoints:
                numbers = ", ".join(map(str, self.checkpoints[-MOST_NUMBERS:]))
                has = "its last are" if len(self.checkpoints) > MOST_NUMBERS else "it has"
                why = f"no checkpoint {target}" + (f": {has} {numbers}" if numbers else "")
            if why and steps_from(self.steps, typed.strip()):
                why += f"; {STEP}{typed.strip()} is a step"
            return (f"✗ {why}", "dead") if why else (f"✓ continues from checkpoint {target}", "muted")
        again = len(steps_from(self.steps, target))
        if not again:
            return f"✗ it has {'no such' if self.steps else 'no'} step", "dead"
        return f"! runs {count_noun(again, 'step')} again; no undo", "retrying"


def ask(action: Action, session: Session, targets: Targets) -> Dialog | Coroutine[Any, Any, Dialog] | None:
    """Ask for the place from which the selected task continues."""
    task = targets.task()
    if task is None or targets.task_filter() is not None:
        return None
    planned = plan(action, [task])
    if not planned.eligible.number:
        return refusal(planned, task)
    return _ask(planned, session)


async def _ask(planned: ActionPlan, session: Session) -> Dialog:
    (task,) = planned.samples
    places = await session.read(_places, task.id)
    if len(places.checkpoints) < 2 and not places.steps:
        why = "one checkpoint and no step" if places.checkpoints else "neither a checkpoint nor a step"
        return Notice(f"{planned.action.label}: task {task.id} ({line(task.handler)}) has {why}", bad=True)
    asked = question(replace(planned, action=planned.action._replace(default=places.default)), session)
    if isinstance(asked, Question):
        asked = replace(asked, change=partial(_rewind, asked.change), meaning=places.meaning)
    return asked


async def _places(tx: Transaction, id: int) -> Places:
    checkpoints, steps = await tx.gather(checkpoint_numbers(tx, id), step_places(tx, id))
    return Places(checkpoints, steps)


def _rewind(change: Change, confirmation: Confirmation) -> BulkChange:
    """The change of a rewind. That to a step cannot be undone."""
    rewind = change(confirmation)
    assert isinstance(rewind, BulkChange)  # noqa: S101 - a question about tasks has no other

    async def apply(work: Job) -> Result:
        if isinstance(rewind_target(confirmation.answer), str):
            work.undo = ""
        return await rewind.apply(work)

    return rewind._replace(apply=apply)
