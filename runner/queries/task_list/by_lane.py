"""List waiting tasks by due time or in claim order, along the index `ready`.

The index holds the tasks of each lane (queue, handler, priority, hosts, retried) by due time. A page reads a few rows
from every lane and merges them, so its cost depends on the number of lanes, not on the number of tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.schema.task import Condition
from runner.db.transaction import Transaction
from runner.db.types import Instant, db_now
from runner.errors import InvalidSort
from runner.filter.parse import Filter, Term
from runner.filter.sort import Sort, SortField
from runner.model.task import Shown, State
from runner.policy.claim_policy import CLAIM_POLICY
from runner.policy.lanes import Lane
from runner.queries.counting import LANE_COLUMNS
from runner.queries.task_list.compile import conditions, values_of
from runner.queries.task_list.cursor import AccessPath, Cursor, Page
from runner.queries.task_list.sources import Source, bound_to, waiting
from runner.store.claim.survey import survey

MOST_LANES = 500

BOUNDS: dict[str, Any] = {"since": sa.Text, "since_id": sa.BigInteger, "until": sa.Text, "until_id": sa.BigInteger}

BEFORE_ALL, BEHIND_ALL = ("1969-12-31", 0), ("9999-12-31", 0)
"""Bounds outside of all stored times, in a form that both databases read."""

Bounds: TypeAlias = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True)
class LaneWalk:
    """A walk along the lanes.

    Args:
        lanes: the lanes that exist and match the filter.
        by_priority: True to order by priority and then time, False by time only.
        forward: True for claim order, False for the reverse.
        indexed: the conditions that the index serves.
        filtered: the conditions that are checked row by row.
    """

    lanes: Sequence[Lane]
    by_priority: bool
    forward: bool
    indexed: list[Condition]
    filtered: list[Condition]

    def rank(self, priority: Any) -> int:
        """The sort rank of a priority; lower ranks come first."""
        if not self.by_priority:
            return 0
        rank = CLAIM_POLICY.order.rank(int(priority))
        return rank if self.forward else -rank

    def bounds(self, lane: Lane, after: Cursor | None, end: Cursor | None) -> Bounds | None:
        """The (time, id) range to read in a lane; None if the lane has no rows between the cursors."""
        rank = self.rank(lane.priority)
        first, last = (BEFORE_ALL, BEHIND_ALL) if self.forward else (BEHIND_ALL, BEFORE_ALL)
        distance = rank - self.rank(after.values[0]) if after else 1
        remaining = self.rank(end.values[0]) - rank if end else 1
        if distance < 0 or remaining < 0:
            return None
        since = first if distance or not after else (str(after.values[-1]), after.id)
        until = last if remaining or not end else (str(end.values[-1]), end.id)
        return (*since, *until)


async def walk_lanes(
    tx: Transaction, task_filter: Filter, sort: Sort, limit: int, after: Cursor | None, scan_limit: int
) -> Page:
    """Find waiting tasks.

    Args:
        tx: an open transaction; the walk executes two to four statements.
        sort: by run_at or by priority.
        limit: maximum number of ids to return.
        after: the cursor to continue from; None to begin.
        scan_limit: maximum number of rows to filter.

    Raises:
        InvalidSort: the filter matches too many lanes.
    """
    walk = await _planned(tx, task_filter, sort)
    if not walk.lanes:
        return Page([], None, False)
    end = await _scan_end(tx, walk, after, scan_limit) if walk.filtered else None
    cursors = await _first(tx, walk, [*walk.indexed, *walk.filtered], after, end, limit + 1)
    path = AccessPath.FILTERED if walk.filtered else AccessPath.INDEX
    if len(cursors) > limit:
        return Page(cursors[:limit], cursors[limit - 1], False, path)
    return Page(cursors, end, end is not None, path)


async def _planned(tx: Transaction, task_filter: Filter, sort: Sort) -> LaneWalk:
    lane_terms = tuple(term for term in task_filter.terms if term.field in Lane._fields)
    lanes = await _lanes(tx, Filter(lane_terms))
    if len(lanes) > MOST_LANES:
        why = f"more than {MOST_LANES} queues, handlers and priorities have waiting tasks; filter by one of these"
        raise InvalidSort(sort=sort.by, why=why)
    source = waiting(tx.tables)
    rest = [term for term in task_filter.terms if term not in lane_terms]
    indexed = [term for term in rest if _is_about_time(term)]
    by_index, by_row = (
        conditions(Filter(tuple(terms)), source, tx.dialect) or []
        for terms in (indexed, [term for term in rest if term not in indexed])
    )
    if any(_is_later(term) for term in rest):
        by_index.append(tx.tables.task.c.run_at > db_now())
    by_priority = sort.by is SortField.PRIORITY
    return LaneWalk(lanes, by_priority, sort.descending is by_priority, by_index, by_row)


def _is_about_time(term: Term) -> bool:
    """True if a term depends on nothing but the due time."""
    of_time = term.field == "state" and {State.WAITING, Shown.READY}.issuperset(values_of(term))
    return not term.negated and (term.field == "due" or of_time)


def _is_later(term: Term) -> bool:
    return term.field == "state" and not term.negated and {Shown.SCHEDULED, Shown.RETRYING}.issuperset(values_of(term))


async def _lanes(tx: Transaction, task_filter: Filter) -> list[Lane]:
    """The lanes with waiting tasks that match a filter by their columns."""
    most = None if task_filter.terms else MOST_LANES + 1
    lanes = [head.lane for head in await survey(tx, most=most)]
    if not lanes or not task_filter.terms:
        return lanes
    rows = tx.dialect.rows("lane", LANE_COLUMNS)
    source = Source(tx.tables.task, {name: rows.c[name] for name in Lane._fields} | bound_to(rows.c), {}, tx.tables)
    statement = sa.select(rows).where(*(conditions(task_filter, source, tx.dialect) or ()))
    parameters = tx.dialect.row_parameters("lane", LANE_COLUMNS, lanes)
    return [Lane(*row) for row in await tx.rows(statement, parameters)]


async def _scan_end(tx: Transaction, walk: LaneWalk, after: Cursor | None, scan_limit: int) -> Cursor | None:
    """The end of this search, after its share of rows in a lane; None if all lanes end earlier."""
    share = max(1, scan_limit // len(walk.lanes))
    ends = await _first(tx, walk, walk.indexed, after, None, 1, skip=share - 1)
    return ends[0] if ends else None


async def _first(
    tx: Transaction,
    walk: LaneWalk,
    restrictions: Sequence[Condition],
    after: Cursor | None,
    end: Cursor | None,
    limit: int,
    skip: int = 0,
) -> list[Cursor]:
    """The first rows of all lanes in walk order, after `skip` rows of each."""
    lane = sa.select(tx.dialect.rows("lane", LANE_COLUMNS | BOUNDS)).cte("lane")
    task = tx.tables.task
    since, until = _compared(task.c, lane.c, walk)
    order = CLAIM_POLICY.order
    in_lane = [task.c[name] == lane.c[name] for name in Lane._fields]
    columns = (task.c.id, task.c.run_at, task.c.priority)
    rows = sa.select(*columns).where(*in_lane, is_state(task.c.state, State.WAITING))
    by_time = order.within_lane(task.c, walk.forward)
    rows = rows.where(since, until, *restrictions).order_by(*by_time).limit(limit).offset(skip)
    lateral, row = tx.dialect.for_each(lane, rows.correlate(lane), task)
    all_lanes = order.within_lane(row, walk.forward)
    if walk.by_priority:
        all_lanes = [*order.of_lanes(row, walk.forward), *all_lanes]
    selected = [row.id, *([row.priority] if walk.by_priority else []), sa.cast(row.run_at, sa.Text)]
    statement = sa.select(*selected).select_from(lateral).order_by(*all_lanes).limit(limit)
    bounded = [(*lane, *bounds) for lane in walk.lanes if (bounds := walk.bounds(lane, after, end))]
    parameters = tx.dialect.row_parameters("lane", LANE_COLUMNS | BOUNDS, bounded)
    return [Cursor(id, tuple(values)) for id, *values in await tx.rows(statement, parameters)]


def _compared(row: Any, lane: Any, walk: LaneWalk) -> tuple[Condition, Condition]:
    """The conditions that a row is after the lower and not after the upper bound of its lane."""
    position = CLAIM_POLICY.order.position(row)
    since, until = (sa.tuple_(sa.cast(lane[name], Instant), lane[f"{name}_id"]) for name in ("since", "until"))
    return (position > since, position <= until) if walk.forward else (position < since, position >= until)
