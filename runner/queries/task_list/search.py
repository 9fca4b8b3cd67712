"""search: find the tasks that match a filter, page by page, in a list order, with a bounded number of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.errors import InvalidSort, NoSqlEquivalent
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.filter.sort import NEWEST, SORTS, Sort, SortField
from runner.queries.rows import moment, readable
from runner.queries.task_list.by_lane import walk_lanes
from runner.queries.task_list.compile import Scan, indexed, is_few, path, scans, values_of
from runner.queries.task_list.cursor import SCAN_LIMIT, AccessPath, Cursor, Page, SortKey, compared, least
from runner.queries.task_list.row import TaskRow, task_rows
from runner.queries.task_list.sources import Source, live, past, running, waiting
from runner.text.document import Treatment
from runner.text.redact import mask
from runner.text.sanitize import clean


async def sort_among(
    tx: Transaction, parts: Sequence[Scan], key: SortKey, limit: int, after: Cursor | None, oldest: Cursor | None
) -> Page:
    """Sort tasks.

    Args:
        tx: an open transaction; one statement is executed.
        limit: maximum number of ids to return.
        after: the cursor to continue from; None to begin.
        oldest: the cursor of the lowest id to read; None for all. It bounds the number of rows.
    """
    rows = [_candidates(scan, key, oldest) for scan in parts]
    union = sa.union_all(*(sa.select(part.subquery()) for part in rows)).subquery()
    behind = [compared(union.c, key, after, beyond=True)] if after is not None else []
    statement = sa.select(*key.carried(union.c)).where(*behind).order_by(*key.order(union.c)).limit(limit + 1)
    cursors = [key.cursor(row) for row in await tx.rows(statement)]
    more = cursors[limit - 1] if len(cursors) > limit else None
    return Page(cursors[:limit], more, oldest is not None, AccessPath.SORTED)


def _candidates(scan: Scan, key: SortKey, oldest: Cursor | None) -> sa.Select[Any]:
    row = scan.source.table.c
    bound = [row.id >= oldest.id] if oldest is not None else []
    columns = [*(least(row[name]) for name in key.names), row.id]
    return sa.select(*columns).where(*scan.indexed, *scan.filtered, *bound)


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
        limit: maximum number of ids to return.
        after: the cursor to continue from (`TaskPage.next`); None to begin.
        scan_limit: maximum number of rows to filter or sort in each table.

    Raises:
        InvalidSort: none of the matching tasks has the sort field.
    """
    await tx.keep_to_indexes()
    sources = _sources(tx, sort)
    parts = scans(task_filter, sources, tx.dialect, by_queue=sort.by in (SortField.ID, SortField.AGE))
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


def _sources(tx: Transaction, sort: Sort) -> list[Source]:
    """The tables whose tasks have the sort field."""
    match sort.by:
        case SortField.RUN_AT | SortField.PRIORITY:
            return [waiting(tx.tables)]
        case SortField.CLAIMED_AT:
            return [running(tx.tables)]
        case SortField.FINISHED_AT:
            return [past(tx.tables)]
    return [live(tx.tables), past(tx.tables)]


def with_sort_field(tx: Transaction, task_filter: Filter, sort: Sort) -> Filter:
    """The filter of the tasks that have the sort field; a list in this order leaves out all others."""
    sources = _sources(tx, sort)
    words = {str(word) for source in sources for word in source.states}
    states = (term for term in task_filter.terms if term.field == "state" and not term.negated)
    if len(sources) > 1 or any(words.issuperset(map(str, values_of(term))) for term in states):
        return task_filter
    return Filter((*task_filter.terms, Term("state", Operator.IN, tuple(sorted(words)))))


def _has_own_index(task_filter: Filter) -> bool:
    """True if an index serves the filter in an order other than the list's."""
    return is_few(task_filter) or any(term.field == "id" for term in path(task_filter).terms)


def _reject_sort(tx: Transaction, task_filter: Filter, sort: Sort) -> None:
    if not scans(task_filter, [live(tx.tables), past(tx.tables)], tx.dialect):
        return  # no task can match the filter, in any order
    fields = (field for field in SortField if scans(task_filter, _sources(tx, Sort(field)), tx.dialect))
    why = f"only {SORTS[sort.by].of} have this field; the tasks of this filter can be sorted by {', '.join(fields)}"
    raise InvalidSort(sort=sort.by, why=why)


async def walk(
    tx: Transaction, parts: Sequence[Scan], key: SortKey, limit: int, after: Cursor | None, scan_limit: int
) -> Page:
    """Walk along the indexes that have the order of the key.

    Args:
        tx: an open transaction; the walk executes one statement, or two to filter rows.
        limit: maximum number of ids to return.
        after: the cursor to continue from; None to begin.
        scan_limit: maximum number of rows to filter in each table.
    """
    filters_rows = any(scan.filtered for scan in parts)
    end = await _scan_end(tx, parts, key, after, scan_limit) if filters_rows else None
    rows = [_rows(scan, [*scan.indexed, *scan.filtered], key, after, end) for scan in parts]
    cursors = [key.cursor(row) for row in await tx.rows(_merged(rows, key, limit + 1))]
    way = AccessPath.FILTERED if filters_rows else AccessPath.INDEX
    if len(cursors) > limit:
        return Page(cursors[:limit], cursors[limit - 1], False, way)
    return Page(cursors, end, end is not None, way)


async def _scan_end(
    tx: Transaction, parts: Sequence[Scan], key: SortKey, after: Cursor | None, scan_limit: int
) -> Cursor | None:
    """The end of this search, after `scan_limit` rows of a scan; None if all scans end earlier."""
    limits = [_rows(scan, scan.indexed, key, after, None).offset(scan_limit - 1) for scan in parts]
    ends = await tx.rows(_merged(limits, key, 1))
    return key.cursor(ends[0]) if ends else None


