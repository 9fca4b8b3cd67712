"""The count of the running tasks under limits."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.schema import Tables, is_state
from runner.db.statement import Prepared, Step
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, PositionTime, db_later, db_now, from_position
from runner.model.task import State
from runner.policy.lanes import Lane

LAG = 2.0
"""Seconds by which a count begins before the last one: a claim that knew of no limit may commit after it."""

MOST_OLDER = 2_000
"""Maximum number of tasks to look up one by one. More are counted faster with the index."""

Key: TypeAlias = tuple[str, str]
"""The kind and the name of a queue or a handler."""


def keys(lane: Lane) -> tuple[Key, Key]:
    """The queue and the handler of a lane."""
    return ("queue", lane.queue), ("handler", lane.handler)


class LastCount(NamedTuple):
    """The last count of the tasks under a limit by a claim that held the limit; the next one continues from it.

    The index of running tasks keeps an entry of each task that has run since vacuum, or since the start of an old
    snapshot of another client. A full count reads them all.

    Args:
        at: the time before which the tasks of `older` were claimed, in seconds since 1970.
        older: the ids of the tasks that ran then.
    """

    at: float
    older: frozenset[int]


class RunningCount:
    """A count of running tasks by queue, handler and tenant.

    Args:
        names: the parameters of the queues and handlers that are counted.
        lanes: the lanes of these.
        last: the last counts under their limits; None to read all running tasks, and to remember none.
    """

    def __init__(
        self,
        tx: Transaction,
        names: dict[str, Any],
        lanes: Collection[Lane],
        last: Mapping[Key, LastCount] | None,
    ) -> None:
        self._tx, self._names, self._last = tx, names, last
        self._known = {key: last[key] for lane in lanes for key in keys(lane) if key in last} if last else {}

    @property
    def step(self) -> Step:
        """The statement, for the round trip that locks the limits."""
        if not self._known:
            return self._all()
        at = min(each.at for each in self._known.values())
        older = frozenset[int]().union(*(each.older for each in self._known.values()))
        dialect = self._tx.dialect
        since = {"since": dialect.position(datetime.fromtimestamp(at, UTC))}
        since |= dialect.parameters("older", {"id": sorted(older)})
        return Step(_prepared(self._tx.tables, self._tx.driver, "later"), self._names | since)

    def _all(self) -> Step:
        among = "all" if self._last is None else "all by age"
        return Step(_prepared(self._tx.tables, self._tx.driver, among), self._names)

    async def rows(self, counted: Sequence[Any] | None, held: Mapping[Key, float]) -> Sequence[Any]:
        """The rows of the count.

        Args:
            counted: those of `step`; None if it was not executed.
            held: the limits that the claim holds, each with the time of the lock in seconds since 1970.
        """
        first = self._known
        # A limit that is new to this runner, or a server clock that went back: the last counts do not suffice.
        is_complete = not first or all(key in first and first[key].at <= at for key, at in held.items())
        if counted is None or not is_complete:
            (counted,) = await self._tx.run_all([self._all()])
        return counted

    def remembered(self, rows: Sequence[Any], held: Mapping[Key, float]) -> dict[Key, LastCount]:
        """The counts from which the next ones continue, by limit; for the arguments see `rows`."""
        if self._last is None:
            return {}
        older = {key: frozenset(row[3] for row in rows if row[3] is not None and _has(key, row)) for key in held}
        return {key: LastCount(held[key] - LAG, ids) for key, ids in older.items() if len(ids) <= MOST_OLDER}


def by_tenant(key: Key, rows: Sequence[Any]) -> dict[str, int]:
    """The running tasks of a queue or a handler by tenant."""
    running: Counter[str] = Counter()
    for row in rows:
        if _has(key, row):
            running[row[2] or ""] += row[-1]
    return running


def _has(key: Key, row: Sequence[Any]) -> bool:
    return bool(key[1] == row[0 if key[0] == "queue" else 1])


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect, among: str) -> Prepared:
    dialect, task = DIALECTS[driver.name], tables.task
    names = {kind: sa.select(dialect.rows(f"{kind}s", {"name": sa.Text}).c.name) for kind in ("queue", "handler")}
    if among == "later":
        row: Any = _later(tables, dialect).c
        conditions: tuple[Any, ...] = ()
    else:
        row, conditions = task.c, (is_state(task.c.state, State.RUNNING),)
    mine = row.queue.in_(names["queue"]) | row.handler.in_(names["handler"])
    groups = [row.queue, row.handler, row.tenant]
    if among != "all":
        groups.append(sa.case((row.claimed_at < db_later(db_now(), sa.literal_column(str(-LAG))), row.id)))
    return Prepared(sa.select(*groups, sa.func.count()).where(*conditions, mine).group_by(*groups), driver)


def _later(tables: Tables, dialect: Dialect) -> sa.Subquery:
    """The running tasks that were claimed since a time, runner by runner, and older ones by id."""
    task, since = tables.task, from_position(sa.bindparam("since", type_=PositionTime))
    names = ("id", "queue", "handler", "tenant", "claimed_at")
    row = task.alias("recent")
    mine = sa.select(*(row.c[name] for name in names)).where(
        row.c.runner_id == tables.runner.c.id, is_state(row.c.state, State.RUNNING), row.c.claimed_at >= since
    )
    joined, recent = dialect.for_each(tables.runner, mine.offset(NO_JOIN).correlate(tables.runner), task)
    old, ids = task.alias("old"), dialect.rows("older", {"id": sa.BigInteger})
    still = sa.select(*(old.c[name] for name in names)).where(
        old.c.id == ids.c.id, is_state(old.c.state, State.RUNNING), old.c.claimed_at < since
    )
    listed, older = dialect.for_each(ids, still.offset(NO_JOIN).correlate(ids), task)
    return sa.union_all(
        sa.select(*(recent[name] for name in names)).select_from(joined),
        sa.select(*(older[name] for name in names)).select_from(listed),
    ).subquery("counted")
