"""Undo changes of queues, handlers, runners and schedules."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput, UnknownSchedule
from runner.model.schedule import SPEC_COLUMNS, ScheduleSpec
from runner.operations.audit_log import AuditEntry, record
from runner.operations.limit import CLOSE, OPEN, before_of, read_entry, read_state, restore
from runner.operations.limit import COLUMNS as LIMIT_COLUMNS
from runner.operations.limit import write as write_limits
from runner.operations.pause import PAUSE, PauseKind, PauseTarget, pause_of, pause_set
from runner.operations.results import Actor
from runner.operations.schedule import PLANNED, RESTORED, change_schedule, lock_schedule
from runner.operations.undo.entries import UndoableChange
from runner.policy.schedule_ticks import check_spec
from runner.queries.registries import breakers
from runner.queries.rows import moment

PAUSED_SINCE = "it has been paused or resumed again since"
SWITCHED_SINCE = "the breaker has been opened or closed again since"
LIMITED_SINCE = "its limits have been changed again since"
EXPIRED = "that pause would have ended by now"
UNKNOWN = "its target is unknown"
NOT_PENDING = "its runner has received it, has another command, or no longer exists"


def _target_of(change: UndoableChange) -> PauseTarget | None:
    """The queue or handler of a change; None if its target is neither."""
    kind, _, name = (change.target or "").partition(" ")
    return PauseTarget(PauseKind(kind), name) if kind in tuple(PauseKind) else None


async def undo_pause(tx: Transaction, change: UndoableChange, by: Actor) -> str | None:
    """Undo a pause or resume.

    Args:
        tx: a writing transaction.
        change: the change to undo.
        by: the author.

    Returns:
        The reason if it cannot be undone; None if it was.
    """
    target = _target_of(change)
    if target is None:
        return UNKNOWN
    current = await pause_of(tx, target)
    if current.get("paused_at") != moment(change.after.get("paused_at")):
        return PAUSED_SINCE
    before = {name: change.before.get(name) for name in PAUSE} if change.before else {}
    before |= {name: moment(before[name]) for name in ("paused_at", "paused_until") if name in before}
    until = before.get("paused_until")
    if until is not None and until <= await clock(tx):
        if change.verb == "resume":
            return EXPIRED
        before = {}
    await pause_set(tx, target, before)
    verb = "pause" if before else "resume"
    await record(tx, by, [AuditEntry(verb, current, before, target=change.target, undo_of=change.id)])
    return None


async def undo_limit(tx: Transaction, change: UndoableChange, by: Actor) -> str | None:
    """Undo a change of limits.

    Args:
        tx: a writing transaction.
        change: the change to undo.
        by: the author.

    Returns:
        The reason if it cannot be undone; None if it was.
    """
    target = _target_of(change)
    if target is None:
        return UNKNOWN
    current = before_of(await read_entry(tx, target, locked=True))
    if current["limited_at"] != moment(change.after.get("limited_at")):
        return LIMITED_SINCE
    before = {name: change.before.get(name) for name in LIMIT_COLUMNS}
    before["limited_at"] = moment(before["limited_at"])
    await write_limits(tx, target, before)
    await record(tx, by, [AuditEntry("limit", current, before, target=change.target, undo_of=change.id)])
    return None


async def undo_breaker(tx: Transaction, change: UndoableChange, by: Actor) -> str | None:
    """Undo the opening or the closing of a breaker.

    Args:
        tx: a writing transaction.
        change: the change to undo.
        by: the author.

    Returns:
        The reason if it cannot be undone; None if it was.
    """
    target = _target_of(change)
    if target is None or target.kind is not PauseKind.HANDLER or not await breakers(tx, target.name):
        return UNKNOWN
    handler = target.name
    current = await read_state(tx, handler)
    is_open = current["breaker_probes"] is not None
    moved = "breaker_opened_at" if change.verb == OPEN else "breaker_closed_at"
    if is_open != (change.verb == OPEN) or current[moved] != moment(change.after.get(moved)):
        return SWITCHED_SINCE
    await restore(tx, handler, change.before)
    verb, after = CLOSE if is_open else OPEN, await read_state(tx, handler)
    await record(tx, by, [AuditEntry(verb, current, after, target=change.target, undo_of=change.id)])
    return None


async def undo_command(tx: Transaction, change: UndoableChange, by: Actor) -> str | None:
    """Undo a runner command that its runner has not received.

    Args:
        tx: a writing transaction.
        change: the change to undo.
        by: the author.

    Returns:
        The reason if it cannot be undone; None if it was.
    """
    runner_id = (change.target or "").partition(" ")[2]
    if not runner_id.isdecimal():
        return UNKNOWN
    runner = tx.tables.runner
    is_runner = runner.c.id == int(runner_id)
    rows = await tx.rows(sa.select(runner.c.command).where(is_runner).with_for_update())
    if not rows or rows[0].command is None or rows[0].command != change.after.get("command"):
        return NOT_PENDING
    before = change.before.get("command")
    await tx.execute(sa.update(runner).where(is_runner).values(command=before))
    entry = AuditEntry(
        "command", {"command": rows[0].command}, {"command": before}, target=change.target, undo_of=change.id
    )
    await record(tx, by, [entry])
    return None


CHANGED_SINCE = "the schedule has changed since"
GONE = "the schedule no longer exists"
EXISTS = "there is a schedule with this id again"
SUBMITTED = "its task has been submitted: terminate that instead"
PREFIX = "schedule "


def is_of_schedule(change: UndoableChange) -> bool:
    """True if a change is one of a schedule, and `undo_schedule` knows its operation."""
    verbs = ("add", "edit", "pause", "resume", "run", "free", "delete")
    return (change.target or "").startswith(PREFIX) and change.verb in verbs


async def undo_schedule(tx: Transaction, change: UndoableChange, by: Actor) -> str | None:
    """Undo a change of a schedule.

    Args:
        tx: a writing transaction.
        change: the change to undo.
        by: the author.

    Returns:
        The reason if it cannot be undone; None if it was.
    """
    id = (change.target or "").removeprefix(PREFIX)
    try:
        row = await lock_schedule(tx, id)
    except UnknownSchedule:
        return GONE if change.verb != "delete" else await _restore(tx, id, change, by)
    match change.verb:
        case "delete":
            return EXISTS
        case "add":
            why = await _remove(tx, id, row, change, by)
        case "edit":
            why = await _set_back(tx, id, row, change, by)
        case "run":
            why = await _withdraw(tx, id, row, change, by)
        case "free":
            why = await _hold(tx, id, row, change, by)
        case _:
            why = await _swap_pause(tx, id, row, change, by)
    return why


async def _remove(tx: Transaction, id: str, row: Mapping[str, Any], change: UndoableChange, by: Actor) -> str | None:
    if any(row[name] != change.after.get(name) for name in SPEC_COLUMNS):
        return CHANGED_SINCE
    table = tx.tables.schedule
    await tx.execute(sa.delete(table).where(table.c.id == id))
    before = {name: row[name] for name in RESTORED}
    await record(tx, by, [AuditEntry("delete", before, {}, target=change.target, undo_of=change.id)])
    return None


async def _restore(tx: Transaction, id: str, change: UndoableChange, by: Actor) -> str | None:
    values = {name: change.before.get(name) for name in RESTORED}
    values |= {name: moment(values[name]) for name in ("paused_at", "paused_until")}
    spec = ScheduleSpec.of(values)
    try:
        check_spec(spec)
    except (InvalidInput, TypeError) as error:
        return str(error)
    planned = {"next_at": values["paused_until"]}
    await tx.execute(sa.insert(tx.tables.schedule).values(id=id, **values, **planned))
    await record(tx, by, [AuditEntry("add", {}, spec.values(), target=change.target, undo_of=change.id)])
    return None


async def _set_back(tx: Transaction, id: str, row: Mapping[str, Any], change: UndoableChange, by: Actor) -> str | None:
    names = [name for name in SPEC_COLUMNS if name in change.after]
    if any(row[name] != change.after[name] for name in names):
        return CHANGED_SINCE
    before = {name: change.before.get(name) for name in names}
    try:
        check_spec(ScheduleSpec.of({**row, **before}))
    except (InvalidInput, TypeError) as error:
        return str(error)
    planned = {"next_at": None} if set(PLANNED) & set(names) else {}
    await change_schedule(tx, id, before | planned | {"error": None})
    after = {name: row[name] for name in names}
    await record(tx, by, [AuditEntry("edit", after, before, target=change.target, undo_of=change.id)])
    return None


async def _withdraw(tx: Transaction, id: str, row: Mapping[str, Any], change: UndoableChange, by: Actor) -> str | None:
    if row["run_requested_at"] is None or row["run_requested_at"] != moment(change.after.get("run_requested_at")):
        return SUBMITTED
    await change_schedule(tx, id, {"run_requested_at": None})
    before, after = {"run_requested_at": row["run_requested_at"]}, {"run_requested_at": None}
    await record(tx, by, [AuditEntry("withdraw", before, after, target=change.target, undo_of=change.id)])
    return None


async def _hold(tx: Transaction, id: str, row: Mapping[str, Any], change: UndoableChange, by: Actor) -> str | None:
    """Let the next tick wait again for a run whose round was freed."""
    if row["last_task_id"] is not None:
        return CHANGED_SINCE
    after = {"last_task_id": change.before.get("last_task_id")}
    await change_schedule(tx, id, after)
    await record(tx, by, [AuditEntry("hold", {"last_task_id": None}, after, target=change.target, undo_of=change.id)])
    return None


async def _swap_pause(
    tx: Transaction, id: str, row: Mapping[str, Any], change: UndoableChange, by: Actor
) -> str | None:
    if row["paused_at"] != moment(change.after.get("paused_at")):
        return CHANGED_SINCE
    pause = {name: change.before.get(name) for name in PAUSE}
    pause |= {name: moment(pause[name]) for name in ("paused_at", "paused_until")}
    await change_schedule(tx, id, pause | {"next_at": pause["paused_until"]})
    verb = "pause" if pause["paused_at"] else "resume"
    before = {name: row[name] for name in PAUSE} if row["paused_at"] else {}
    after = pause if pause["paused_at"] else {}
    await record(tx, by, [AuditEntry(verb, before, after, target=change.target, undo_of=change.id)])
    return None
