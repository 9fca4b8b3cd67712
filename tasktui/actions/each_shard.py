"""Work in each of several shards: reads at the same time, and a change in one shard after another."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from runner.errors import RunnerError
from runner.operations.results import Result
from tasktui.actions import perform
from tasktui.actions.action import Confirmation, Targets
from tasktui.actions.plan import ActionPlan, PlanChanges
from tasktui.render.render import line
from tasktui.session.cache import NO_ANSWER_AFTER
from tasktui.session.session import Job, Session
from tasktui.session.shards import ShardsSession, each_database
from tasktui.session.write_lock import ReadOnly

T = TypeVar("T")


async def in_databases(
    session: Session, parts: Mapping[str, Targets], work: Callable[[Session, Targets], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, str]]:
    """Do the same in the databases of some targets at the same time.

    Args:
        parts: the targets in each database, by its name.

    Returns:
        The result of each shard, and the error of each one without a result, by its name.

    Raises:
        RunnerError: the session has no shards, and its database gave this error.
    """
    sessions = {each.name: each for each in each_database(session)}
    if not isinstance(session, ShardsSession):
        return {name: await work(session, targets) for name, targets in parts.items()}, {}

    async def of_shard(name: str, targets: Targets) -> T:
        if not sessions[name].writable:
            raise ReadOnly(why=sessions[name].why_locked)
        async with asyncio.timeout(NO_ANSWER_AFTER):
            return await work(sessions[name], targets)

    found = await asyncio.gather(*(of_shard(*part) for part in parts.items()), return_exceptions=True)
    results, errors = dict[str, T](), dict[str, str]()
    for name, each in zip(parts, found, strict=True):
        if isinstance(each, TimeoutError):
            errors[name] = f"no answer for {NO_ANSWER_AFTER:g} seconds"
        elif isinstance(each, RunnerError):
            errors[name] = str(each)
        elif isinstance(each, BaseException):
            raise each
        else:
            results[name] = each
    return results, errors


async def changes_since(session: Session, whole: ActionPlan) -> PlanChanges:
    """Describe how the tasks of a plan have changed since it was made, in each shard."""
    parts = {name: Targets() for name in whole.shards}
    changes, errors = await in_databases(
        session, parts, lambda each, _targets: perform.changes_since(each, whole.shards[each.name])
    )
    texts = {**{name: part.text for name, part in changes.items()}, **errors}
    risks = {f"{name} {risk}": number for name, part in changes.items() for risk, number in part.risks.items()}
    return PlanChanges("; ".join(f"{name}: {text}" for name, text in texts.items() if text), risks)


async def carry_out(session: Session, whole: ActionPlan, confirmation: Confirmation, work: Job) -> Result:
    """Apply a plan in one shard after another, under one change group.

    A shard without an answer keeps no other one from the change; a failed canary does.
    """
    group, sessions = secrets.token_hex(4), {each.name: each for each in each_database(session)}
    result, limit, failed = Result(), confirmation.limit, ""
    for name, own in whole.shards.items():
        if work.stopping or limit == 0 or failed:
            work.parts.append(f"{line(name)}: not begun")
            continue
        work.before = len(result.changed)
        answers = confirmation._replace(limit=limit, change_group=group)
        try:
            part = await perform.carry_out(sessions[name], own, answers, work)
        except RunnerError as error:
            work.parts.append(f"{line(name)}: broken off, some of it may be changed: {line(str(error), 300)}")
            work.note = work.note or "Not complete in all shards."
            continue
        result.add(part.in_shard(name))
        limit = None if limit is None else limit - len(part.changed)
        failed = work.note if confirmation.canary else ""
        work.parts.append(f"{line(name)}: {part}")
    work.undo = f"undo with: runner undo --group {group} --profile {session.name}"
    return result
