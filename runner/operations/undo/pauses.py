"""Undo changes of queues, handlers and runners."""

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.operations.audit_log import AuditEntry, record
from runner.operations.pause import PAUSE, PauseKind, PauseTarget, pause_of, pause_set
from runner.operations.results import Actor
from runner.operations.undo import entries
from runner.queries.rows import moment

OTHER_PAUSE = "it has been paused or resumed again since"
RUN_OUT = "that pause would have ended by now"
UNKNOWN = "its target is unknown"
HEARD = "its runner has received it, has another command, or no longer exists"


async def undo_place_change(tx: Transaction, change: entries.UndoableChange, by: Actor) -> str | None:
    """Undo a pause, resume or runner command.

    Args:
        tx: a writing transaction.
        change: a change of one of these kinds.
        by: the author.

    Returns:
        The reason if it cannot be undone; None if it was.
    """
    kind, _, name = (change.target or "").partition(" ")
    if change.kind is entries.ChangeKind.COMMAND and name.isdecimal():
        return await _command(tx, change, int(name), by)
    if change.kind is entries.ChangeKind.PAUSE and kind in tuple(PauseKind):
        return await _pause(tx, change, PauseTarget(PauseKind(kind), name), by)
    return UNKNOWN


async def _pause(tx: Transaction, change: entries.UndoableChange, place: PauseTarget, by: Actor) -> str | None:
    current = await pause_of(tx, place)
    if current.get("paused_at") != moment(change.after.get("paused_at")):
        return OTHER_PAUSE
    before = {name: change.before.get(name) for name in PAUSE} if change.before else {}
    before |= {name: moment(before[name]) for name in ("paused_at", "paused_until") if name in before}
    until = before.get("paused_until")
    if until is not None and until <= await clock(tx):
        if change.verb == "resume":
            return RUN_OUT
        before = {}
    await pause_set(tx, place, before)
    verb = "pause" if before else "resume"
    await record(tx, by, [AuditEntry(verb, current, before, target=change.target, undo_of=change.id)])
    return None


async def _command(tx: Transaction, change: entries.UndoableChange, runner_id: int, by: Actor) -> str | None:
    runner = tx.tables.runner
    is_runner = runner.c.id == runner_id
    rows = await tx.rows(sa.select(runner.c.command).where(is_runner).with_for_update())
    if not rows or rows[0].command is None or rows[0].command != change.after.get("command"):
        return HEARD
    before = change.before.get("command")
    await tx.execute(sa.update(runner).where(is_runner).values(command=before))
    entry = AuditEntry(
        "command", {"command": rows[0].command}, {"command": before}, target=change.target, undo_of=change.id
    )
    await record(tx, by, [entry])
    return None
