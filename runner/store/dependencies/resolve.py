"""Resolution: dependents of finished tasks become unblocked or cancelled, now or by the sweep."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect, row_address
from runner.db.lock_limits import UPKEEP_LOCKS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_open, is_state, state_literal
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, JsonText, db_now, next_version
from runner.model.task import MOVES, State
from runner.store.dependencies.parents import (
    DEPENDENCY_COLUMNS,
    changed_parents,
    is_any_open,
    is_blocked,
    summary,
)
from runner.store.history import UNASSIGNED, FinishedTask, finish, reused_ids
from runner.store.minute_statistics import NO_RUNNER, count_cancelled

CHUNK = 2_000
"""Maximum number of dependencies per transaction."""

ENDED_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "handler": sa.Text, "key": sa.Text}


class FinishedParent(NamedTuple):
    """A finished task with all names that dependencies may use for it."""

    id: int
    handler: str
    key: str | None


class Dependency(NamedTuple):
    """An open dependency: the id of its row, and the id of the dependent task."""

    id: int
    task_id: int


class Dependent(NamedTuple):
    """A waiting or blocked task, locked until the transaction ends."""

    id: int
    fence: int
    queue: str
    handler: str
    key: str | None
    attempt: int

    @property
    def as_parent(self) -> FinishedParent:
        """The task as a finished parent of others."""
        return FinishedParent(self.id, self.handler, self.key)


@dataclass(slots=True)
class Resolved:
    """The result of resolving dependencies.

    Args:
        unblocked: ids of tasks without open dependencies.
        cancelled: tasks that were cancelled because of a parent's final state.
        skipped: dependencies of tasks that another transaction has locked; try again.
    """

    unblocked: list[int] = field(default_factory=list)
    cancelled: list[Dependent] = field(default_factory=list)
    skipped: list[Dependency] = field(default_factory=list)


@needs(Needs.PREPARED)
async def open_dependencies(tx: Transaction, parents: Sequence[FinishedParent], limit: int = CHUNK) -> list[Dependency]:
    """Find the open dependencies on finished tasks.

    Args:
        tx: an open transaction; one statement is executed.
        parents: tasks that may have finished.
        limit: maximum number of dependencies; after a full result, resolve them and call again.
    """
    parameters = tx.dialect.row_parameters("parents", ENDED_COLUMNS, parents) | {"most": limit}
    rows = await tx.run(_waiting_for(tx.tables, tx.driver), parameters)
    return list(dict.fromkeys(Dependency(*row) for row in rows))


async def resolve(tx: Transaction, dependencies: Sequence[Dependency], *, notify: bool = True) -> Resolved:
    """Resolve dependencies by the current states of their parents, and unblock or cancel their tasks.

    It never waits for locks: a task that another transaction has locked is skipped.

    Args:
        dependencies: dependencies; closed ones, and ones whose parents have not finished, stay unchanged.
        notify: wake listening runners (PostgreSQL).
    """
    locked = await _lock(tx, {dependency.task_id for dependency in dependencies})
    result = Resolved(skipped=[dependency for dependency in dependencies if dependency.task_id not in locked])
    ids = [dependency.id for dependency in dependencies if dependency.task_id in locked]
    if not ids:
        return result
    closed: Counter[int] = Counter()
    doomed: dict[int, str] = {}
    for task_id, parent_id, state, on_failure in await _judge(tx, ids):
        if state == State.SUCCEEDED or on_failure == "run":
            closed[task_id] += 1
        elif on_failure == "cancel":
            doomed[task_id] = f"parent {parent_id} is {state}"
    result.cancelled = await cancel(tx, {locked[id]: why for id, why in doomed.items()})
    result.unblocked = await unblock_dependents(
        tx, {id: closed[id] for id in closed if id not in doomed}, notify=notify
    )
    return result


async def unblock_dependents(tx: Transaction, closed: Mapping[int, int], *, notify: bool = True) -> list[int]:
    """Unblock tasks without open dependencies; reduce the count of the others.

    Args:
        tx: a writing transaction with locks on these tasks.
        notify: wake listening runners (PostgreSQL).

    Returns:
        The ids of the unblocked tasks.
    """
    if not closed:
        return []
    task, dependency = tx.tables.task, tx.tables.dependency
    has_open = (
        sa.select(dependency.c.id)
        .where(dependency.c.task_id == task.c.id, is_open(dependency.c))
        .offset(NO_JOIN)
        .exists()
    )
    free = (
        sa.update(task)
        .where(_blocked_tasks(tx, closed), ~has_open)
        .values(
            state=state_literal(MOVES["unblock"].target),
            blocked_by=0,
            # Its age counts from now, so that it does not overtake tasks that have been due for longer.
            run_at=sa.case((task.c.run_at > db_now(), task.c.run_at), else_=db_now()),
            version=next_version(task.c.version),
            parents=sa.cast(summary(tx.tables, task.c.id), JsonText),
        )
        .returning(task.c.id)
    )
    rows = await tx.rows(tx.dialect.announcing(free, tx.tables) if notify else free)
    unblocked = {row.id for row in rows}
    announcement = tx.dialect.announcement(dependency) if notify and unblocked else None
    if announcement is not None:
        await tx.execute(announcement)
    await _count_down(tx, {id: number for id, number in closed.items() if id not in unblocked})
    return sorted(unblocked)


async def _count_down(tx: Transaction, closed: Mapping[int, int]) -> None:
    """Reduce the count of open dependencies; the version stays, because operators do not edit the count."""
    task = tx.tables.task
    for number in set(closed.values()):
        ids, rest = [id for id in closed if closed[id] == number], task.c.blocked_by - number
        fewer = sa.update(task).where(_blocked_tasks(tx, ids)).values(blocked_by=sa.case((rest > 1, rest), else_=1))
        await tx.execute(fewer)


async def _lock(tx: Transaction, ids: Collection[int]) -> dict[int, Dependent]:
    """Lock the blocked tasks among these in the order of their ids; skip those with other locks."""
    task = tx.tables.task
    columns = [*(task.c[name] for name in Dependent._fields), tx.dialect.pause_limit()]
    locked = sa.select(*columns).where(_blocked_tasks(tx, ids), tx.dialect.lock_limit(UPKEEP_LOCKS)).order_by(task.c.id)
    return {row.id: Dependent(*row[:-1]) for row in await tx.rows(locked.with_for_update(skip_locked=True))}


def _blocked_tasks(tx: Transaction, ids: Iterable[int]) -> sa.ColumnElement[bool]:
    """The condition that a task is one of these, and blocked."""
    task = tx.tables.task.c
    return tx.dialect.one_of(task.id, sorted(ids)) & is_state(task.state, State.BLOCKED)


async def handlers_of(tx: Transaction, ids: Collection[int]) -> dict[int, str]:
    """Return the handlers of live tasks by task id."""
    task = tx.tables.task.c
    rows = await tx.rows(sa.select(task.id, task.handler).where(tx.dialect.one_of(task.id, sorted(ids))))
    return {row.id: row.handler for row in rows}


async def _judge(tx: Transaction, ids: Sequence[int]) -> Sequence[Any]:
    """Store the final states of parents in their dependencies, and return the changed rows."""
    dependency = tx.tables.dependency
    # Joined by id alone, a planner that expects few rows compares all with all, or evaluates all once for each. The
    # ctid leaves no alternative plan.
    address = row_address(dependency, tx.dialect)
    selected = sa.select(*dependencies_of(tx.tables), address.label("address")).where(
        tx.dialect.one_of(dependency.c.id, ids)
    )
    changed = (
        changed_parents(tx.tables, selected.where(is_open(dependency.c))).cte("changed").prefix_with("MATERIALIZED")
    )
    satisfied = is_state(changed.c.state, State.SUCCEEDED) | (dependency.c.on_failure == "run")
    judged = (
        sa.update(dependency)
        .where(address == changed.c.address, dependency.c.id == changed.c.id)
        .values(parent_id=changed.c.parent, parent_state=changed.c.state, satisfied_at=sa.case((satisfied, db_now())))
        .returning(dependency.c.task_id, dependency.c.parent_id, dependency.c.parent_state, dependency.c.on_failure)
    )
    return await tx.rows(judged)


async def cancel(tx: Transaction, doomed: Mapping[Dependent, str]) -> list[Dependent]:
    """Move locked tasks without a runner to the history as cancelled, and close their dependencies."""
    ids = [child.id for child in doomed]
    if ids and (reused := await reused_ids(tx, ids)):  # they stay as they are; `runner check` names them
        doomed = {child: why for child, why in doomed.items() if child.id not in reused}
        ids = [child.id for child in doomed]
    if not ids:
        return []
    task, dependency = tx.tables.task, tx.tables.dependency
    # A foreign client may have left a runner id in a row without a runner.
    await tx.execute(sa.update(task).where(tx.dialect.one_of(task.c.id, ids)).values(UNASSIGNED))
    await count_cancelled(tx, ids)
    moved = await finish(
        tx, "cancel", NO_RUNNER, [FinishedTask(child.id, child.fence, error=why) for child, why in doomed.items()]
    )
    own_open = tx.dialect.one_of(dependency.c.task_id, ids) & is_open(dependency.c)
    await tx.execute(sa.update(dependency).where(own_open).values(satisfied_at=db_now()))
    return [child for child in doomed if child.id in moved]


def dependencies_of(tables: Tables) -> Any:
    """The columns in DEPENDENCY_COLUMNS."""
    return [tables.dependency.c[name] for name in DEPENDENCY_COLUMNS]


@lru_cache
def _waiting_for(tables: Tables, driver: sa.Dialect) -> Prepared:
    dialect, dependency = DIALECTS[driver.name], tables.dependency
    parents = dialect.rows("parents", ENDED_COLUMNS)
    by_id = (dependency.c.parent_id == parents.c.id) & dependency.c.parent_key.is_(None)
    by_key = (dependency.c.parent_key == parents.c.key) & (dependency.c.parent_handler == parents.c.handler)
    selections = [_dependencies(tables, dialect, parents, named) for named in (by_id, by_key)]
    changed = changed_parents(tables, sa.union_all(*selections)).subquery("changed")
    concerned = sa.select(changed.c.id, changed.c.task_id).where(is_blocked(tables, changed.c.task_id))
    return Prepared(concerned.limit(sa.bindparam("most", type_=sa.Integer)), driver)


def _dependencies(
    tables: Tables, dialect: Dialect, parents: sa.FromClause, named: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """The open dependencies on each finished task."""
    open_ = (
        sa.select(*dependencies_of(tables))
        .where(named, is_open(tables.dependency.c))
        .offset(NO_JOIN)
        .correlate(parents)
    )
    joined, dependency = dialect.for_each(parents, open_, tables.dependency)
    return sa.select(*(dependency[name] for name in DEPENDENCY_COLUMNS)).select_from(joined)


WINDOW = 2_000
"""Maximum number of dependencies per page."""

NEWEST = 2**63 - 1
"""The start of a sweep: above every id."""


class StrayDependents(NamedTuple):
    """The result of checking one page of open dependencies.

    Args:
        dependencies: open dependencies whose parents have finished.
        moot: open dependencies of tasks that are not blocked.
        lowest: the lowest checked id, from which to continue; None at the end.
    """

    dependencies: list[Dependency]
    moot: list[Dependency]
    lowest: int | None


@needs(Needs.PREPARED)
async def any_open(tx: Transaction) -> bool:
    """Return True if any dependency is open; a cheap statement for frequent checks."""
    rows = await tx.run(_any_open(tx.tables, tx.driver), {})
    return bool(rows[0][0])


@needs(Needs.PREPARED)
async def find_strays(tx: Transaction, below: int = NEWEST) -> StrayDependents:
    """Check one page of open dependencies, the newest first.

    Args:
        tx: an open transaction; one statement is executed.
        below: the id below which to start.
    """
    rows = await tx.run(_strays(tx.tables, tx.driver), {"below": below})
    lowest, checked = rows[0][:2]
    strays = [(Dependency(*row[2:4]), row[4]) for row in rows if row[2] is not None]
    dependencies = [dependency for dependency, moot in strays if not moot]
    return StrayDependents(
        dependencies, [dependency for dependency, moot in strays if moot], lowest if checked == WINDOW else None
    )


async def close_moot(tx: Transaction, moot: Sequence[Dependency]) -> None:
    """Close dependencies of tasks that are not blocked, because a client finished or unblocked them directly."""
    dependency = tx.tables.dependency
    closable = tx.dialect.one_of(dependency.c.id, [stray.id for stray in moot])
    still, blocked = is_open(dependency.c), is_blocked(tx.tables, dependency.c.task_id)
    closed = (
        sa.update(dependency).where(closable, still, ~blocked).values(satisfied_at=db_now()).returning(dependency.c.id)
    )
    ids = [row.id for row in await tx.rows(closed)]
    if ids:
        # A transaction that blocks the task again also updates the dependency. The statement above may have waited
        # for it without seeing its change; this statement sees it.
        reopened = tx.dialect.one_of(dependency.c.id, ids)
        await tx.execute(sa.update(dependency).where(reopened, blocked).values(satisfied_at=None))


@lru_cache
def _any_open(tables: Tables, driver: sa.Dialect) -> Prepared:
    return Prepared(sa.select(sa.exists().where(is_any_open(tables.dependency.c))), driver)


@lru_cache
def _strays(tables: Tables, driver: sa.Dialect) -> Prepared:
    """One row per stray with the bounds of the page; one row without a stray if there is none."""
    dependency = tables.dependency
    below = dependency.c.id < sa.bindparam("below", type_=sa.BigInteger)
    newest = (
        sa.select(*dependencies_of(tables)).where(is_any_open(dependency.c), below).order_by(dependency.c.id.desc())
    )
    window = newest.limit(sa.literal_column(str(WINDOW))).cte("window_")
    bounds = sa.select(sa.func.min(window.c.id).label("lowest"), sa.func.count().label("checked")).subquery("bounds")
    changed = changed_parents(tables, sa.select(window).where(is_blocked(tables, window.c.task_id))).subquery("changed")
    strays = sa.union_all(
        sa.select(changed.c.id, changed.c.task_id, sa.false().label("moot")),
        sa.select(window.c.id, window.c.task_id, sa.true()).where(~is_blocked(tables, window.c.task_id)),
    ).subquery("strays")
    return Prepared(sa.select(bounds, strays).select_from(bounds.outerjoin(strays, sa.true())), driver)
