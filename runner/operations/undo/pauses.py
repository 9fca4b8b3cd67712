"""Undo changes of queues, handlers and runners."""

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.operations.audit_log import AuditEntry, record
from runner.operations.limit import CLOSE, OPEN, before_of, read_entry, read_state, restore
from runner.operations.limit import COLUMNS as LIMIT_COLUMNS
from runner.operations.limit import write as write_limits
from runner.operations.pause import PAUSE, PauseKind, PauseTarget, pause_of, pause_set
from runner.operations.results import Actor
from runner.operations.undo.entries import UndoableChange
from runner.queries.limits import breakers
from runner.queries.rows import moment

CHANGED_SINCE = "it has been paused or resumed again since"
SWITCHED_SINCE = "the breaker has been opened or closed again since"
LIMITED_SINCE = "its limits have been changed again since"
EXPIRED = "that pause would have ended by now"
UNKNOWN = "its target is unknown"
NOT_PENDING = "its runner has received it, has another command, or no longer exists"


async def undo_pause(tx: Transaction, change: UndoableChange, by: Actor) -> str | None:
    """Undo a pause or resume.

    Args:
        tx: a writing transaction.
        change: the change to undo.
        by: the author.

    Returns:
        The reason if it cannot be undone; None if it was.
    """
    kind, _, name = (change.target or "").partition(" ")
    if kind not in tuple(PauseKind):
        return UNKNOWN
    target = PauseTarget(PauseKind(kind), name)
    current = await pause_of(tx, target)
    if current.get("paused_at") != moment(change.after.get("paused_at")):
        return CHANGED_SINCE
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
    kind, _, name = (change.target or "").partition(" ")
    if kind not in tuple(PauseKind):
        return UNKNOWN
    target = PauseTarget(PauseKind(kind), name)
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
    kind, _, handler = (change.target or "").partition(" ")
    if kind != PauseKind.HANDLER or not await breakers(tx, handler):
        return UNKNOWN
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
