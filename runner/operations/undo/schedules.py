"""Undo changes of schedules."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.errors import InvalidInput, UnknownSchedule
from runner.model.schedule import SPEC_COLUMNS, ScheduleSpec
from runner.operations.audit_log import AuditEntry, record
from runner.operations.pause import PAUSE
from runner.operations.results import Actor
from runner.operations.schedule import PLANNED, RESTORED, change_schedule, lock_schedule
from runner.operations.undo.entries import UndoableChange
from runner.policy.schedule_spec import check_spec
from runner.queries.rows import moment

CHANGED_SINCE = "the schedule has changed since"
GONE = "the schedule no longer exists"
EXISTS = "there is a schedule with this id again"
SUBMITTED = "its task has been submitted: terminate that instead"
PREFIX = "schedule "


def is_of_schedule(change: UndoableChange) -> bool:
    """True if a change is to a schedule, and `undo_schedule` knows its operation."""
    verbs = ("add", "edit", "pause", "resume", "run", "delete")
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
