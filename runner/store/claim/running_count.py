"""The count of the running tasks under limits."""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.schema import Tables, is_state
from runner.db.statement import Prepared, Step
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, PositionTime, db_later, db_now, from_position
from runner.model.task import State
from runner.policy.lanes import Lane, LimitName, limits_of

COUNT_OVERLAP = 2.0
"""Seconds by which a count begins before the last one. The clock of the server may go back by half of it unnoticed."""

LASTS = 10.0
"""Seconds after which a count is too old to continue from."""

SETTLED = 30.0
"""Seconds of full counts before one continues from another: a plain claim may have begun before the limit was set."""

MOST_OLDER = 2_000
"""Maximum number of tasks to look up one by one. More are counted faster with the index."""


class LastCount(NamedTuple):
    """The last count of the tasks under a limit by a claim that held the limit; the next one continues from it.

    The index of running tasks keeps an entry of each task that has run since vacuum, or since the start of an old
    snapshot of another client. A full count reads them all.

    Args:
        locked_at: when the claim locked the limit, in seconds since 1970; 0 to read the running tasks of all runners.
        taken_at: when it had the answer, in monotonic seconds.
        begun_at: `taken_at` of the first count in this row of counts.
        older: the ids of the tasks that ran then, except those claimed shortly before; None if there are too many to
            look up.
    """

    locked_at: float
    taken_at: float
    begun_at: float
    older: frozenset[int] | None

    def is_recent(self, now: float) -> bool:
        """True if the next count belongs to the same row of counts; `now` in monotonic seconds."""
        return now - self.taken_at <= LASTS

    def suffices(self, locked_at: float, now: float) -> bool:
        """True if the clock of the server has not gone back since; the arguments are those of the next count."""
        return locked_at - self.locked_at >= now - self.taken_at - COUNT_OVERLAP / 2


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
        last: Mapping[LimitName, LastCount] | None,
    ) -> None:
        self._tx, self._names, self._last = tx, names, last
        now, limits = time.monotonic(), {limit for lane in lanes for limit in limits_of(lane)}
        self._recent = {limit: each for limit, each in (last or {}).items() if limit in limits and each.is_recent(now)}
        lists = [each.older for each in self._recent.values()]
        self._older = frozenset[int]().union(*(ids for ids in lists if ids is not None))
        self._has_many = None in lists or len(self._older) > MOST_OLDER
        self._base = {limit: each for limit, each in self._recent.items() if now - each.begun_at >= SETTLED}

    @property
    def step(self) -> Step:
        """The statement, for the round trip that locks the limits."""
        if not self._base or self._has_many:
            return self._all()
        since = max(0.0, min(each.locked_at for each in self._base.values()) - COUNT_OVERLAP)
        dialect = self._tx.dialect
        start = {"since": dialect.position(datetime.fromtimestamp(since, UTC))}
        start |= dialect.parameters("older", {"id": sorted(self._older)})
        return Step(_prepared(self._tx.tables, self._tx.driver, "later"), self._names | start)

    def _all(self) -> Step:
        among = "all" if self._last is None or self._has_many else "all by age"
        return Step(_prepared(self._tx.tables, self._tx.driver, among), self._names)

    async def rows(self, answer: Sequence[Any] | None, lock_times: Mapping[LimitName, float]) -> Sequence[Any]:
        """The rows of the count.

        Args:
            answer: those of `step`; None if it was not executed.
            lock_times: the limits that the claim holds, each with the time of the lock in seconds since 1970.
        """
        base, now = self._base, time.monotonic()
        is_full = not base or self._has_many
        if answer is None or not (
            is_full
            or all(limit in base and base[limit].suffices(locked_at, now) for limit, locked_at in lock_times.items())
        ):
            (answer,) = await self._tx.run_all([self._all()])
        return answer

    def last_counts(self, rows: Sequence[Any], lock_times: Mapping[LimitName, float]) -> dict[LimitName, LastCount]:
        """The counts from which the next ones continue, by limit; for the arguments see `rows`."""
        if self._last is None:
            return {}
        now, result = time.monotonic(), dict[LimitName, LastCount]()
        for limit, locked_at in lock_times.items():
            before = self._recent.get(limit)
            begun_at = now if before is None or not before.suffices(locked_at, now) else before.begun_at
            ids = (
                None if self._has_many else frozenset(row[3] for row in rows if _has(limit, row) and row[3] is not None)
            )
            many = ids is None or len(ids) > MOST_OLDER
            result[limit] = LastCount(locked_at, now, begun_at, None if many else ids)
        return result


def by_tenant(limit: LimitName, rows: Sequence[Any]) -> dict[str, int]:
    """The running tasks of a queue or a handler by tenant."""
    running: Counter[str] = Counter()
    for row in rows:
        if _has(limit, row):
            running[row[2] or ""] += row[-1]
    return running


def _has(limit: LimitName, row: Sequence[Any]) -> bool:
    return bool(limit[1] == row[0 if limit[0] == "queue" else 1])


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
        # Twice in the next count if it was claimed in between: that one compares the time.
        groups.append(
            sa.case((row.claimed_at < db_later(db_now(), sa.literal_column(str(-COUNT_OVERLAP / 2))), row.id))
        )
    return Prepared(sa.select(*groups, sa.func.count()).where(*conditions, mine).group_by(*groups), driver)


def _later(tables: Tables, dialect: Dialect) -> sa.Subquery:
    """The running tasks that were claimed since a time, runner by runner, and older ones by id."""
    task, since = tables.task, from_position(sa.bindparam("since", type_=PositionTime))
    names = ("id", "queue", "handler", "tenant", "claimed_at")
    row, live, ended = task.alias("recent"), tables.runner.c, tables.ended_runner.c
    # A runner that ended before this time has claimed nothing since.
    ids_of_ended = sa.select(ended.runner_id).where(ended.ended_at >= since)
    runners = sa.union_all(sa.select(live.id), ids_of_ended).subquery("runners")
    mine = sa.select(*(row.c[name] for name in names)).where(
        row.c.runner_id == runners.c.id, is_state(row.c.state, State.RUNNING), row.c.claimed_at >= since
    )
    joined, recent = dialect.for_each(runners, mine.offset(NO_JOIN).correlate(runners), task)
    old, ids = task.alias("old"), dialect.rows("older", {"id": sa.BigInteger})
    still = sa.select(*(old.c[name] for name in names)).where(
        old.c.id == ids.c.id, is_state(old.c.state, State.RUNNING), old.c.claimed_at < since
    )
    listed, older = dialect.for_each(ids, still.offset(NO_JOIN).correlate(ids), task)
    return sa.union_all(
        sa.select(*(recent[name] for name in names)).select_from(joined),
        sa.select(*(older[name] for name in names)).select_from(listed),
    ).subquery("counted")