def _merged(parts: Sequence[sa.Select[Any]], key: SortKey, limit: int) -> sa.Select[Any]:
    """The first rows of all parts, each of which is in the order of the key."""
    union = sa.union_all(*(sa.select(part.limit(limit).subquery()) for part in parts)).subquery()
    return sa.select(*key.carried(union.c)).order_by(*key.order(union.c)).limit(limit)


def _rows(
    scan: Scan, conditions: Sequence[Any], key: SortKey, after: Cursor | None, end: Cursor | None
) -> sa.Select[Any]:
    columns = scan.source.table.c
    bounds = [compared(columns, key, after, beyond=True)] if after is not None else []
    bounds += [compared(columns, key, end, beyond=False)] if end is not None else []
    # If the order of the ids costs nothing, a planner without statistics walks along the ids instead of using the
    # index that finds the few served rows.
    order = key.order(columns, hidden=scan.few)
    return sa.select(*key.columns(columns)).where(*bounds, *conditions).order_by(*order)


__all__ = ["SCAN_LIMIT", "Page", "find"]


@dataclass(frozen=True, slots=True)
class TaskPage:
    """One page of a task list.

    Args:
        next: the cursor of the next page (`after`); None on the last page.
        capped: True if the search stopped at the scan limit; a short page is then not the last one.
        indexed: True if an index serves the filter, False if rows are checked one by one.
        at: the database's time, from which ages count.
        sorted: True if no index has the order: the matching tasks were sorted, only the newest ones if capped.
        places: the cursor behind each task, by its id.
    """

    tasks: list[TaskRow]
    next: Cursor | None
    capped: bool
    indexed: bool
    at: datetime
    sorted: bool = False
    places: Annotated[Mapping[int, Cursor], Treatment.HIDDEN] = field(default_factory=dict)

    @property
    def access(self) -> str:
        """The access path, in words."""
        if self.sorted:
            return f"scan: sorted the newest {SCAN_LIMIT:,} rows" if self.capped else "scan: sorted all rows"
        suffix = ", stopped at the scan limit" if self.capped else ""
        return f"{'indexed' if self.indexed else 'scan'}{suffix}"


async def page(
    tx: Transaction,
    task_filter: Filter,
    after: Cursor | None = None,
    limit: int = 50,
    sort: Sort = NEWEST,
    scan_limit: int = SCAN_LIMIT,
) -> TaskPage:
    """List live and finished tasks.

    The cost of a page does not grow with the tables: without an index it reads at most `scan_limit` rows per table.

    Args:
        after: the cursor from the previous page; None for the first page.
        limit: maximum number of tasks on a page.
        scan_limit: maximum number of rows to check or sort in each table.

    Raises:
        InvalidSort: no matching task has the sort field, or the waiting tasks have too many lanes.
    """
    result = await find(tx, task_filter, limit, after, sort, scan_limit)
    tasks, at = await tx.gather(task_rows(tx, result.ids), clock(tx))
    is_indexed = indexed(task_filter) or result.access_path is AccessPath.INDEX
    is_sorted = result.access_path is AccessPath.SORTED
    places = {cursor.id: cursor for cursor in result.cursors}
    return TaskPage(tasks, result.next, result.capped, is_indexed, at, is_sorted, places)


async def page_script(tx: Transaction, task_filter: Filter, sort: Sort, limit: int) -> str:
    """Write the SQL that reads the first page of a list: the ids in order, then the live and finished rows.

    Args:
        limit: maximum number of tasks on a page.

    Raises:
        NoSqlEquivalent: the filter contains control characters or text that looks like a secret.
        InvalidSort: see `page`.
    """
    from runner.db.sql_text import Recording  # Loads the dialects of both databases.

    recording, name = Recording(tx), tx.dialect.name
    await page(recording, task_filter, None, limit, sort)
    # The statements before these are preparations, and the last one reads the clock.
    statements = [whole.text(name) for executed in recording.executed[-4:-1] for whole in executed.complete()]
    text = "".join(f"{statement};\n" for statement in statements)
    if clean(text, newlines=True) != text or mask(text) != text:
        raise NoSqlEquivalent(why="the filter contains control characters, or text that looks like a secret")
    return text


PROBES = 15
"""The ids to look at in one round trip of a search."""


async def last_id(tx: Transaction, at: datetime) -> int:
    """The highest id of a task that was submitted up to a moment; 0 without one.

    Each step looks at several ids in the range that is left, in one round trip.
    """
    tables = (tx.tables.task, tx.tables.history)
    highest = await tx.gather(*(tx.scalar(sa.select(sa.func.max(table.c.id))) for table in tables))
    low, high = 0, max(id or 0 for id in highest)
    probe = sa.bindparam("probe", type_=sa.BigInteger)
    parts = [
        sa.select(
            sa.select(*readable(tx, [t.c.id, t.c.submitted_at]))
            .where(t.c.id >= probe)
            .order_by(t.c.id)
            .limit(1)
            .subquery()
        )
        for t in tables
    ]
    statement = sa.union_all(*parts)
    while low < high:
        step = -(-(high - low) // (PROBES + 1))
        probes = range(low + step, high + 1, step)
        found = await tx.gather(*(tx.rows(statement, {"probe": each}) for each in probes))
        for probed, rows in zip(probes, found, strict=True):
            times = [(row[0], moment(row[1])) for row in rows]
            id, submitted = min(times, key=lambda each: each[0], default=(0, None))
            if not id or submitted is None or submitted > at:
                high = probed - 1
                break
            low = max(id, probed)
    return low
