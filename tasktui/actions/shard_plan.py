"""The plan of an action on tasks in several shards, with one question about all of them."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.filter.fields import Operator
from runner.filter.parse import Filter
from runner.model.shard import ShardId
from runner.queries.counting import total_of
from tasktui.actions import perform
from tasktui.actions.action import Action, Targets
from tasktui.actions.each_shard import in_databases
from tasktui.actions.plan import NO_VALUES, SAMPLES, ActionPlan, plan
from tasktui.actions.question import Dialog, Question
from tasktui.actions.task_question import question, seconds_since_failure
from tasktui.messages import Notice
from tasktui.session.session import Session
from tasktui.session.shards import ShardsSession


async def planned(
    action: Action, session: Session, targets: Targets, values: Mapping[str, object] = NO_VALUES
) -> ActionPlan:
    """Plan an action on tasks of one database, with the obstacles that a retry meets."""
    task_filter = targets.task_filter()
    if task_filter is not None:
        return await perform.preview(session, action, task_filter, values)
    own = replace(plan(action, targets.tasks(), values), obstacles=targets.remarks())
    return await perform.with_obstacles(session, own) if action.verb == "retry_now" and own.eligible.number else own


async def ask_in_shards(action: Action, session: ShardsSession, parts: Mapping[str, Targets]) -> Dialog:
    """Ask for confirmation of an action on tasks in several shards. A shard without an answer is left out."""

    async def of_shard(each: Session, targets: Targets) -> tuple[ActionPlan, float | None]:
        task_filter = targets.task_filter()
        if task_filter is None:
            return await planned(action, each, targets), None
        fails = seconds_since_failure(action, each, task_filter)
        own, seconds = await asyncio.gather(planned(action, each, targets), fails)
        return own, seconds

    async def asked(parts: Mapping[str, Targets], words: str, wider: Question | None = None) -> Dialog:
        found, errors = await in_databases(session, parts, of_shard)
        fails = min((seconds for _, seconds in found.values() if seconds is not None), default=None)
        plans = {name: own for name, (own, _) in found.items()}
        return question_of(session, plans, errors, fails=fails, of=words, wider=wider)

    scope = next(iter(parts.values())).scope()
    if scope is None:
        return await asked(parts, "")
    whole = {name: targets._replace(task_filter=lambda: scope.whole) for name, targets in parts.items()}
    wider = await asked(whole, scope.whole_words)
    return await asked(parts, scope.words, wider if isinstance(wider, Question) else None)


def question_of(
    session: Session,
    plans: Mapping[str, ActionPlan],
    errors: Mapping[str, str],
    details: Sequence[str] = (),
    *,
    fails: float | None = None,
    of: str = "",
    wider: Question | None = None,
) -> Dialog:
    """Ask for confirmation of the plans of the databases of a session, see `question`.

    Args:
        errors: why a shard has no plan, by its name.
    """
    if not isinstance(session, ShardsSession) and plans:
        (only,) = plans.values()
        return question(only, session, details, fails=fails)
    silent = tuple(f"Nothing is changed in {name}: {error}" for name, error in errors.items())
    if not plans:
        return Notice("\n".join(silent), bad=True)
    whole = _sum(plans)
    whole = replace(whole, obstacles=(*silent, *whole.obstacles))
    return question(whole, session, details, fails=fails, of=of, wider=wider)


def _sum(plans: Mapping[str, ActionPlan]) -> ActionPlan:
    """The plan of all shards; the commands that it makes name the ids with their shards, or the filter as typed."""
    each, named = [*plans.values()], [*plans.items()]
    first = each[0]
    return ActionPlan(
        first.action,
        total_of(own.eligible for own in each),
        _added(own.groups for own in each),
        _added(own.skipped for own in each),
        tuple(task._replace(id=ShardId(name, task.id)) for name, own in named for task in own.samples)[:SAMPLES],
        tuple(target._replace(id=ShardId(name, target.id)) for name, own in named for target in own.targets),
        None if first.task_filter is None else _unbounded(first.task_filter),
        sum(own.last for own in each),
        _added(own.states for own in each),
        tuple(dict.fromkeys(text for own in each for text in own.obstacles)),
        first.values,
        shards=plans,
    )


def _added(counts: Any) -> Any:
    """The sums of counts, the largest first."""
    total = Counter[Any]()
    for each in counts:
        total.update(each)
    return dict(total.most_common())


def _unbounded(task_filter: Filter) -> Filter:
    """A filter without its bounds by the newest task, which differ from shard to shard."""
    *terms, last = task_filter.terms
    while last.field == "id" and last.operator is Operator.LE and terms:
        *terms, last = terms
    return Filter((*terms, last))
