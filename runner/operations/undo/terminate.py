"""Restore tasks that were terminated before they ran."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.schema import is_state, state_literal
from runner.db.transaction import Transaction
from runner.model.task import FINAL, MOVES, State
from runner.operations.audit_log import AuditEntry, record
from runner.operations.lock import LockedTask
from runner.operations.results import Actor, Result
from runner.operations.undo.entries import UndoableChange
from runner.operations.undo.unblock import block_again
from runner.operations.unique_keys import Locked, assign_keys
from runner.store import history
from runner.store.minute_statistics import count_unclaimed


class Restored(NamedTuple):
    """The tasks to restore.

    Args:
        keys: the locked unique keys of these tasks, and of tasks that cannot be restored.
        pairs: the changes that can be undone, and their locked tasks.
    """

    keys: Locked
    pairs: Sequence[tuple[UndoableChange, LockedTask]]


async def restore(tx: Transaction, restored: Restored, by: Actor) -> Result:
    """Move cancelled tasks back to the live table with their due times, attempts and errors, blocked ones as blocked.

    A task whose unique key another task holds is skipped.

    Args:
        tx: a writing transaction.
        restored: the tasks to restore.
        by: the author.
    """
    result = Result()
    changes = {task.id: change for change, task in restored.pairs}
    tasks = await assign_keys(tx, restored.keys, [task for _, task in restored.pairs], result)
    ids = [task.id for task in tasks]
    if ids:
        await history.restore(tx, [(id, changes[id].before.get("error")) for id in ids])
        await count_unclaimed(tx, ids, times=-1)
        blocked = [id for id in ids if changes[id].before["state"] == State.BLOCKED]
        await _reopen(tx, blocked)
        await block_again(tx, blocked)
    await record(tx, by, [_entry(changes[task.id], task) for task in tasks])
    result.changed = ids
    return result


async def consequences(tx: Transaction, ends: Iterable[UndoableChange]) -> dict[int, int]:
    """Find one dependent per terminated task that was cancelled or released because of the termination.

    A runner that judges a dependency at this moment uses the end that it has read, as with a requeue.
    """
    dependency = tx.tables.dependency
    since = {change.subject: change.at for change in ends}
    is_cancelled = tx.dialect.one_of(dependency.c.parent_id, list(since)) & (
        dependency.c.parent_state == State.CANCELLED.value
    )
    # A dependency that only waits is closed by the termination of its own task, never by that of the parent.
    is_consequence = (
        is_cancelled
        & (dependency.c.on_failure != "wait")
        & dependency.c.satisfied_at.is_not(None)
        & dependency.c.satisfied_by.is_(None)
    )
    rows = await tx.rows(
        sa.select(dependency.c.parent_id, dependency.c.task_id, dependency.c.satisfied_at).where(is_consequence)
    )
    pairs = [(row.parent_id, row.task_id, since[row.parent_id], row.satisfied_at) for row in rows]
    return {parent: child for parent, child, ended, closed in pairs if ended is None or closed >= ended}


async def _reopen(tx: Transaction, ids: Sequence[int]) -> None:
    """Reopen the dependencies that were closed only because their task ended."""
    if not ids:
        return
    dependency = tx.tables.dependency
    released_by_failure = (dependency.c.on_failure == "run") & is_state(dependency.c.parent_state, *FINAL)
    resolved = sa.func.coalesce(
        dependency.c.parent_state == state_literal(State.SUCCEEDED), sa.false()
    ) | sa.func.coalesce(released_by_failure, sa.false())
    reopened = tx.dialect.one_of(dependency.c.task_id, ids) & dependency.c.satisfied_by.is_(None) & ~resolved
    await tx.execute(sa.update(dependency).where(reopened).values(satisfied_at=None))


def _entry(change: UndoableChange, task: LockedTask) -> AuditEntry:
    state = change.before["state"]
    verb = "reblock" if state == State.BLOCKED else "restore"
    return AuditEntry(verb, {"state": task.state}, {"state": MOVES[verb].target}, task.id, undo_of=change.id)
