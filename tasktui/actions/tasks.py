"""Actions on tasks: their confirmation, their operations and their command-line options."""

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from runner.errors import InvalidInput
from runner.filter.parse import Filter
from runner.model.duration import parse_duration
from runner.operations.results import Actor
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.as_command import plan_words
from tasktui.actions.plan import ActionPlan, plan, plan_lines, sample_lines
from tasktui.actions.question import BulkChange, Dialog, Question
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session

if TYPE_CHECKING:
    from runner.operations.bulk import Operation

EVERY = "all"
"""Answer that removes all dependencies of a task."""

MOST_DIGITS = 19
"""Digits of an integer that both databases can store."""


def ask(action: Action, session: Session, targets: Targets) -> Dialog | Coroutine[Any, Any, Dialog]:
    """Ask for confirmation of an action on the selected tasks."""
    task_filter, tasks = targets.task_filter(), targets.tasks()
    if task_filter is not None:
        return _ask_for_filter(action, session, task_filter)
    return question(plan(action, tasks), session) if tasks else Notice(targets.missing(), bad=True)


async def _ask_for_filter(action: Action, session: Session, task_filter: Filter) -> Dialog:
    from tasktui.actions import perform  # imports all operations, which the first screen does not need

    return question(await perform.preview(session, action, task_filter), session)


def question(plan: ActionPlan, session: Session, details: Sequence[str] = ()) -> Question | Notice:
    """Ask for confirmation of a plan, or explain why none of its tasks would change.

    Args:
        plan: the plan.
        session: the operator's session.
        details: the change in more words, such as new values.
    """
    from tasktui.actions import perform

    if not plan.eligible.number:
        reasons = list(plan.skipped) or ["no tasks match"]
        return Notice("\n".join(f"{plan.action.label}: {why}" for why in reasons), bad=True)

    def change(confirmation: Confirmation) -> BulkChange:
        eligible = None if plan.eligible.more else plan.eligible.number
        total = eligible if confirmation.limit is None else min(confirmation.limit, eligible or confirmation.limit)
        return BulkChange(plan.action.label, total, partial(perform.carry_out, session, plan, confirmation))

    return Question(
        plan.action,
        [*plan_lines(plan, session.name), *(content((line(text), "bold")) for text in details)],
        plan.weight,
        words=partial(plan_words, plan),
        change=change,
        sql=partial(perform.plan_sql, session, plan),
        many=plan.eligible.number > 1,
        samples=sample_lines(plan),
        canary=plan.task_filter is not None and plan.action.verb == "retry_now",
    )


def retry(by: Actor, answer: str) -> "Operation":
    """Build a retry, spread over a duration."""
    from runner.operations.reschedule import retry_now

    return partial(retry_now, by=by, spread=parse_duration(answer).total_seconds() if answer else 0.0)


def retry_options(answer: str) -> Sequence[object]:
    """The options of a retry."""
    return ("--spread", answer) if answer not in ("", "0", "0s") else ()


def terminate(by: Actor, _answer: str) -> "Operation":
    """Build a termination."""
    from runner.operations.terminate import terminate as apply_terminate

    return partial(apply_terminate, by=by)


def delay(by: Actor, answer: str) -> "Operation":
    """Build a delay by a duration."""
    from runner.operations.reschedule import delay as apply_delay

    return partial(apply_delay, seconds=parse_duration(answer).total_seconds(), by=by)


def delay_options(answer: str) -> Sequence[object]:
    """The options of a delay."""
    return ("--by", answer)


def unblock(by: Actor, answer: str) -> "Operation":
    """Build an unblock of one dependency or of all."""
    from runner.operations.unblock import unblock as apply_unblock

    return partial(apply_unblock, by=by, dependency_id=_dependency_id(answer))


def unblock_options(answer: str) -> Sequence[object]:
    """The options of an unblock."""
    return ("--dependency", answer) if answer not in ("", EVERY) else ()


def rewind(by: Actor, answer: str) -> "Operation":
    """Build a rewind to a checkpoint."""
    from runner.operations.reschedule import rewind as apply_rewind

    if not (answer.isdecimal() and len(answer) < MOST_DIGITS):
        raise InvalidInput(why=f"{answer[:30]!r} is not the number of a checkpoint; the task screen lists them")
    return partial(apply_rewind, number=int(answer), by=by)


def rewind_options(answer: str) -> Sequence[object]:
    """The options of a rewind."""
    return ("--to", answer)


def _dependency_id(answer: str) -> int | None:
    """Parse a dependency id; None for all dependencies."""
    if answer in ("", EVERY):
        return None
    if not (answer.isdecimal() and len(answer) < MOST_DIGITS):
        raise InvalidInput(why=f"{answer[:30]!r} is not a dependency id; enter an id from the task screen, or {EVERY}")
    return int(answer)
