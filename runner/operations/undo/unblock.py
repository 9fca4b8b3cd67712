"""Undo an unblock."""

from collections.abc import Sequence

import sqlalchemy as sa

from runner.db.schema import state_literal
from runner.db.transaction import Transaction
from runner.db.types import next_version
from runner.model.task import MOVES
from runner.operations.audit_log import AuditEntry, record
from runner.operations.lock import LockedTask
from runner.operations.results import Actor, Result, Skipped
from runner.operations.undo.entries import UndoableChange
from runner.store.dependencies.parents import is_open

NO_DEPENDENCIES = "its dependencies no longer exist"


async def reblock(tx: Transaction, pairs: Sequence[tuple[UndoableChange, LockedTask]], by: Actor) -> Result:
    """Reopen the dependencies that an operator removed; the next sweep handles parents that have ended since.

    Args:
        tx: a writing transaction.
        pairs: the changes that can be undone, and their locked tasks.
        by: the author.
    """
    dependencies = {task.id: set(change.before.get("dependencies", ())) for change, task in pairs}
    reopened = await _open(tx, dependencies)
    eligible = [(change, task) for change, task in pairs if task.id in reopened]
    await block_again(tx, [task.id for _, task in eligible])
    await record(tx, by, [_entry(change, task) for change, task in eligible])
    return Result(
        [task.id for _, task in eligible],
        skipped=[Skipped(id, NO_DEPENDENCIES) for id in sorted(dependencies) if id not in reopened],
    )


async def block_again(tx: Transaction, ids: Sequence[int]) -> None:
    """Block locked live tasks on their open dependencies."""
    if not ids:
        return
    task, dependency = tx.tables.task, tx.tables.dependency
    open_count = (
        sa.select(sa.func.count()).where(dependency.c.task_id == task.c.id, is_open(dependency.c)).scalar_subquery()
    )
    values = {
        "state": state_literal(MOVES["reblock"].target),
        "blocked_by": sa.case((open_count > 1, open_count), else_=1),
        "parents": sa.null(),  # set again when no dependency is open
        "version": next_version(task.c.version),
    }
    await tx.execute(sa.update(task).where(tx.dialect.one_of(task.c.id, ids)).values(values))


async def _open(tx: Transaction, dependencies: dict[int, set[int]]) -> set[int]:
    """Reopen the given dependencies that an operator removed, and return their tasks."""
    dependency = tx.tables.dependency
    dependency_ids = sorted({dependency_id for ids in dependencies.values() for dependency_id in ids})
    in_change = tx.dialect.one_of(dependency.c.id, dependency_ids) & tx.dialect.one_of(
        dependency.c.task_id, list(dependencies)
    )
    reopen = (
        sa.update(dependency)
        .where(in_change, dependency.c.satisfied_by.is_not(None))
        .values(satisfied_at=None, satisfied_by=None)
    )
    return {row.task_id for row in await tx.rows(reopen.returning(dependency.c.task_id))}


def _entry(change: UndoableChange, task: LockedTask) -> AuditEntry:
    before = {"state": task.state, "waited_for": []}
    after = {"state": MOVES["reblock"].target, "waited_for": change.before.get("waited_for", [])}
    return AuditEntry("reblock", before, after, task.id, undo_of=change.id)
