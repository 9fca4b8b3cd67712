"""The followers of a task: the next ones in its order key."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_open, is_state, state_literal
from runner.db.statement import Prepared, Step, Steps
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, ctid, db_now, next_version
from runner.model.task import MOVES, State

FAILED_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "order_key": sa.Text}


async def block_followers(tx: Transaction, failed: Sequence[tuple[int, str]]) -> None:
    """Block the next task of each order key by the task that failed before it, unless it already depends on it.

    A submit blocks its tasks by the predecessor that it sees. It sees none of a transaction that is open at the same
    time, and a plain insert looks for none.

    Args:
        tx: the transaction in which the tasks failed.
        failed: their ids and order keys.
    """
    if not failed:
        return
    task, dependency = tx.tables.task, tx.tables.dependency
    if (lock := tx.dialect.order_lock(task)) is not None:
        await tx.execute(lock)
    failures = tx.dialect.rows("failed", FAILED_COLUMNS)
    later = sa.select(sa.func.min(task.c.id)).where(task.c.order_key == failures.c.order_key, task.c.id > failures.c.id)
    followers = sa.select(later.correlate(failures).scalar_subquery(), failures.c.id)
    parents: dict[int, int] = {}
    for id, parent in await tx.rows(followers, tx.dialect.row_parameters("failed", FAILED_COLUMNS, failed)):
        if id is not None:
            parents[id] = max(parent, parents.get(id, 0))
    dependencies = sa.select(dependency.c.task_id, dependency.c.parent_id).where(
        tx.dialect.one_of(dependency.c.task_id, [*parents])
    )
    done = {(row.task_id, row.parent_id) for row in await tx.rows(dependencies)} if parents else set()
    ids = sorted(id for id, parent in parents.items() if (id, parent) not in done)
    if not ids:
        return
    waits = is_state(task.c.state, State.WAITING, State.BLOCKED)
    locked = sa.select(task.c.id, task.c.order_on_failure).where(tx.dialect.one_of(task.c.id, ids), waits)
    rows = await tx.rows(locked.order_by(task.c.id).with_for_update())
    rules = {row.id: row.order_on_failure or "wait" for row in rows if row.order_on_failure != "run"}
    if not rules:
        return
    new = [
        {"task_id": id, "parent_id": parents[id], "on_failure": rule, "in_order": True} for id, rule in rules.items()
    ]
    await tx.execute(sa.insert(dependency), new)
    values = {"state": state_literal(MOVES["reblock"].target), "blocked_by": task.c.blocked_by + 1, "parents": None}
    blocked = sa.update(task).where(tx.dialect.one_of(task.c.id, [*rules]))
    await tx.execute(blocked.values(values | {"version": next_version(task.c.version)}))


@needs(Needs.PREPARED)
async def release_followers(tx: Transaction, parent_ids: Sequence[int], *, notify: bool = True) -> int:
    """Unblock the tasks that only wait for one of some succeeded tasks in their order key.

    It never waits for locks. `resolve` treats all other dependents, and those with locks.

    Args:
        tx: an open transaction; on PostgreSQL one statement is executed, on SQLite three.
        parent_ids: ids of tasks that may have succeeded.
        notify: wake listening runners (PostgreSQL).

    Returns:
        The number of unblocked tasks.
    """
    return await tx.follow(_release_steps(tx, parent_ids, notify))


@needs(Needs.PREPARED)
async def has_followers(tx: Transaction, parent_ids: Sequence[int]) -> bool:
    """True if `release_followers` finds a task to unblock. This read waits for no writer; a release waits for all.

    Args:
        tx: an open transaction on SQLite; one statement is executed.
        parent_ids: ids of tasks that may have succeeded.
    """
    search = _releasing(tx.tables, tx.driver, False)[0]
    return bool(await tx.run(search, tx.dialect.parameters("parents", {"id": parent_ids})))


def _release_steps(tx: Transaction, parent_ids: Sequence[int], notify: bool) -> Steps[int]:
    statements = _releasing(tx.tables, tx.driver, notify)
    matches = yield Step(statements[0], tx.dialect.parameters("parents", {"id": parent_ids}))
    if len(statements) == 1 or not matches:
        return len(matches)
    addresses, ids = zip(*matches, strict=True)
    yield Step(statements[1], tx.dialect.parameters("selection", {"id": addresses}))
    rows = yield Step(statements[2], tx.dialect.parameters("selection", {"id": ids}))
    return len(rows)


@lru_cache
def _releasing(tables: Tables, driver: sa.Dialect, notify: bool) -> list[Prepared]:
    dialect, task, dependency = DIALECTS[driver.name], tables.task, tables.dependency
    selection = _followers(tables, dialect)
    satisfied = {"parent_state": state_literal(State.SUCCEEDED), "satisfied_at": db_now()}
    free = {
        "state": state_literal(MOVES["unblock"].target),
        "blocked_by": sa.literal_column("0"),
        # Its age counts from now, so that it does not overtake tasks that have been due for longer.
        "run_at": sa.case((task.c.run_at > db_now(), task.c.run_at), else_=db_now()),
        "version": next_version(task.c.version),
    }
    if dialect.writing_ctes:
        rows = selection.cte("selection").prefix_with("MATERIALIZED")
        closed = sa.update(dependency).where(ctid(dependency) == rows.c.address).values(satisfied)
        freed = sa.update(task).where(ctid(task) == rows.c.task_row).values(free).returning(task.c.id)
        freed = freed.add_cte(closed.returning(dependency.c.id).cte("closed"))
        return [Prepared(dialect.announcing(freed, tables) if notify else freed, driver)]
    ids = sa.select(dialect.rows("selection", {"id": sa.BigInteger}).c.id)
    closed = sa.update(dependency).where(dependency.c.id.in_(ids)).values(satisfied)
    freed = sa.update(task).where(task.c.id.in_(ids)).values(free).returning(task.c.id)
    return [Prepared(statement, driver) for statement in (selection, closed.returning(dependency.c.id), freed)]


def _followers(tables: Tables, dialect: Dialect) -> sa.Select[Any]:
    """The open dependencies in order keys on succeeded tasks, and their tasks without any other dependency."""
    parents = dialect.rows("parents", {"id": sa.BigInteger})
    one: sa.ColumnElement[int] = sa.literal_column("1")
    column = tables.dependency.c
    after = (column.parent_id == parents.c.id) & column.parent_key.is_(None) & column.in_order & is_open(column)
    columns = [column.id, column.task_id, *([ctid(tables.dependency)] if dialect.row_addresses else [])]
    waits = sa.select(*columns).where(after).offset(NO_JOIN).correlate(parents)
    joined, match = dialect.for_each(parents, waits, tables.dependency)
    past, other, row = tables.history.alias("past"), tables.dependency.alias("other"), tables.task.alias("follower")
    # Without the offsets, a planner that expects few rows reads the whole history, and all dependencies.
    succeeded = sa.select(one).where(past.c.id == parents.c.id, is_state(past.c.state, State.SUCCEEDED)).offset(NO_JOIN)
    # One of an operator or of a parent: `resolve` counts the parents.
    others = (
        sa.select(one)
        .where(other.c.task_id == match.task_id, other.c.id != match.id, is_open(other.c) | ~other.c.in_order)
        .offset(NO_JOIN)
    )
    alone = succeeded.exists() & ~others.exists()
    # The last condition is checked again when the row is locked: a predecessor that fails in between raises the number.
    is_blocked = (row.c.id == match.task_id) & is_state(row.c.state, State.BLOCKED) & (row.c.blocked_by <= one)
    if not dialect.row_locks:
        return sa.select(match.id, row.c.id).select_from(joined.join(row, is_blocked)).where(alone)
    locked = sa.select(ctid(row)).where(is_blocked).with_for_update(skip_locked=True).lateral("locked")
    selection = sa.select(match.ctid.label("address"), locked.c.ctid.label("task_row"))
    return selection.select_from(joined.join(locked, sa.true())).where(alone)
