"""Applying confirmed actions in transactions of the store."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from runner.db.transaction import Transaction, clock
from runner.filter.parse import Filter
from runner.model.duration import parse_duration
from runner.operations.audit_log import reveal
from runner.operations.breaker import BreakerResult, close_by_hand, open_by_hand
from runner.operations.bulk import BulkOptions, Operation, to_all, to_each
from runner.operations.canary import canary as apply_canary
from runner.operations.limit import parse_edit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.pause import pause as apply_pause
from runner.operations.preview import preview as apply_preview
from runner.operations.results import Result, Skipped, Target, with_change_group
from runner.operations.resume import resume as apply_resume
from runner.operations.runner_command import send_command
from runner.operations.sql_export import breaker_script, command_script, limit_script, pause_script, script, undo_script
from runner.operations.targets import partition_targets, read_tasks
from runner.operations.undo.undo import preview_undo, undo_all
from runner.operations.undo.undo import undo as apply_undo
from runner.policy.limits import LimitUsage
from runner.queries.audit import audit, undoable
from runner.queries.breakers import breakers
from runner.queries.fate import GroupFate
from runner.queries.limits import limit_usages
from runner.queries.registries import Pause
from runner.queries.registries import pauses as read_pauses
from runner.text.formatting import age
from runner.text.times import format_moment, parse_moment
from tasktui.actions.action import Action, Confirmation
from tasktui.actions.plan import (
    LATER,
    NO_VALUES,
    ActionPlan,
    PlanChanges,
    changed_matches,
    changed_targets,
    plan_for_filter,
)
from tasktui.render.render import line
from tasktui.session.session import Job, Session

if TYPE_CHECKING:
    from runner.queries.audit import AuditRecord  # imports modules that the first screen does not need
    from runner.queries.task.detail import TaskDetail

CHUNK = 200
"""Maximum number of tasks to change in one transaction: it keeps locks short and shows progress."""

LATEST = 100
"""Maximum number of audit entries of a task to search for one to undo."""


async def preview(
    session: Session, action: Action, task_filter: Filter, values: Mapping[str, object] = NO_VALUES
) -> ActionPlan:
    """Preview an action on the tasks that match a filter; an edit needs its validated values."""
    (planned,) = await previews(session, action, (task_filter,), values)
    return planned


async def previews(
    session: Session, action: Action, filters: Sequence[Filter], values: Mapping[str, object] = NO_VALUES
) -> list[ActionPlan]:
    """Preview an action on the tasks that match each of several filters, all at the same moment."""
    return await session.read(_previews, action, filters, values)


async def _previews(
    tx: Transaction, action: Action, filters: Sequence[Filter], values: Mapping[str, object]
) -> list[ActionPlan]:
    steps = (apply_preview(tx, each, action.verb, values=values) for each in filters)
    previewed, obstacles = await tx.gather(tx.gather(*steps), _obstacles(tx, action))
    plans = [plan_for_filter(action, each, of, values) for each, of in zip(filters, previewed, strict=True)]
    return [_with(obstacles, each) for each in plans]


async def with_obstacles(session: Session, planned: ActionPlan) -> ActionPlan:
    """Return the plan of a retry with the open breakers and the pauses that its tasks meet."""
    return _with(await session.read(_obstacles, planned.action), planned)


class Obstacles(NamedTuple):
    """The obstacles that the tasks of a retry may meet.

    Args:
        handlers: the handlers with an open breaker.
        queues: the paused queues.
    """

    handlers: Collection[str] = ()
    queues: Collection[str] = ()


async def _obstacles(tx: Transaction, action: Action) -> Obstacles:
    if action.verb != "retry_now":
        return Obstacles()
    found, paused = await tx.gather(breakers(tx, only_open=True), read_pauses(tx))
    return Obstacles([row.handler for row in found if row.state], paused.queues)


def _with(obstacles: Obstacles, planned: ActionPlan) -> ActionPlan:
    """Add the obstacles of a plan's tasks, whose samples name their handlers."""
    sampled = {task.handler for task in planned.samples}
    handlers = [name for name in obstacles.handlers if name in sampled]
    queues = dict.fromkeys(queue for _, queue in planned.groups if queue in obstacles.queues)
    texts = (
        *(f"The breaker of {name} is open: its tasks wait for the next probe." for name in handlers),
        *(f"Queue {name} is paused: its tasks wait." for name in queues),
    )
    return replace(planned, obstacles=(*planned.obstacles, *texts))


