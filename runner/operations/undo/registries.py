"""Undo changes of queues, handlers, runners and schedules."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.db.lock_limits import OPERATION_LOCKS
from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput, UnknownSchedule
from runner.model.schedule import SPEC_COLUMNS, ScheduleSpec
from runner.operations.audit_log import AuditEntry
from runner.operations.breaker import CLOSE, OPEN, read_state, restore
from runner.operations.limit import COLUMNS as LIMIT_COLUMNS
from runner.operations.limit import before_of, read_entry
from runner.operations.limit import write as write_limits
from runner.operations.pause import PAUSE, PauseKind, PauseTarget, pause_of, pause_set, registry_of
from runner.operations.schedule import PLANNED, RESTORED, ROUND, change_schedule, lock_schedule
from runner.operations.silence import SILENCE, set_silence, silence_of
from runner.operations.undo.entries import UndoableChange
from runner.policy.schedule_ticks import check_spec
from runner.queries.breakers import breakers
from runner.queries.rows import moment

PAUSED_SINCE = "it has been paused or resumed again since"
SWITCHED_SINCE = "the breaker has been opened or closed again since"
LIMITED_SINCE = "its limits have been changed again since"
EXPIRED = "that pause would have ended by now"
SILENCED_SINCE = "it has been silenced or unsilenced again since"
SILENCE_EXPIRED = "that silence would have ended by now"
UNKNOWN = "its target is unknown"
UNREGISTERED = "the registry has no row of {target} any more"
NO_BREAKER = "{target} has no breaker any more"
NOT_PENDING = "its runner has received it, has another command, or no longer exists"


UndoAnswer: TypeAlias = AuditEntry | str
"""The entry to record for an undo, which names the verb and the values; or the reason why it is not possible."""


async def _target_of(tx: Transaction, change: UndoableChange) -> PauseTarget | str:
    """The queue or handler of a change, whose row in the registry is locked then; or the reason why it has none."""
    kind, _, name = (change.target or "").partition(" ")
    if kind not in tuple(PauseKind):
        return UNKNOWN
    target = PauseTarget(PauseKind(kind), name)
    registry = registry_of(tx, target)
    row = sa.select(registry.c.name).where(registry.c.name == target.name, tx.dialect.lock_limit(OPERATION_LOCKS))
    return target if await tx.rows(row.with_for_update(key_share=True)) else UNREGISTERED.format(target=target)


TIMES = frozenset(("paused_at", "paused_until", "run_requested_at", "limited_at", "silenced_until"))


def _former(change: UndoableChange, columns: Iterable[str]) -> dict[str, Any]:
    """The values of some columns before a change."""
    return {name: moment(value) if name in TIMES else value for name in columns for value in [change.before.get(name)]}


async def undo_pause(tx: Transaction, change: UndoableChange) -> UndoAnswer:
    """Undo a pause or resume.

    Returns:
        The audit entry of the undo, or the reason why the change cannot be undone.
    """
    target = await _target_of(tx, change)
    if isinstance(target, str):
        return target
    current = await pause_of(tx, target)
    if current.get("paused_at") != moment(change.after.get("paused_at")):
        return PAUSED_SINCE
    before = _former(change, PAUSE) if change.before else {}
    until = before.get("paused_until")
    if until is not None and until <= await clock(tx):
        if change.verb == "resume":
            return EXPIRED
        before = {}
    await pause_set(tx, target, before)
    verb = "pause" if before else "resume"
    return AuditEntry(verb, current, before)


async def undo_limit(tx: Transaction, change: UndoableChange) -> UndoAnswer:
    """Undo a change of limits.

    Returns:
        The audit entry of the undo, or the reason why the change cannot be undone.
    """
    target = await _target_of(tx, change)
    if isinstance(target, str):
        return target
    current = before_of(await read_entry(tx, target, locked=True))
    if current["limited_at"] != moment(change.after.get("limited_at")):
        return LIMITED_SINCE
    before = _former(change, LIMIT_COLUMNS)
    await write_limits(tx, target, before)
    return AuditEntry("limit", current, before)


async def undo_breaker(tx: Transaction, change: UndoableChange) -> UndoAnswer:
    """Undo the opening or the closing of a breaker.

    Returns:
        The audit entry of the undo, or the reason why the change cannot be undone.
    """
    target = await _target_of(tx, change)
    if isinstance(target, str):
        return target
    if target.kind is not PauseKind.HANDLER:
        return UNKNOWN
    if not await breakers(tx, target.name):
        return NO_BREAKER.format(target=target)
    handler = target.name
    current = await read_state(tx, handler)
    is_open = current["breaker_probes"] is not None
    moved = "breaker_opened_at" if change.verb == OPEN else "breaker_closed_at"
    if is_open != (change.verb == OPEN) or current[moved] != moment(change.after.get(moved)):
        return SWITCHED_SINCE
    await restore(tx, handler, change.before)
    verb, after = CLOSE if is_open else OPEN, await read_state(tx, handler)
    return AuditEntry(verb, current, after)


async def undo_runner_command(tx: Transaction, change: UndoableChange) -> UndoAnswer:
    """Undo a runner command that its runner has not received.

    Returns:
        The audit entry of the undo, or the reason why the change cannot be undone.
    """
    runner_id = (change.target or "").partition(" ")[2]
    if not runner_id.isdecimal():
        return UNKNOWN
    runner = tx.tables.runner
    is_runner = runner.c.id == int(runner_id)
    command = sa.select(runner.c.command).where(is_runner, tx.dialect.lock_limit(OPERATION_LOCKS))
    rows = await tx.rows(command.with_for_update(key_share=True))
    if not rows or rows[0].command is None or rows[0].command != change.after.get("command"):
        return NOT_PENDING
    before = change.before.get("command")
    await tx.execute(sa.update(runner).where(is_runner).values(command=before))
    return AuditEntry("command", {"command": rows[0].command}, {"command": before})


async def undo_silence(tx: Transaction, change: UndoableChange) -> UndoAnswer:
    """Undo a silence, or its end.

    Returns:
        The audit entry of the undo, or the reason why the change cannot be undone.
    """
    name = (change.target or "").partition(" ")[2]
    current = await silence_of(tx, name)
    if current.get("silenced_until") != moment(change.after.get("silenced_until")):
        return SILENCED_SINCE
    before = _former(change, SILENCE) if change.before else {}
    until = before.get("silenced_until")
    if until is not None and until <= await clock(tx):
        return SILENCE_EXPIRED
    await set_silence(tx, name, before)
    return AuditEntry("silence" if before else "unsilence", current, before)


CHANGED_SINCE = "the schedule has changed since"
GONE = "the schedule no longer exists"
EXISTS = "there is a schedule with this id again"
SUBMITTED = "its task has been submitted: terminate that instead"
PREFIX = "schedule "


def is_of_schedule(change: UndoableChange) -> bool:
    """True if a change is one of a schedule, and `undo_schedule` knows its operation."""
    verbs = ("add", "edit", "pause", "resume", "run", "free", "delete")
    return (change.target or "").startswith(PREFIX) and change.verb in verbs


async def undo_schedule(tx: Transaction, change: UndoableChange) -> UndoAnswer:
    """Undo a change of a schedule.

    Returns:
        The audit entry of the undo, or the reason why the change cannot be undone.
    """
    id = (change.target or "").removeprefix(PREFIX)
    try:
        row = await lock_schedule(tx, id)
    except UnknownSchedule:
        return GONE if change.verb != "delete" else await _restore(tx, id, change)
    if change.verb == "delete":
        return EXISTS
    undo = {"add": _remove, "edit": _set_back, "run": _withdraw, "free": _hold}.get(change.verb, _swap_pause)
    return await undo(tx, id, row, change)


async def _remove(tx: Transaction, id: str, row: Mapping[str, Any], change: UndoableChange) -> UndoAnswer:
    if any(row[name] != change.after.get(name) for name in SPEC_COLUMNS):
        return CHANGED_SINCE
    table = tx.tables.schedule
    await tx.execute(sa.delete(table).where(table.c.id == id))
    before = {name: row[name] for name in RESTORED}
    return AuditEntry("delete", before, {})


async def _restore(tx: Transaction, id: str, change: UndoableChange) -> UndoAnswer:
    values = _former(change, RESTORED)
    spec = ScheduleSpec.of(values)
    try:
        check_spec(spec)
    except (InvalidInput, TypeError) as error:
        return str(error)
    planned = {"next_at": values["paused_until"]}
    await tx.execute(sa.insert(tx.tables.schedule).values(id=id, **values, **planned))
    return AuditEntry("add", {}, spec.values())


async def _set_back(tx: Transaction, id: str, row: Mapping[str, Any], change: UndoableChange) -> UndoAnswer:
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
    return AuditEntry("edit", after, before)


async def _withdraw(tx: Transaction, id: str, row: Mapping[str, Any], change: UndoableChange) -> UndoAnswer:
    if row["run_requested_at"] is None or row["run_requested_at"] != moment(change.after.get("run_requested_at")):
        return SUBMITTED
    await change_schedule(tx, id, {"run_requested_at": None})
    before, after = {"run_requested_at": row["run_requested_at"]}, {"run_requested_at": None}
    return AuditEntry("withdraw", before, after)


async def _hold(tx: Transaction, id: str, row: Mapping[str, Any], change: UndoableChange) -> UndoAnswer:
    """Let the next tick wait again for a run whose round was freed."""
    if row["last_task_id"] is not None:
        return CHANGED_SINCE
    after = {name: change.before.get(name) for name in ROUND}
    await change_schedule(tx, id, after)
    return AuditEntry("hold", dict.fromkeys(ROUND), after)


async def _swap_pause(tx: Transaction, id: str, row: Mapping[str, Any], change: UndoableChange) -> UndoAnswer:
    if row["paused_at"] != moment(change.after.get("paused_at")):
        return CHANGED_SINCE
    pause = _former(change, PAUSE)
    await change_schedule(tx, id, pause | {"next_at": pause["paused_until"]})
    verb = "pause" if pause["paused_at"] else "resume"
    before = {name: row[name] for name in PAUSE} if row["paused_at"] else {}
    after = pause if pause["paused_at"] else {}
    return AuditEntry(verb, before, after)
