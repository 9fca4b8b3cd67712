"""Confirmation of actions on tasks: the plan, its weight, and the change after the answer."""

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from runner.filter.parse import Filter
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.as_command import plan_words
from tasktui.actions.plan import ActionPlan, plan, plan_rows
from tasktui.actions.question import BulkChange, Dialog, Question
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session


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
        [content((line(text), "bold")) for text in details],
        plan.weight,
        words=partial(plan_words, plan),
        change=change,
        sql=partial(perform.plan_sql, session, plan),
        many=plan.eligible.number > 1,
        effect=partial(plan_rows, plan, session.name),
        title=f"{plan.action.label} {plan.eligible.of('task')}?",
        total=None if plan.eligible.more else plan.eligible.number,
        canary=plan.task_filter is not None and plan.action.verb == "retry_now",
    )