async def changes_since(session: Session, plan: ActionPlan) -> PlanChanges:
    """Describe how the tasks of a plan have changed since it was made."""

    async def later(_tx: Transaction, ids: Sequence[int]) -> Mapping[int, str]:
        return {id: LATER for id in ids if plan.reasons.get(id, LATER) is not None}

    if plan.task_filter is None:
        return changed_targets(plan, await session.read(_skipped_now, plan))
    verb, objections = plan.action.verb, later if plan.reasons else None
    preview = await session.read(apply_preview, plan.task_filter, verb, values=plan.values, objections=objections)
    return changed_matches(plan, preview)


async def _skipped_now(tx: Transaction, plan: ActionPlan) -> Result:
    tasks = await read_tasks(tx, sorted(target.id for target in plan.targets), locked=False)
    return partition_targets(plan.action.verb, plan.targets, tasks)[1]


async def carry_out(session: Session, plan: ActionPlan, confirmation: Confirmation, work: Job) -> Result:
    """Apply a plan of one database in chunks; each task must still be at the version on the screen.

    Args:
        work: receives the progress and requests the stop.
    """
    by = session.by(confirmation.reason)
    single = plan.task_filter is None and len(plan.targets) == 1
    if confirmation.change_group is not None:
        by = by._replace(change_group=confirmation.change_group)
    elif not single:
        by = with_change_group(by)
    change = _as_previewed(plan, plan.action.operation(by, confirmation.answer))
    limit = plan.most(confirmation)
    options = BulkOptions(CHUNK, limit=limit, on_progress=work.update, stop=lambda: work.stopping)
    if plan.task_filter is not None and confirmation.canary:
        canary = await apply_canary(session, change, by, plan.task_filter, options, partial(_waits, work))
        if canary.failure:
            work.note = f"Canary {line(canary.failure)}. {await _undoable(session, str(by.change_group))}"
        else:
            work.note, work.undo = "", f"{work.undo} what has not started"
        return canary.result
    if plan.task_filter is not None:
        return await to_all(session, change, plan.task_filter, options)
    return await to_each(session, change, plan.targets, options)


def _as_previewed(plan: ActionPlan, change: Operation) -> Operation:
    """The operation on the tasks that its preview changes: those that match or apply only since then stay."""

    async def apply(tx: Transaction, targets: Sequence[Target]) -> Result:
        result = await change(tx, [each for each in targets if plan.reasons.get(each.id, LATER) is None])
        result.skipped += [Skipped(each.id, why) for each in targets if (why := plan.reasons.get(each.id))]
        return result

    return apply if plan.reasons else change


async def _undoable(session: Session, change_group: str) -> str:
    """Describe how much of a stopped canary can be undone."""
    preview = await session.read(preview_undo, None, change_group)
    if not preview.able:
        return "All its tasks have started: there is nothing to undo."
    more = "+" if preview.more else ""
    return f"8 Z undoes what has not started: {len(preview.able):,}{more} of {len(preview.changes):,}{more} changes."


def _waits(work: Job, fate: GroupFate) -> None:
    work.note = f"waiting for {len(fate.pending):,} of them" if fate.pending else ""


async def plan_sql(session: Session, plan: ActionPlan, confirmation: Confirmation) -> str:
    """Write the SQL of a plan that lists its tasks."""
    by = session.by(confirmation.reason)
    change = plan.action.operation(by if len(plan.targets) == 1 else with_change_group(by), confirmation.answer)
    return await session.write(script, change, plan.targets[: confirmation.limit])


async def undo_sql(session: Session, entry: "AuditRecord", confirmation: Confirmation) -> str:
    """Write the SQL that undoes a change.

    Raises:
        NoSqlEquivalent: the change has no SQL equivalent.
    """
    return await session.write(undo_script, entry, session.by(confirmation.reason))


async def current_pause(session: Session, target: PauseTarget) -> Pause | None:
    """Read the current pause of a queue or a handler."""
    pauses = await session.read(read_pauses)
    return (pauses.queues if target.kind is PauseKind.QUEUE else pauses.handlers).get(target.name)


async def pause(session: Session, target: PauseTarget, length: str, reason: str | None) -> str:
    """Pause a queue or a handler: none of its tasks start.

    Args:
        target: the queue or the handler.
        length: a duration such as 30m or an end such as 14:30; empty to keep the end of the current pause, or to
            pause until resumed.

    Returns:
        The result in words, with the end of the pause.
    """
    result = await session.write(apply_pause, target, session.by(reason), await _until(session, length))
    before = " (was already paused)" if result.again else ""
    end = f"until {format_moment(result.until, session.zone)}" if result.until else "until resumed"
    return f"paused {end}{before}"


async def _until(session: Session, length: str) -> datetime | None:
    now = await session.read(clock)
    return parse_moment(length, now, session.zone) if length else None


