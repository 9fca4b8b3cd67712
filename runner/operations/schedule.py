"""schedule: add, edit, pause, resume, run, free and delete schedules."""

import difflib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.db.lock_limits import OPERATION_LOCKS
from runner.db.transaction import Transaction, clock
from runner.db.types import next_version
from runner.errors import (
    DuplicateScheduleId,
    InvalidSchedule,
    ScheduleConflict,
    ScheduleInCode,
    UnknownSchedule,
)
from runner.handlers.schedules import check_id
from runner.model.schedule import SPEC_COLUMNS, ScheduleSpec
from runner.operations.audit_log import AuditEntry, record
from runner.operations.pause import PAUSE, require_future
from runner.operations.results import Actor
from runner.operations.written_rows import write_rows
from runner.policy.schedule_ticks import check_spec
from runner.queries.signatures import stored_signature
from runner.store.schedules.runs import last_runs
from runner.text.redact import redact

PLANNED = ("rule", "timezone")
"""The columns that the next tick depends on."""

ROUND = ("last_task_id", "other_task_ids")
"""The columns that name the unfinished runs."""

RESTORED = (*SPEC_COLUMNS, "declared", "module", "replaced", "run_requested_at", *PAUSE, *ROUND)
"""The columns that an undo of a deletion brings back."""

LONGEST_SHOWN = 80
"""Characters of a refused payload in an error."""

CLOSE = 0.6
"""Similarity of a suggested id, from 0 to 1."""


def target_of(id: str) -> str:
    """Return the target of the audit entries of a schedule."""
    return f"schedule {id}"


async def add_schedule(
    tx: Transaction, id: str, spec: ScheduleSpec, by: Actor, payload_limit: int | None = None
) -> None:
    """Add a schedule; a runner plans its first tick within a second.

    Args:
        payload_limit: maximum size of the payload in bytes; None for no limit.

    Raises:
        InvalidSchedule: a value is not valid; nothing was changed.
        DuplicateScheduleId: there is a schedule with this id.
    """
    check_id(id)
    check_spec(spec, payload_limit)
    await check_arguments(tx, spec)
    table = tx.tables.schedule
    insert = tx.dialect.insert(table).values(id=id, **spec.values()).on_conflict_do_nothing().returning(table.c.id)
    if not (await tx.rows(insert)):
        raise DuplicateScheduleId(id=id)
    await record(tx, by, [AuditEntry("add", {}, spec.values(), target=target_of(id))])


async def edit_schedule(
    tx: Transaction,
    id: str,
    changes: Mapping[str, Any],
    by: Actor,
    *,
    version: int | None = None,
    payload_limit: int | None = None,
) -> dict[str, Any]:
    """Set columns of a schedule. The code of runners does not change them back.

    Args:
        changes: new values by column of ScheduleSpec.
        version: the expected version; None to edit any version.
        payload_limit: maximum size of the payload in bytes; None for no limit.

    Returns:
        The values that changed; empty if it already had all of them.

    Raises:
        InvalidSchedule: a value is not valid; nothing was changed.
        UnknownSchedule: no schedule has this id.
        ScheduleConflict: it has changed since `version`.
    """
    row = await lock_schedule(tx, id, version)
    spec = ScheduleSpec.of(row)._replace(**changes)
    check_spec(spec, payload_limit)
    if {"handler", "payload"} & changes.keys():
        await check_arguments(tx, spec)
    after = {name: value for name, value in spec.values().items() if value != row[name]}
    if after:
        before = {name: row[name] for name in after}
        planned = {"next_at": None} if set(PLANNED) & after.keys() or row["error"] else {}
        await change_schedule(tx, id, after | planned | {"error": None})
        await record(tx, by, [AuditEntry("edit", before, after, target=target_of(id))])
    return after


async def check_arguments(tx: Transaction, spec: ScheduleSpec) -> None:
    """Reject a payload that the handler would refuse, as far as its runners have stored its signature.

    Raises:
        InvalidSchedule: the handler would refuse the payload.
    """
    signature = await stored_signature(tx, spec.handler)
    arguments = json.loads(spec.payload)
    if signature is not None and (why := signature.misfit(arguments)):
        shown = json.dumps(redact(arguments), ensure_ascii=False)[:LONGEST_SHOWN]
        raise InvalidSchedule(field="payload", value=shown, why=why)


async def pause_schedule(
    tx: Transaction, id: str, by: Actor, until: datetime | None = None, *, version: int | None = None
) -> dict[str, Any]:
    """Stop the ticks of a schedule; a run that was submitted continues.

    Args:
        until: when the pause ends automatically, aware; None for never. The ticks during a pause are not made up for.
        version: the expected version; None for any.

    Raises:
        InvalidEdit: the end is not in the future.
        UnknownSchedule: no schedule has this id.
        ScheduleConflict: it has changed since `version`.
    """
    row = await lock_schedule(tx, id, version)
    now = await clock(tx)
    if until is not None:
        require_future("the end of the pause", until, now)
    pause = {
        "paused_at": now,
        "paused_until": until,
        "paused_by": by.stored.operator,
        "paused_why": by.stored.reason,
    }
    await change_schedule(tx, id, pause | {"next_at": until})
    await record(tx, by, [AuditEntry("pause", _pause_of(row), pause, target=target_of(id))])
    return pause


