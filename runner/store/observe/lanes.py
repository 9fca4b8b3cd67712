"""lanes: list tasks that wait by the time at which they are due, or as they are claimed, along the index `ready`.

That index holds the tasks of each lane (queue, handler, priority) in the order of their times. The lists of all lanes
are walked side by side: a page costs so many rows of each, however many tasks wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.columns import Instant, db_now
from runner.errors import InvalidSort
from runner.people.filters import Filter, Term
from runner.people.sorts import By, Sort
from runner.policy.selection import Lane
from runner.schema import is_state
from runner.store.dialects import by_column
from runner.store.observe.bookmark import Bookmark
from runner.store.observe.filtering import conditions
from runner.store.observe.found import Found, Way
from runner.store.observe.subjects import Condition, Subject, waiting
from runner.store.survey import survey
from runner.store.transaction import Transaction
from runner.task import Shown, State

MOST_LANES = 500

LANE = ("queue", "handler", "priority")
"""What makes a lane; the fields of filters have the same names."""

LANE_COLUMNS: dict[str, Any] = {"queue": sa.Text, "handler": sa.Text, "priority": sa.SmallInteger}
BOUNDS: dict[str, Any] = {"since": sa.Text, "since_id": sa.BigInteger, "until": sa.Text, "until_id": sa.BigInteger}

BEFORE_ALL, BEHIND_ALL = ("1969-12-31", 0), ("9999-12-31", 0)
"""Times before and behind all that a row may hold, as both databases read them."""

Bounds: TypeAlias = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True)
class Walk:
    """A way along the lanes.

    Args:
        lanes: that exist, and that the filter lets through.
        by_priority: the highest priority goes first, else only the time counts.
        forward: what is claimed first comes first; else the other end.
        served: conditions that the index serves.
        sifted: conditions that are checked row by row.
    """

    lanes: Sequence[Lane]
    by_priority: bool
    forward: bool
    served: list[Condition]
    sifted: list[Condition]

    def rank(self, priority: Any) -> int:
        """What goes before the time: the lower, the earlier in the list."""
        if not self.by_priority:
            return 0
        return -int(priority) if self.forward else int(priority)

    def bounds(self, lane: Lane, after: Bookmark | None, edge: Bookmark | None) -> Bounds | None:
        """The time and the id behind which to look in a lane, and up to which; None for nowhere."""
        rank = self.rank(lane.priority)
        first, last = (BEFORE_ALL, BEHIND_ALL) if self.forward else (BEHIND_ALL, BEFORE_ALL)
        passed = rank - self.rank(after.values[0]) if after else 1
        ahead = self.rank(edge.values[0]) - rank if edge else 1
        if passed < 0 or ahead < 0:
            return None
        since = first if passed or not after else (str(after.values[-1]), after.id)
        until = last if ahead or not edge else (str(edge.values[-1]), edge.id)
        return (*since, *until)


async def walk_lanes(
    tx: Transaction, wanted: Filter, sort: Sort, limit: int, after: Bookmark | None, stretch: int
) -> Found:
    """Find tasks that wait.

    Args:
        tx: an open transaction; two statements are executed, or up to four.
        wanted: the filter.
        sort: by run_at or by priority.
        limit: the most ids to return.
        after: the place behind which to look; None to begin.
        stretch: the most rows to sift.

    Raises:
        InvalidSort: they are of too many lanes.
    """
    way = await _planned(tx, wanted, sort)
    if not way.lanes:
        return Found([], None, False)
    edge = await _edge(tx, way, after, stretch) if way.sifted else None
    found = await _first(tx, way, [*way.served, *way.sifted], after, edge, limit + 1)
    how = Way.SIFTED if way.sifted else Way.INDEX
    if len(found) > limit:
        return Found([mark.id for mark in found[:limit]], found[limit - 1], False, how)
    return Found([mark.id for mark in found], edge, edge is not None, how)


async def _planned(tx: Transaction, wanted: Filter, sort: Sort) -> Walk:
    of_lane = tuple(term for term in wanted.terms if term.field in LANE)
    lanes = await _lanes(tx, Filter(of_lane))
    if len(lanes) > MOST_LANES:
        why = f"the tasks that wait are of more than {MOST_LANES} queues, handlers and priorities; name some of them"
        raise InvalidSort(sort=sort.by, why=why)
    subject = waiting(tx.tables)
    rest = [term for term in wanted.terms if term not in of_lane]
    served = [term for term in rest if _is_about_time(term)]
    by_index, by_row = (
        conditions(Filter(tuple(terms)), subject, tx.dialect) or []
        for terms in (served, [term for term in rest if term not in served])
    )
    if any(_is_later(term) for term in rest):
        by_index.append(tx.tables.task.c.run_at > db_now())
    by_priority = sort.by is By.PRIORITY
    return Walk(lanes, by_priority, sort.descending is by_priority, by_index, by_row)


def _is_about_time(term: Term) -> bool:
    """Tell whether a term says nothing but when tasks are due."""
    of_time = term.field == "state" and {State.WAITING, Shown.READY}.issuperset(_words(term))
    return not term.negated and (term.field == "due" or of_time)


def _is_later(term: Term) -> bool:
    return term.field == "state" and not term.negated and {Shown.SCHEDULED, Shown.RETRYING}.issuperset(_words(term))


def _words(term: Term) -> tuple[Any, ...]:
    return term.value if isinstance(term.value, tuple) else (term.value,)


async def _lanes(tx: Transaction, wanted: Filter) -> list[Lane]:
    """The lanes that have waiting tasks, as far as a filter by queue, handler and priority lets them through."""
    lanes = [head.lane for head in await survey(tx)]
    if not lanes or not wanted.terms:
        return lanes
    rows = tx.dialect.rows("lane", LANE_COLUMNS)
    subject = Subject(tx.tables.task, {name: rows.c[name] for name in LANE}, {})
    statement = sa.select(rows).where(*(conditions(wanted, subject, tx.dialect) or ()))
    parameters = tx.dialect.parameters("lane", by_column(LANE_COLUMNS, lanes))
    return [Lane(*row) for row in await tx.rows(statement, parameters)]


async def _edge(tx: Transaction, way: Walk, after: Bookmark | None, stretch: int) -> Bookmark | None:
    """Where this search ends: in no lane it looks at more rows than its share."""
    share = max(1, stretch // len(way.lanes))
    ends = await _first(tx, way, way.served, after, None, 1, skip=share - 1)
    return ends[0] if ends else None


async def _first(
    tx: Transaction,
    way: Walk,
    wanted: Sequence[Condition],
    after: Bookmark | None,
    edge: Bookmark | None,
    limit: int,
    skip: int = 0,
) -> list[Bookmark]:
    """The first tasks of all lanes, the first of each skipped."""
    lane = sa.select(tx.dialect.rows("lane", LANE_COLUMNS | BOUNDS)).cte("lane")
    task = tx.tables.task
    since, until = _compared(task.c, lane.c, way)
    here = [task.c[name] == lane.c[name] for name in LANE]
    rows = sa.select(task.c.id, task.c.run_at, task.c.priority).where(*here, is_state(task.c.state, State.WAITING))
    rows = rows.where(since, until, *wanted).order_by(*_order(way, task.c)).limit(limit).offset(skip)
    found, row = tx.dialect.for_each(lane, rows.correlate(lane), task)
    rank = [row.priority.desc() if way.forward else row.priority] if way.by_priority else []
    columns = [row.id, *([row.priority] if way.by_priority else []), sa.cast(row.run_at, sa.Text)]
    statement = sa.select(*columns).select_from(found).order_by(*rank, *_order(way, row)).limit(limit)
    bounded = [(*lane, *bounds) for lane in way.lanes if (bounds := way.bounds(lane, after, edge))]
    parameters = tx.dialect.parameters("lane", by_column(LANE_COLUMNS | BOUNDS, bounded))
    return [Bookmark(id, tuple(values)) for id, *values in await tx.rows(statement, parameters)]


def _order(way: Walk, row: Any) -> list[Any]:
    return [row.run_at, row.id] if way.forward else [row.run_at.desc(), row.id.desc()]


def _compared(row: Any, lane: Any, way: Walk) -> tuple[Condition, Condition]:
    """That a row lies between the bounds of its lane: behind the one, not behind the other."""
    mine = sa.tuple_(row.run_at, row.id)
    since, until = (sa.tuple_(sa.cast(lane[name], Instant), lane[f"{name}_id"]) for name in ("since", "until"))
    return (mine > since, mine <= until) if way.forward else (mine < since, mine >= until)