async def pause_sql(session: Session, target: PauseTarget, current: Pause | None, confirmation: Confirmation) -> str:
    """Write the SQL that pauses a queue or a handler, or resumes it if it is paused.

    Raises:
        NoSqlEquivalent: the change has no SQL equivalent.
    """
    by = session.by(confirmation.reason)
    if current is not None:
        return await session.write(pause_script, target, partial(apply_resume, target=target, by=by))
    until = await _until(session, confirmation.answer)
    return await session.write(pause_script, target, partial(apply_pause, target=target, by=by, until=until))


async def current_limits(session: Session, target: PauseTarget) -> LimitUsage | None:
    """Read the limits of a queue or a handler, and their use; None if it has none."""
    names = {kind.value: target.name if kind is target.kind else "" for kind in PauseKind}
    return next(iter(await session.read(limit_usages, names)), None)


async def limit(session: Session, target: PauseTarget, answer: str, reason: str | None) -> str:
    """Set the limits of a queue or a handler, such as `concurrency=5 rate=none`."""
    result = await session.write(set_limits, target, parse_edit(answer), session.by(reason))
    return f"{result.after} (before: {result.before})"


async def limit_sql(session: Session, target: PauseTarget, confirmation: Confirmation) -> str:
    """Write the SQL that sets the limits of a queue or a handler.

    Raises:
        NoSqlEquivalent: the change has no SQL equivalent.
    """
    edit = parse_edit(confirmation.answer)
    return await session.write(limit_script, target, edit, session.by(confirmation.reason))


async def switch_breaker(session: Session, handler: str, closes: bool, confirmation: Confirmation) -> str:
    """Close the breaker of a handler, or open it."""
    result = await session.write(_breaker_change(session, handler, closes, confirmation))
    state = result.row.state
    if not result.changed:
        return f"was already {'closed' if closes else 'open'}"
    return "closed" if state is None else f"opened; the next probe starts in {age(round(state.next_in))}"


async def breaker_sql(session: Session, handler: str, closes: bool, confirmation: Confirmation) -> str:
    """Write the SQL that opens or closes the breaker of a handler.

    Raises:
        NoSqlEquivalent: the change has no SQL equivalent.
    """
    return await session.write(breaker_script, handler, _breaker_change(session, handler, closes, confirmation))


def _breaker_change(
    session: Session, handler: str, closes: bool, confirmation: Confirmation
) -> Callable[[Transaction], Awaitable[BreakerResult]]:
    by = session.by(confirmation.reason)
    if closes:
        return partial(close_by_hand, handler=handler, by=by)
    return partial(open_by_hand, handler=handler, by=by, wait=parse_duration(confirmation.answer))


async def runner_command_sql(session: Session, action: Action, runner_id: int, confirmation: Confirmation) -> str:
    """Write the SQL that stores a runner command.

    Raises:
        NoSqlEquivalent: the change has no SQL equivalent.
    """
    command = confirmation.answer if action.prompt else action.name
    return await session.write(command_script, runner_id, command, session.by(confirmation.reason))


async def resume(session: Session, target: PauseTarget, reason: str | None) -> str:
    """Resume a queue or a handler."""
    return "resumed" if await session.write(apply_resume, target, session.by(reason)) else "was not paused"


async def send_runner_command(session: Session, runner_id: int, command: str, reason: str | None) -> str:
    """Store a command for a runner."""
    stored = await session.write(send_command, runner_id, command, session.by(reason))
    return f"receives '{command}' at its next heartbeat" if stored else "is no longer registered"


async def record_reveal(session: Session, task_id: int) -> None:
    """Record in the audit that the operator reveals the secrets of a task."""
    await session.write(reveal, task_id, session.by(None))


async def opened(session: Session, detail: "TaskDetail") -> "tuple[TaskDetail, list[str]]":
    """Decrypt the values of a task with the keys of the profile; return also why some stay encrypted."""
    from runner.handlers.keyring import Keyring  # most tasks are not encrypted
    from runner.queries.task.opened_detail import opened_detail

    return await asyncio.to_thread(lambda: opened_detail(detail, Keyring(session.settings)))


async def last_change(session: Session, task_id: int) -> "AuditRecord | None":
    """Read the latest change of a task by an operator that is not undone."""
    return undoable(await session.read(audit, task_id=task_id, limit=LATEST))


async def undo(session: Session, entry: int, reason: str | None) -> Result:
    """Undo a change."""
    return await session.write(apply_undo, [entry], session.by(reason))


async def undo_group(session: Session, group: str, confirmation: Confirmation, work: Job) -> Result:
    """Undo a change group in chunks."""
    options = BulkOptions(CHUNK, limit=work.total, on_progress=work.update, stop=lambda: work.stopping)
    return await undo_all(
        session, partial(apply_undo, by=with_change_group(session.by(confirmation.reason))), group, options
    )
