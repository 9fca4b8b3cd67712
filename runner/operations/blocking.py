"""blocking: block tasks again on dependencies that were closed with them."""

from collections.abc import Sequence

import sqlalchemy as sa

from runner.db.schema import is_open, is_state, state_literal
from runner.db.transaction import Transaction
from runner.db.types import db_now, next_version
from runner.model.task import FINAL, MOVES, State


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


async def reopen(tx: Transaction, ids: Sequence[int]) -> None:
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


async def wait_again(tx: Transaction, ids: Sequence[int]) -> set[int]:
    """Block requeued tasks of workflows on their parents again, and return those that have such parents.

    A retry of a part of a workflow so runs its tasks in order.

    Args:
        ids: live tasks that were cancelled, with locks.
    """
    task, parent, dependency = tx.tables.task, tx.tables.task.alias("parent"), tx.tables.dependency
    members = sa.select(task.c.id).where(tx.dialect.one_of(task.c.id, ids), task.c.workflow.is_not(None))
    own = [row.id for row in await tx.rows(members)] if ids else []
    if not own:
        return set()
    await reopen(tx, own)
    still_open = tx.dialect.one_of(dependency.c.task_id, own) & is_open(dependency.c)
    # The parent has not finished again: its next end counts, even if it is the same as the last one.
    lives = sa.exists().where(parent.c.id == dependency.c.parent_id)
    await tx.execute(sa.update(dependency).where(still_open, lives).values(parent_state=None))
    blocked = {row.task_id for row in await tx.rows(sa.select(dependency.c.task_id).where(still_open).distinct())}
    await block_again(tx, sorted(blocked))
    return blocked


async def close(tx: Transaction, ids: Sequence[int]) -> None:
    """Close the open dependencies of tasks that end."""
    dependency = tx.tables.dependency
    if ids:
        own_open = tx.dialect.one_of(dependency.c.task_id, ids) & is_open(dependency.c)
        await tx.execute(sa.update(dependency).where(own_open).values(satisfied_at=db_now()))
