"""search: find the ids of the tasks that match a filter, in one of the list orders, with a bounded number of rows."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.errors import InvalidSort
from runner.filter.fields import NEWEST, SORTS, Sort, SortField
from runner.filter.parse import Filter
from runner.queries.task_list.by_lane import walk_lanes
from runner.queries.task_list.compile import path
from runner.queries.task_list.cursor import SCAN_LIMIT, AccessPath, Cursor, Page
from runner.queries.task_list.scans import Scan, is_few, scans
from runner.queries.task_list.sort_key import SortKey, compared, least
from runner.queries.task_list.sources import Source, live, past, running, waiting


async def sort_among(
    tx: Transaction, parts: Sequence[Scan], key: SortKey, limit: int, after: Cursor | None, oldest: Cursor | None
) -> Page:
    """Sort tasks.

    Args:
        tx: an open transaction; one statement is executed.
        parts: the sides of the search.
        key: the sort key.
        limit: maximum number of ids to return.
        after: the cursor to continue from; None to begin.
        oldest: the cursor of the lowest id to read; None for all. It bounds the number of rows.
    """
    rows = [_candidates(side, key, oldest) for side in parts]
    union = sa.union_all(*(sa.select(part.subquery()) for part in rows)).subquery()
    behind = [compared(union.c, key, after, beyond=True)] if after is not None else []
    statement = sa.select(*key.carried(union.c)).where(*behind).order_by(*key.order(union.c)).limit(limit + 1)
    cursors = [key.cursor(row) for row in await tx.rows(statement)]
    more = cursors[limit - 1] if len(cursors) > limit else None
    return Page([cursor.id for cursor in cursors[:limit]], more, oldest is not None, AccessPath.SORTED)


def _candidates(side: Scan, key: SortKey, oldest: Cursor | None) -> sa.Select[Any]:
    row = side.source.table.c
    bound = [row.id >= oldest.id] if oldest is not None else []
    columns = [*(least(row[name]) for name in key.names), row.id]
    return sa.select(*columns).where(*side.indexed, *side.filtered, *bound)


async def find(
    tx: Transaction,
    task_filter: Filter,
    limit: int,
    after: Cursor | None = None,
    sort: Sort = NEWEST,
    scan_limit: int = SCAN_LIMIT,
) -> Page:
    """Find tasks.

    By id, finish time, due time or priority the search walks along an index, so a page costs the same for any number
    of tasks. In other orders, or when another index serves the filter, it sorts the newest matching tasks, up to the
    scan limit.

    Args:
        tx: an open transaction; the search executes one statement, one more to filter rows, and one more by due time
            or priority.
        task_filter: the filter.
        limit: maximum number of ids to return.
        after: the cursor to continue from (`Found.next`); None to begin.
        sort: the order.
        scan_limit: maximum number of rows to filter or sort in each table.

    Raises:
        InvalidSort: none of the matching tasks has the sort field.
    """
    if (keep := tx.dialect.along_indexes()) is not None:
        await tx.execute(keep)
    subjects = _subjects(tx, sort)
    parts = scans(task_filter, subjects, tx.dialect, by_queue=sort.by in (SortField.ID, SortField.AGE))
    if not parts:
        _reject_sort(tx, task_filter, sort)
        return Page([], None, False)
    match sort.by:
        case SortField.ID:
            return await walk(tx, parts, SortKey((), descending=sort.descending), limit, after, scan_limit)
        case SortField.AGE:  # the older, the lower the id
            return await walk(tx, parts, SortKey((), descending=not sort.descending), limit, after, scan_limit)
        case SortField.FINISHED_AT if not _has_own_index(task_filter):
            return await walk(
                tx, parts, SortKey(("finished_at",), descending=sort.descending), limit, after, scan_limit
            )
        case SortField.RUN_AT | SortField.PRIORITY if not _has_own_index(task_filter):
            return await walk_lanes(tx, task_filter, sort, limit, after, scan_limit)
    key = SortKey((COLUMNS[sort.by],), descending=sort.descending)
    end = await _scan_end(tx, parts, NEWEST_IDS, None, scan_limit)
    return await sort_among(tx, parts, key, limit, after, end)


NEWEST_IDS = SortKey((), descending=True)

COLUMNS = {
    SortField.ATTEMPTS: "attempt",
    SortField.CLAIMED_AT: "claimed_at",
    SortField.FINISHED_AT: "finished_at",
    SortField.PRIORITY: "priority",
    SortField.RUN_AT: "run_at",
}


def _subjects(tx: Transaction, sort: Sort) -> list[Source]:
    """The tables whose tasks have the sort field."""
    match sort.by:
        case SortField.RUN_AT | SortField.PRIORITY:
            return [waiting(tx.tables)]
        case SortField.CLAIMED_AT:
            return [running(tx.tables)]
        case SortField.FINISHED_AT:
            return [past(tx.tables)]
    return [live(tx.tables), past(tx.tables)]


def _has_own_index(task_filter: Filter) -> bool:
    """True if an index serves the filter in an order other than the list's."""
    return is_few(task_filter) or any(term.field == "id" for term in path(task_filter).terms)