async def resume_schedule(tx: Transaction, id: str, by: Actor, *, version: int | None = None) -> bool:
    """End the pause of a schedule; a runner plans its next tick.

    Args:
        version: the expected version; None for any.

    Returns:
        False if it was not paused, and nothing was changed.

    Raises:
        UnknownSchedule: no schedule has this id.
        ScheduleConflict: it has changed since `version`.
    """
    row = await lock_schedule(tx, id, version)
    before = _pause_of(row)
    if before:
        await change_schedule(tx, id, dict.fromkeys(PAUSE) | {"next_at": None})
        await record(tx, by, [AuditEntry("resume", before, {}, target=target_of(id))])
    return bool(before)


async def run_schedule(tx: Transaction, id: str, by: Actor) -> datetime:
    """Ask for a run now, also of a paused schedule and beside an unfinished run; a runner submits it within a second.

    Returns:
        The time of the request.

    Raises:
        UnknownSchedule: no schedule has this id.
    """
    row = await lock_schedule(tx, id)
    now = await clock(tx)
    await change_schedule(tx, id, {"run_requested_at": now})
    before = {"run_requested_at": row["run_requested_at"]}
    await record(tx, by, [AuditEntry("run", before, {"run_requested_at": now}, target=target_of(id))])
    return now


async def free_schedule(tx: Transaction, id: str, by: Actor) -> int | None:
    """Free the round of a schedule: its next tick no longer waits for unfinished runs, which may have no runner.

    Returns:
        The task of the first unfinished run, which does not change; None if there is none.

    Raises:
        UnknownSchedule: no schedule has this id.
    """
    row = await lock_schedule(tx, id)
    unfinished = (await last_runs(tx, [row])).unfinished(row)
    if not unfinished:
        return None
    before = {name: row[name] for name in ROUND}
    after = dict.fromkeys(ROUND)
    await change_schedule(tx, id, after)
    await record(tx, by, [AuditEntry("free", before, after, target=target_of(id))])
    return min(unfinished)


async def delete_schedule(tx: Transaction, id: str, by: Actor, *, version: int | None = None) -> None:
    """Delete a schedule; its runs and their history stay.

    Args:
        version: the expected version; None for any.

    Raises:
        ScheduleInCode: it comes from code that may add it again.
        UnknownSchedule: no schedule has this id.
        ScheduleConflict: it has changed since `version`.
    """
    row = await lock_schedule(tx, id, version)
    if row["module"] is not None and row["paused_by"] != VANISHED_BY:
        raise ScheduleInCode(id=id, module=row["module"])
    table = tx.tables.schedule
    await write_rows(tx, sa.delete(table).where(table.c.id == id))
    await record(tx, by, [AuditEntry("delete", {name: row[name] for name in RESTORED}, {}, target=target_of(id))])


VANISHED_BY = "runner"
"""The author of the pause of a schedule that is no longer in the code; see runner.store.schedules.register."""


async def lock_schedule(tx: Transaction, id: str, version: int | None = None) -> dict[str, Any]:
    """Lock a schedule and return its row.

    Raises:
        UnknownSchedule: no schedule has this id.
        ScheduleConflict: it has changed since `version`.
    """
    table = tx.tables.schedule
    row = (
        sa.select(table).where(table.c.id == id, tx.dialect.lock_limit(OPERATION_LOCKS)).with_for_update(key_share=True)
    )
    rows = (await tx.execute(row)).mappings().all()
    if not rows:
        raise UnknownSchedule(id=id, hint=await _hint(tx, id))
    if version is not None and rows[0]["version"] != version:
        raise ScheduleConflict(id=id, seen=version, found=rows[0]["version"])
    return dict(rows[0])


async def _hint(tx: Transaction, id: str) -> str:
    table = tx.tables.schedule
    ids = [row.id for row in await tx.rows(sa.select(table.c.id).order_by(table.c.id).limit(1_000))]
    close = difflib.get_close_matches(id, ids, 1, CLOSE)
    return f"; did you mean {close[0]!r}" if close else ""


async def change_schedule(tx: Transaction, id: str, values: Mapping[str, Any]) -> None:
    """Set columns of a locked schedule, and raise its version."""
    table = tx.tables.schedule
    change = sa.update(table).where(table.c.id == id).values(version=next_version(table.c.version), **values)
    await write_rows(tx, change)


def _pause_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The pause of a schedule; empty without one."""
    return {name: row[name] for name in PAUSE} if row["paused_at"] is not None else {}
