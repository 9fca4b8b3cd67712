"""resolving: let go, or cancel, the tasks that waited for others which have ended."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import JsonText, db_now
from runner.schema import Tables, is_state, state_literal
from runner.store.dialects import DIALECTS, by_column
from runner.store.move import IN_NO_HANDS, NOBODY, Ending, finish, make_way
from runner.store.parentage import EDGE, is_blocked, is_open, news, summary
from runner.store.statement import Prepared
from runner.store.statistics import count_unclaimed
from runner.store.transaction import Transaction
from runner.task import MOVES, State

CHUNK = 2_000
"""Edges that are resolved in one transaction."""

ENDED_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "handler": sa.Text, "key": sa.Text}
ID_COLUMN: dict[str, Any] = {"id": sa.BigInteger}
CLOSED_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "closed": sa.Integer}


class Ended(NamedTuple):
    """A task that has ended, by all that others may have named it by."""

    id: int
    handler: str
    key: str | None


class Edge(NamedTuple):
    """That a task waits for another one: the number of the edge, and the one that waits."""

    id: int
    task_id: int


class Child(NamedTuple):
    """A task that waits, held until the transaction ends."""

    id: int
    fence: int
    queue: str
    handler: str
    key: str | None
    attempt: int

    @property
    def ended(self) -> Ended:
        """The same, when it has ended itself."""
        return Ended(self.id, self.handler, self.key)


@dataclass(slots=True)
class Resolved:
    """What became of tasks that waited.

    Args:
        freed: ids of those that wait for nothing any more.
        cancelled: those that were cancelled because of how a parent ended.
        left: edges whose tasks somebody else holds at this moment: ask again.
    """

    freed: list[int] = field(default_factory=list)
    cancelled: list[Child] = field(default_factory=list)
    left: list[Edge] = field(default_factory=list)


async def waiting_for(tx: Transaction, ended: Sequence[Ended], limit: int = CHUNK) -> list[Edge]:
    """Find the edges of blocked tasks that are to be judged anew because these tasks have ended.

    Args:
        tx: an open transaction; one statement is executed.
        ended: any tasks that may have ended.
        limit: the most edges; with as many found, ask again when they are resolved.
    """
    parameters = tx.dialect.parameters("ended", by_column(ENDED_COLUMNS, ended)) | {"most": limit}
    rows = await tx.run(_waiting_for(tx.tables, tx.driver), parameters)
    return list(dict.fromkeys(Edge(*row) for row in rows))


async def resolve(tx: Transaction, edges: Sequence[Edge], *, notify: bool = True) -> Resolved:
    """Judge edges by how their parents stand now, and do to their tasks what follows.

    Nothing is waited for: a task that somebody else holds at this moment is left.

    Args:
        tx: a writing transaction.
        edges: any; those that are not open, or whose parents have not ended, are left as they are.
        notify: wake runners that listen (PostgreSQL).
    """
    held = await _lock(tx, {edge.task_id for edge in edges})
    result = Resolved(left=[edge for edge in edges if edge.task_id not in held])
    mine = [(edge.id,) for edge in edges if edge.task_id in held]
    if not mine:
        return result
    closed: Counter[int] = Counter()
    doomed: dict[int, str] = {}
    judged = await tx.run(_judge(tx.tables, tx.driver), tx.dialect.parameters("given", by_column(ID_COLUMN, mine)))
    for task_id, parent_id, state, on_failure in judged:
        if state == State.SUCCEEDED or on_failure == "run":
            closed[task_id] += 1
        elif on_failure == "cancel":
            doomed[task_id] = f"parent {parent_id} is {state}"
    result.cancelled = await _cancel(tx, {held[id]: why for id, why in doomed.items()})
    result.freed = await let_go(tx, {id: closed[id] for id in closed if id not in doomed}, notify=notify)
    return result


async def let_go(tx: Transaction, closed: Mapping[int, int], *, notify: bool = True) -> list[int]:
    """Let blocked tasks go that have no open edge any more; the others have so many fewer than before.

    Args:
        tx: a writing transaction that holds these tasks.
        closed: how many edges of each were closed in it.
        notify: wake runners that listen (PostgreSQL).

    Returns:
        The ids of those that wait for nothing any more.
    """
    if not closed:
        return []
    parameters = tx.dialect.parameters("closed", by_column(CLOSED_COLUMNS, closed.items()))
    freed = [row[0] for row in await tx.run(_free(tx.tables, tx.driver, notify), parameters)]
    if len(freed) < len(closed):
        await tx.run(_count_down(tx.tables, tx.driver), parameters)
    return freed


async def _lock(tx: Transaction, ids: Collection[int]) -> dict[int, Child]:
    """Hold the blocked ones of these tasks that nobody else holds, in the order of their ids."""
    parameters = tx.dialect.parameters("given", by_column(ID_COLUMN, [(id,) for id in ids]))
    rows = await tx.run(_lock_statement(tx.tables, tx.driver), parameters)
    return {row[0]: Child(*row) for row in rows}


async def _cancel(tx: Transaction, doomed: Mapping[Child, str]) -> list[Child]:
    """Move tasks to the history as cancelled, and close their edges."""
    ids = [child.id for child in doomed]
    if not ids:
        return []
    task, edge = tx.tables.task, tx.tables.dependency
    # A foreign client may have left a runner's number in a row that no runner has in hand.
    await tx.execute(sa.update(task).where(tx.dialect.one_of(task.c.id, ids)).values(IN_NO_HANDS))
    await count_unclaimed(tx, ids)
    await make_way(tx, ids)
    moved = await finish(
        tx, "cancel", NOBODY, [Ending(child.id, child.fence, error=why) for child, why in doomed.items()]
    )
    theirs = tx.dialect.one_of(edge.c.task_id, ids) & is_open(edge.c)
    await tx.execute(sa.update(edge).where(theirs).values(satisfied_at=db_now()))
    return [child for child in doomed if child.id in moved]


def edges_of(tables: Tables) -> Any:
    """The table of edges, and the columns by which they are judged."""
    return [tables.dependency.c[name] for name in EDGE]


@lru_cache
def _waiting_for(tables: Tables, driver: sa.Dialect) -> Prepared:
    ended, edge = DIALECTS[driver.name].rows("ended", ENDED_COLUMNS), tables.dependency
    by_id = (edge.c.parent_id == ended.c.id) & edge.c.parent_key.is_(None)
    by_key = (edge.c.parent_key == ended.c.key) & (edge.c.parent_handler == ended.c.handler)
    found = [sa.select(*edges_of(tables)).join(ended, named).where(is_open(edge.c)) for named in (by_id, by_key)]
    told = news(tables, sa.union_all(*found)).subquery("told")
    concerned = sa.select(told.c.id, told.c.task_id).where(is_blocked(tables, told.c.task_id))
    return Prepared(concerned.limit(sa.bindparam("most", type_=sa.Integer)), driver)


@lru_cache
def _lock_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    task, given = tables.task, DIALECTS[driver.name].rows("given", ID_COLUMN)
    columns = [task.c[name] for name in Child._fields]
    held = sa.select(*columns).join(given, given.c.id == task.c.id).where(is_state(task.c.state, State.BLOCKED))
    return Prepared(held.order_by(task.c.id).with_for_update(skip_locked=True, of=task), driver)


@lru_cache
def _judge(tables: Tables, driver: sa.Dialect) -> Prepared:
    edge, given = tables.dependency, DIALECTS[driver.name].rows("given", ID_COLUMN)
    some = sa.select(*edges_of(tables)).join(given, given.c.id == edge.c.id).where(is_open(edge.c))
    told = news(tables, some).subquery("told")
    satisfied = is_state(told.c.state, State.SUCCEEDED) | (edge.c.on_failure == sa.literal_column("'run'"))
    judged = (
        sa.update(edge)
        .where(edge.c.id == told.c.id)
        .values(parent_id=told.c.parent, parent_state=told.c.state, satisfied_at=sa.case((satisfied, db_now())))
        .returning(edge.c.task_id, edge.c.parent_id, edge.c.parent_state, edge.c.on_failure)
    )
    return Prepared(judged, driver)


@lru_cache
def _free(tables: Tables, driver: sa.Dialect, notify: bool) -> Prepared:
    dialect, task, edge = DIALECTS[driver.name], tables.task, tables.dependency
    closed = dialect.rows("closed", CLOSED_COLUMNS)
    held_back = sa.exists().where(edge.c.task_id == task.c.id, is_open(edge.c))
    free = (
        sa.update(task)
        .where(task.c.id == closed.c.id, is_state(task.c.state, State.BLOCKED), ~held_back)
        .values(
            state=state_literal(MOVES["unblock"].target),
            blocked_by=sa.literal_column("0"),
            # It is due from now on: its age counts from here, and it does not overtake what has been due for longer.
            run_at=sa.case((task.c.run_at > db_now(), task.c.run_at), else_=db_now()),
            version=task.c.version + sa.literal_column("1"),
            parents=sa.cast(summary(tables, task.c.id), JsonText),
        )
        .returning(task.c.id)
    )
    return Prepared(dialect.announcing(free, tables) if notify else free, driver)


@lru_cache
def _count_down(tables: Tables, driver: sa.Dialect) -> Prepared:
    task, closed = tables.task, DIALECTS[driver.name].rows("closed", CLOSED_COLUMNS)
    left = task.c.blocked_by - closed.c.closed
    # The version stays: a member that has ended is no change of the task that an operator would have to look at again.
    fewer = sa.update(task).where(task.c.id == closed.c.id, is_state(task.c.state, State.BLOCKED))
    return Prepared(fewer.values(blocked_by=sa.case((left > 1, left), else_=1)), driver)
