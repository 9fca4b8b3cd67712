"""resolving: let go, or cancel, the tasks that waited for others which have ended."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import NO_JOIN, JsonText, ctid, db_now
from runner.schema import Tables, is_state, state_literal
from runner.store.dialects import DIALECTS, Dialect, by_column
from runner.store.move import IN_NO_HANDS, NOBODY, Ending, finish, make_way
from runner.store.parentage import EDGE, is_blocked, is_open, news, summary
from runner.store.statement import Prepared
from runner.store.statistics import count_unclaimed
from runner.store.transaction import Transaction
from runner.task import MOVES, State

CHUNK = 2_000
"""Edges that are resolved in one transaction."""

ENDED_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "handler": sa.Text, "key": sa.Text}


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
    mine = [edge.id for edge in edges if edge.task_id in held]
    if not mine:
        return result
    closed: Counter[int] = Counter()
    doomed: dict[int, str] = {}
    for task_id, parent_id, state, on_failure in await _judge(tx, mine):
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
    task, edge = tx.tables.task, tx.tables.dependency
    held_back = sa.select(edge.c.id).where(edge.c.task_id == task.c.id, is_open(edge.c)).offset(NO_JOIN).exists()
    free = (
        sa.update(task)
        .where(_are(tx, closed), ~held_back)
        .values(
            state=state_literal(MOVES["unblock"].target),
            blocked_by=0,
            # It is due from now on: its age counts from here, and it does not overtake what has been due for longer.
            run_at=sa.case((task.c.run_at > db_now(), task.c.run_at), else_=db_now()),
            version=task.c.version + 1,
            parents=sa.cast(summary(tx.tables, task.c.id), JsonText),
        )
        .returning(task.c.id)
    )
    rows = await tx.rows(tx.dialect.announcing(free, tx.tables) if notify else free)
    freed = {row.id for row in rows}
    await _count_down(tx, {id: number for id, number in closed.items() if id not in freed})
    return sorted(freed)


async def _count_down(tx: Transaction, closed: Mapping[int, int]) -> None:
    """Note how many fewer edges are open; the version stays, for a member that has ended is no news to operators."""
    task = tx.tables.task
    for number in set(closed.values()):
        ids, left = [id for id in closed if closed[id] == number], task.c.blocked_by - number
        fewer = sa.update(task).where(_are(tx, ids)).values(blocked_by=sa.case((left > 1, left), else_=1))
        await tx.execute(fewer)


async def _lock(tx: Transaction, ids: Collection[int]) -> dict[int, Child]:
    """Hold the blocked ones of these tasks that nobody else holds, in the order of their ids."""
    task = tx.tables.task
    held = sa.select(*(task.c[name] for name in Child._fields)).where(_are(tx, ids)).order_by(task.c.id)
    return {row.id: Child(*row) for row in await tx.rows(held.with_for_update(skip_locked=True))}


def _are(tx: Transaction, ids: Iterable[int]) -> sa.ColumnElement[bool]:
    """The condition that a task is one of these, and blocked."""
    task = tx.tables.task.c
    return tx.dialect.one_of(task.id, sorted(ids)) & is_state(task.state, State.BLOCKED)


async def _judge(tx: Transaction, ids: Sequence[int]) -> Sequence[Any]:
    """Write into edges how their parents have ended, and return those that this is news of."""
    edge = tx.tables.dependency
    # By id alone a planner that believes in few edges compares all with all, or even judges all once for each. The
    # place of a row leaves nothing to choose.
    place = ctid(edge) if tx.dialect.isolates_rows else edge.c.id
    mine = sa.select(*edges_of(tx.tables), place.label("place")).where(tx.dialect.one_of(edge.c.id, ids))
    told = news(tx.tables, mine.where(is_open(edge.c))).cte("told").prefix_with("MATERIALIZED")
    satisfied = is_state(told.c.state, State.SUCCEEDED) | (edge.c.on_failure == "run")
    judged = (
        sa.update(edge)
        .where(place == told.c.place, edge.c.id == told.c.id)
        .values(parent_id=told.c.parent, parent_state=told.c.state, satisfied_at=sa.case((satisfied, db_now())))
        .returning(edge.c.task_id, edge.c.parent_id, edge.c.parent_state, edge.c.on_failure)
    )
    return await tx.rows(judged)


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
    dialect, edge = DIALECTS[driver.name], tables.dependency
    ended = dialect.rows("ended", ENDED_COLUMNS)
    by_id = (edge.c.parent_id == ended.c.id) & edge.c.parent_key.is_(None)
    by_key = (edge.c.parent_key == ended.c.key) & (edge.c.parent_handler == ended.c.handler)
    found = [_edges(tables, dialect, ended, named) for named in (by_id, by_key)]
    told = news(tables, sa.union_all(*found)).subquery("told")
    concerned = sa.select(told.c.id, told.c.task_id).where(is_blocked(tables, told.c.task_id))
    return Prepared(concerned.limit(sa.bindparam("most", type_=sa.Integer)), driver)


def _edges(tables: Tables, dialect: Dialect, ended: sa.FromClause, named: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The open edges of each task that has ended."""
    open_ = sa.select(*edges_of(tables)).where(named, is_open(tables.dependency.c)).offset(NO_JOIN).correlate(ended)
    found, edge = dialect.for_each(ended, open_, tables.dependency)
    return sa.select(*(edge[name] for name in EDGE)).select_from(found)
