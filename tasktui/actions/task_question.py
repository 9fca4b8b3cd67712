"""The question about the tasks of an action."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from runner.errors import InvalidDuration
from runner.filter.parse import Filter
from runner.model.duration import parse_duration
from runner.operations.targets import BLOCKED
from runner.queries.counting import Count
from runner.queries.task.steps import awaited_signals
from runner.queries.task_list.row import TaskRow
from runner.text import formatting
from tasktui.actions.action import ALL, CANARY, Action, Confirmation, Targets, TaskScope
from tasktui.actions.as_command import plan_words
from tasktui.actions.plan import ActionPlan, plan, plan_rows
from tasktui.actions.question import BulkChange, Dialog, Question
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.render.rows import Part
from tasktui.session.session import Session


def ask_about_tasks(action: Action, session: Session, targets: Targets) -> Dialog | Coroutine[Any, Any, Dialog]:
    """Ask for confirmation of an action on the selected tasks."""
    task_filter, tasks = targets.task_filter(), targets.tasks()
    if task_filter is not None:
        return _ask_for_filter(action, session, task_filter, targets.scope())
    if not tasks:
        return Notice(targets.missing(), bad=True)
    planned = replace(plan(action, tasks), obstacles=targets.remarks())
    if not planned.eligible.number and len(tasks) == 1:
        return refusal(planned, tasks[0])
    if action.verb == "retry_now" and planned.eligible.number:
        return _ask_with_obstacles(planned, session)
    return _ask_for_signal(planned, session) if action.verb == "signal" else question(planned, session)


def refusal(planned: ActionPlan, task: TaskRow) -> Notice:
    """The reason why an action does not apply to the only task of its plan."""
    (why,) = planned.skipped
    return Notice(f"{planned.action.label}: task {task.id} ({line(task.handler)}): {_with_key(why)}", bad=True)


async def _ask_for_signal(planned: ActionPlan, session: Session) -> Dialog:
    """Ask with the signal that most of the listed tasks wait for."""
    awaited = await session.read(awaited_signals, [task.id for task in planned.samples])
    action = planned.action._replace(default=awaited[0]) if awaited else planned.action
    return question(replace(planned, action=action), session, awaited=awaited)


async def _ask_with_obstacles(planned: ActionPlan, session: Session) -> Dialog:
    from tasktui.actions import perform

    return question(await perform.with_obstacles(session, planned), session)


async def _ask_for_filter(action: Action, session: Session, task_filter: Filter, scope: TaskScope | None) -> Dialog:
    from tasktui.actions import perform  # imports all operations, which the first screen does not need

    filters = [task_filter] if scope is None else [task_filter, scope.whole]
    (planned, *whole), fails = await asyncio.gather(
        perform.previews(session, action, filters), seconds_since_failure(action, session, task_filter)
    )
    if not planned.eligible.number:
        return question(planned, session)
    if action.verb == "signal":
        return await _ask_for_signal(planned, session)
    if scope is None:
        return question(planned, session, fails=fails)
    more = [each for each in whole if each.eligible != planned.eligible]
    wider = question(more[0], session, of=scope.whole_words, fails=fails) if more else None
    wider = wider if isinstance(wider, Question) else None
    return question(planned, session, of=scope.words, wider=wider, fails=fails)


async def seconds_since_failure(action: Action, session: Session, task_filter: Filter) -> float | None:
    """The seconds since the causes of the tasks of a retry failed last; None if they are calm."""
    from runner.queries.failures import fails_now

    return await session.read(fails_now, task_filter) if action.verb == "retry_now" else None


def question(
    plan: ActionPlan,
    session: Session,
    details: Sequence[str] = (),
    *,
    of: str = "",
    wider: Question | None = None,
    fails: float | None = None,
    awaited: Sequence[str] | None = None,
) -> Question | Notice:
    """Ask for confirmation of a plan, or explain why none of its tasks would change.

    Args:
        details: the change in more words, such as new values.
        of: the tasks in words, after their number.
        wider: the same question about more tasks.
        fails: seconds since their cause failed last, if that is recent: a canary is then the default.
        awaited: the signals that they wait for; None for another change.
    """
    from tasktui.actions import each_shard, perform

    if not plan.eligible.number:
        skipped = ((_with_key(why), number) for why, number in plan.skipped.items())
        reasons = [why if number == 1 else f"{number:,} tasks skipped: {why}" for why, number in skipped]
        reasons = [*plan.obstacles, *(reasons or ["no tasks match"])] if plan.shards else reasons or ["no tasks match"]
        return Notice("\n".join(f"{plan.action.label}: {why}" for why in reasons), bad=True)

    def change(confirmation: Confirmation) -> BulkChange:
        carry_out = each_shard.carry_out if plan.shards else perform.carry_out
        apply = partial(carry_out, session, plan, confirmation)
        return BulkChange(plan.action.label, plan.most(confirmation), apply)

    one = plan.eligible == Count(1)
    fails = None if one else fails
    about = [content((line(text), "bold")) for text in details]
    if fails is not None:
        now = session.now()
        failed_at = formatting.clock(now - timedelta(seconds=fails), now, session.zone, seconds=True)
        failed = f"This cause failed at {failed_at}. "
        switches = " switches between stages and all at once"
        about.append(content((failed, "retrying"), ("ctrl+t", "bold accent"), (switches, "muted")))
    return Question(
        plan.action.without_prompt() if one and plan.action.verb == "retry_now" else plan.action,  # nothing to spread
        about,
        plan.weight,
        words=partial(plan_words, plan),
        change=change,
        sql=partial(perform.plan_sql, session, plan) if plan.task_filter is None and not plan.shards else None,
        many=plan.eligible.number > 1,
        meaning=_meaning(plan, session, awaited),
        effect=partial(plan_rows, plan, session.name),
        title=f"{plan.action.label} {plan.eligible.of('task')}?",
        of=of,
        total=None if plan.eligible.more else plan.eligible.number,
        canary=plan.task_filter is not None and plan.action.verb == "retry_now",
        limit=ALL if fails is None else CANARY,
        recheck=partial(each_shard.changes_since if plan.shards else perform.changes_since, session, plan),
        wider=wider,
    )


def _with_key(why: str) -> str:
    """The reason of a refusal, with the key that helps."""
    return f"{why} with U" if why == BLOCKED else why


def _meaning(plan: ActionPlan, session: Session, awaited: Sequence[str] | None) -> Callable[[str], Part] | None:
    if plan.action.verb == "delay":
        return partial(_delay_meaning, session, plan)
    return None if awaited is None else partial(_signal_meaning, awaited)


def _signal_meaning(awaited: Sequence[str], typed: str) -> Part:
    """The effect of a signal: it ends a wait, or is kept for a later one."""
    if typed.strip().partition(" ")[0] in awaited:
        return "✓ ends the wait", "muted"
    waits = f"they wait for {line(', '.join(awaited), 40)}" if awaited else "no task waits for it yet"
    return f"! {waits}", "retrying"


def _delay_meaning(session: Session, plan: ActionPlan, typed: str) -> Part:
    """The due time of a task after a delay, or the moment from which several are delayed, and its role."""
    try:
        delay = parse_duration(typed)
    except InvalidDuration:
        return "✗ a duration such as 10m", "dead"
    if plan.eligible != Count(1):
        return "✓ from their due times, or from now", "muted"
    now = session.now()
    end = max(plan.samples[0].run_at or now, now) + delay
    return f"✓ until {formatting.clock(end, now, session.zone)}, {formatting.distance(end, now)}", "muted"