def _reject_sort(tx: Transaction, task_filter: Filter, sort: Sort) -> None:
    if not scans(task_filter, [live(tx.tables), past(tx.tables)], tx.dialect):
        return  # no task can match the filter, in any order
    fields = (field for field in SortField if scans(task_filter, _subjects(tx, Sort(field)), tx.dialect))
    why = f"only {SORTS[sort.by].of} have this field; the tasks of this filter can be sorted by {', '.join(fields)}"
    raise InvalidSort(sort=sort.by, why=why)


async def walk(
    tx: Transaction, parts: Sequence[Scan], key: SortKey, limit: int, after: Cursor | None, scan_limit: int
) -> Page:
    """Walk along the indexes that have the order of the key.

    Args:
        tx: an open transaction; the walk executes one statement, or two to filter rows.
        parts: the sides of the search.
        key: the sort key.
        limit: maximum number of ids to return.
        after: the cursor to continue from; None to begin.
        scan_limit: maximum number of rows to filter in each table.
    """
    filters_rows = any(side.filtered for side in parts)
    end = await _scan_end(tx, parts, key, after, scan_limit) if filters_rows else None
    rows = [_rows(side, [*side.indexed, *side.filtered], key, after, end) for side in parts]
    cursors = [key.cursor(row) for row in await tx.rows(_merged(rows, key, limit + 1))]
    way = AccessPath.FILTERED if filters_rows else AccessPath.INDEX
    if len(cursors) > limit:
        return Page([cursor.id for cursor in cursors[:limit]], cursors[limit - 1], False, way)
    return Page([cursor.id for cursor in cursors], end, end is not None, way)


async def _scan_end(
    tx: Transaction, parts: Sequence[Scan], key: SortKey, after: Cursor | None, scan_limit: int
) -> Cursor | None:
    """The end of this search, after `scan_limit` rows of a side; None if all sides end earlier."""
    limits = [_rows(side, side.indexed, key, after, None).offset(scan_limit - 1) for side in parts]
    ends = await tx.rows(_merged(limits, key, 1))
    return key.cursor(ends[0]) if ends else None


def _merged(parts: Sequence[sa.Select[Any]], key: SortKey, limit: int) -> sa.Select[Any]:
    """The first rows of all parts, each of which is in the order of the key."""
    union = sa.union_all(*(sa.select(part.limit(limit).subquery()) for part in parts)).subquery()
    return sa.select(*key.carried(union.c)).order_by(*key.order(union.c)).limit(limit)


def _rows(
    side: Scan, conditions: Sequence[Any], key: SortKey, after: Cursor | None, end: Cursor | None
) -> sa.Select[Any]:
    columns = side.source.table.c
    bounds = [compared(columns, key, after, beyond=True)] if after is not None else []
    bounds += [compared(columns, key, end, beyond=False)] if end is not None else []
    # If the order of the ids costs nothing, a planner without statistics walks along the ids instead of using the
    # index that finds the few served rows.
    order = key.order(columns, hidden=side.few)
    return sa.select(*key.columns(columns)).where(*bounds, *conditions).order_by(*order)


__all__ = ["SCAN_LIMIT", "Page", "find"]
