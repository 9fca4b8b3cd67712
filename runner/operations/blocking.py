"""blocking: block tasks again on dependencies that were closed with them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from runner.db.schema import is_open, is_state, state_literal
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, db_now, next_version
from runner.model.task import FINAL, MOVES, State
from runner.store.dependencies.parents import final_state, is_gone, is_live, parent_of


async def block_again(tx: Transaction, ids: Sequence[int]) -> set[int]:
    """Block locked live tasks that have open dependencies, and return their ids."""
    if not ids:
        return set()
    task, dependency = tx.tables.task, tx.tables.dependency
    own_open = (dependency.c.task_id == task.c.id) & is_open(dependency.c)
    values = {
        "state": state_literal(MOVES["reblock"].target),
        "blocked_by": sa.select(sa.func.count()).where(own_open).scalar_subquery(),
        "parents": sa.null(),  # set again when no dependency is open
        "version": next_version(task.c.version),
    }
    has_open = sa.select(dependency.c.id).where(own_open).offset(NO_JOIN).exists()
    blocked = sa.update(task).where(tx.dialect.one_of(task.c.id, ids), has_open).values(values)
    return {row.id for row in await tx.rows(blocked.returning(task.c.id))}


async def reopen(tx: Transaction, ids: Sequence[int], *, gone: bool = True) -> None:
    """Reopen the dependencies that were closed only because their task ended.

    Args:
        gone: reopen those on parents that no longer exist too.
    """
    if not ids:
        return
    dependency = tx.tables.dependency
    released_by_failure = (dependency.c.on_failure == "run") & is_state(dependency.c.parent_state, *FINAL)
    resolved = sa.func.coalesce(
        dependency.c.parent_state == state_literal(State.SUCCEEDED), sa.false()
    ) | sa.func.coalesce(released_by_failure, sa.false())
    reopened = tx.dialect.one_of(dependency.c.task_id, ids) & dependency.c.satisfied_by.is_(None) & ~resolved
    if not gone:
        reopened &= ~is_gone(tx.tables, dependency)
    await tx.execute(sa.update(dependency).where(reopened).values(satisfied_at=None))


async def wait_again(tx: Transaction, ids: Sequence[int]) -> set[int]:
    """Block requeued tasks of workflows on their parents again, and return those that have such parents.

    A retry of a part of a workflow so runs its tasks in order.

    Args:
        ids: live tasks that were cancelled, with locks.
    """
    task, dependency = tx.tables.task, tx.tables.dependency
    members = sa.select(task.c.id).where(tx.dialect.one_of(task.c.id, ids), task.c.workflow.is_not(None))
    own = [row.id for row in await tx.rows(members)] if ids else []
    if not own:
        return set()
    await reopen(tx, own, gone=False)
    still_open = tx.dialect.one_of(dependency.c.task_id, own) & is_open(dependency.c)
    # The next end of a live parent counts, even if it is the same as the last one; `forget_ends` has failed parents.
    parent = sa.func.coalesce(parent_of(tx.tables, dependency), dependency.c.parent_id)
    lives, state = is_live(tx.tables, parent), final_state(tx.tables, parent)
    resolves = (state == state_literal(State.SUCCEEDED)) | (dependency.c.on_failure == "run")
    known = sa.case((lives | resolves | parent.is_(None), sa.null()), else_=state)
    await tx.execute(sa.update(dependency).where(still_open).values(parent_id=parent, parent_state=known))
    return await block_again(tx, own)


async def forget_ends(tx: Transaction, ids: Sequence[int]) -> dict[int, list[int]]:
    """Let the next failure of requeued tasks cancel the dependents that were retried after the last one.

    Returns:
        The ids of these dependencies by the id of the requeued task, for `recall_ends`.
    """
    dependency = tx.tables.dependency
    known = is_open(dependency.c) & (dependency.c.on_failure == "cancel") & dependency.c.parent_state.is_not(None)
    forgotten = sa.update(dependency).where(tx.dialect.one_of(dependency.c.parent_id, ids), known)
    columns = (dependency.c.parent_id, dependency.c.id)
    by_parent: dict[int, list[int]] = defaultdict(list)
    for parent, id in await tx.rows(forgotten.values(parent_state=sa.null()).returning(*columns)):
        by_parent[parent].append(id)
    return by_parent


async def recall_ends(tx: Transaction, dependencies: Iterable[int]) -> None:
    """Take the ends of parents as known that `forget_ends` has forgotten, because their requeue is undone."""
    dependency = tx.tables.dependency
    known = tx.dialect.one_of(dependency.c.id, sorted(dependencies)) & is_open(dependency.c)
    state = final_state(tx.tables, dependency.c.parent_id)
    await tx.execute(sa.update(dependency).where(known).values(parent_state=state))


async def close(tx: Transaction, ids: Sequence[int]) -> None:
    """Close the open dependencies of tasks that end."""
    dependency = tx.tables.dependency
    if ids:
        own_open = tx.dialect.one_of(dependency.c.task_id, ids) & is_open(dependency.c)
        await tx.execute(sa.update(dependency).where(own_open).values(satisfied_at=db_now()))
