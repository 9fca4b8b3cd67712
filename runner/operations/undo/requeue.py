"""Return requeued tasks that have not started to the history."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.db.dialects import by_column, same_id
from runner.db.transaction import Transaction
from runner.model.task import MOVES
from runner.operations.audit_log import AuditEntry, record
from runner.operations.lock import LockedTask, change
from runner.operations.results import Actor, Result
from runner.operations.undo.entries import UndoableChange, edited_columns, former_values
from runner.store.history import UNASSIGNED, FinishedTask, delete_stale_history, finish, restore_endings
from runner.store.minute_statistics import NO_RUNNER

TRAIL = ("attempt", "rescues", "interruptions")
TRAIL_COLUMNS: dict[str, Any] = {"id": sa.BigInteger} | dict.fromkeys(TRAIL, sa.Integer)

MOVES_TO = {MOVES[verb].target: verb for verb in ("undo_retry", "cancel")}
"""The move to each state that a task can be requeued from."""


async def undo_requeue(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Make requeued tasks dead or cancelled again, with their former times and runner; their unique keys become free.

    Args:
        tx: a writing transaction.
        pairs: the changes that can be undone, and their locked tasks.
        by: the author.
    """
    await _restore_attempts(tx, [retry for retry, _ in pairs])
    for retry, task in pairs:
        if names := edited_columns(retry):
            await change(tx, [task.id], **former_values(retry, names))
    await delete_stale_history(tx, [task.id for _, task in pairs])
    for state, verb in MOVES_TO.items():
        endings = [FinishedTask(task.id, task.fence) for retry, task in pairs if retry.before["state"] == state]
        if endings:
            await finish(tx, verb, NO_RUNNER, endings)
    await restore_endings(tx, [_ending(retry, task) for retry, task in pairs])
    await record(tx, by, [_entry(retry, task) for retry, task in pairs])
    return Result([task.id for _, task in pairs])


async def _restore_attempts(tx: Transaction, changes: Sequence[UndoableChange]) -> None:
    """Restore the counts that the requeue reset."""
    rows = [(change.subject, *(_count(change, name) for name in TRAIL)) for change in changes]
    task = tx.tables.task
    counts, match = tx.dialect.one_by_one(tx.dialect.rows("trail", TRAIL_COLUMNS), task, same_id)
    values = {name: counts.c[name] for name in TRAIL} | UNASSIGNED
    statement = sa.update(task).where(match).values(values)
    await tx.execute(statement, tx.dialect.parameters("trail", by_column(TRAIL_COLUMNS, rows)))


def _count(change: UndoableChange, name: str) -> int:
    value = change.before.get(name)
    return value if isinstance(value, int) and value >= 0 else 0


def _ending(change: UndoableChange, task: LockedTask) -> tuple[Any, ...]:
    """The times, the runner and the duration before the retry; the present due time if it is unknown."""
    times = {name: _moment(change.before.get(name)) for name in ("run_at", "finished_at", "claimed_at")}
    runner_id, duration = change.before.get("runner_id"), change.before.get("duration")
    return (
        *(task.id, times["run_at"] or task.run_at, times["finished_at"], times["claimed_at"]),
        *(runner_id if isinstance(runner_id, int) else None, duration if isinstance(duration, float) else None),
    )


def _moment(recorded: object) -> datetime | None:
    """A recorded time; None if it is missing or unreadable."""
    if isinstance(recorded, datetime):
        return recorded
    with suppress(ValueError):
        moment = datetime.fromisoformat(recorded) if isinstance(recorded, str) else None
        return moment if moment is not None and moment.tzinfo is not None else None
    return None


def _entry(change: UndoableChange, task: LockedTask) -> AuditEntry:
    state = change.before["state"]
    verb = next(verb for target, verb in MOVES_TO.items() if target == state)
    return AuditEntry(verb, {"state": task.state}, {"state": state}, task.id, undo_of=change.id)
