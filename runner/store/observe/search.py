"""search: find the ids that a filter lets through, a bounded stretch at a time, in an order that people asked for."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from runner.errors import InvalidSort
from runner.people.filters import Filter
from runner.people.sorts import NEWEST, SORTS, By, Sort
from runner.store.observe.among import sort_among
from runner.store.observe.bookmark import Bookmark
from runner.store.observe.filtering import path
from runner.store.observe.found import STRETCH, Found, Way
from runner.store.observe.keys import Key, compared
from runner.store.observe.lanes import walk_lanes
from runner.store.observe.sides import Side, is_few, sides
from runner.store.observe.subjects import Subject, live, past, running, waiting
from runner.store.transaction import Transaction


async def find(
    tx: Transaction,
    wanted: Filter,
    limit: int,
    after: Bookmark | None = None,
    sort: Sort = NEWEST,
    stretch: int = STRETCH,
) -> Found:
    """Find tasks.

    In the orders of ids, of ends, of times to run and of priorities an index is walked along, so that a page costs the
    same however many tasks there are. In other orders, and where another index finds what the filter lets through, the
    newest of these are sorted: as many as a stretch holds, and no more.

    Args:
        tx: an open transaction; one statement is executed, or two when rows must be sifted; by times to run and
            priorities one more.
        wanted: the filter.
        limit: the most ids to return.
        after: the place behind which to look, as `Found.next` named it; None to begin.
        sort: the order.
        stretch: the most rows to sift, or to sort, in each table.

    Raises:
        InvalidSort: the filter lets nothing through that has what it is sorted by.
    """
    if (keep := tx.dialect.along_indexes()) is not None:
        await tx.execute(keep)
    subjects = _subjects(tx, sort)
    parts = sides(wanted, subjects, tx.dialect, by_queue=sort.by in (By.ID, By.AGE))
    if not parts:
        _refuse_others(tx, wanted, sort)
        return Found([], None, False)
    match sort.by:
        case By.ID:
            return await walk(tx, parts, Key((), descending=sort.descending), limit, after, stretch)
        case By.AGE:  # the older, the lower the id
            return await walk(tx, parts, Key((), descending=not sort.descending), limit, after, stretch)
        case By.FINISHED_AT if not _by_something_else(wanted):
            return await walk(tx, parts, Key(("finished_at",), descending=sort.descending), limit, after, stretch)
        case By.RUN_AT | By.PRIORITY if not _by_something_else(wanted):
            return await walk_lanes(tx, wanted, sort, limit, after, stretch)
    key = Key((COLUMNS[sort.by],), descending=sort.descending)
    edge = await _edge(tx, parts, NEWEST_IDS, None, stretch)
    return await sort_among(tx, parts, key, limit, after, edge)


NEWEST_IDS = Key((), descending=True)

COLUMNS = {
    By.ATTEMPTS: "attempt",
    By.CLAIMED_AT: "claimed_at",
    By.FINISHED_AT: "finished_at",
    By.PRIORITY: "priority",
    By.RUN_AT: "run_at",
}


def _subjects(tx: Transaction, sort: Sort) -> list[Subject]:
    """The tasks that have what they are to be sorted by."""
    match sort.by:
        case By.RUN_AT | By.PRIORITY:
            return [waiting(tx.tables)]
        case By.CLAIMED_AT:
            return [running(tx.tables)]
        case By.FINISHED_AT:
            return [past(tx.tables)]
    return [live(tx.tables), past(tx.tables)]


def _by_something_else(wanted: Filter) -> bool:
    """Tell whether an index finds the filter's tasks by what they are not sorted by."""
    return is_few(wanted) or any(term.field == "id" for term in path(wanted).terms)


def _refuse_others(tx: Transaction, wanted: Filter, sort: Sort) -> None:
    if not sides(wanted, [live(tx.tables), past(tx.tables)], tx.dialect):
        return  # nothing can fulfil the filter, whatever it is sorted by
    others = (by for by in By if sides(wanted, _subjects(tx, Sort(by)), tx.dialect))
    why = f"only {SORTS[sort.by].of} have it, and the filter asks for others; these can be by {', '.join(others)}"
    raise InvalidSort(sort=sort.by, why=why)


async def walk(
    tx: Transaction, parts: Sequence[Side], key: Key, limit: int, after: Bookmark | None, stretch: int
) -> Found:
    """Walk along the indexes that have the order of the key.

    Args:
        tx: an open transaction; one statement is executed, or two when rows must be sifted.
        parts: of the search.
        key: what is sorted by.
        limit: the most ids to return.
        after: the place behind which to look; None to begin.
        stretch: the most rows to sift in each table.
    """
    sifts = any(side.sifted for side in parts)
    edge = await _edge(tx, parts, key, after, stretch) if sifts else None
    rows = [_rows(side, [*side.served, *side.sifted], key, after, edge) for side in parts]
    found = [key.bookmark(row) for row in await tx.rows(_merged(rows, key, limit + 1))]
    way = Way.SIFTED if sifts else Way.INDEX
    if len(found) > limit:
        return Found([mark.id for mark in found[:limit]], found[limit - 1], False, way)
    return Found([mark.id for mark in found], edge, edge is not None, way)


async def _edge(
    tx: Transaction, parts: Sequence[Side], key: Key, after: Bookmark | None, stretch: int
) -> Bookmark | None:
    """Where this search ends: no side looks at more than `stretch` rows. None when all sides end before that."""
    last = [_rows(side, side.served, key, after, None).offset(stretch - 1) for side in parts]
    edges = await tx.rows(_merged(last, key, 1))
    return key.bookmark(edges[0]) if edges else None


def _merged(parts: Sequence[sa.Select[Any]], key: Key, limit: int) -> sa.Select[Any]:
    """The first rows of all parts, each of which has the order of the key."""
    both = sa.union_all(*(sa.select(part.limit(limit).subquery()) for part in parts)).subquery()
    return sa.select(*key.carried(both.c)).order_by(*key.order(both.c)).limit(limit)


def _rows(
    side: Side, conditions: Sequence[Any], key: Key, after: Bookmark | None, edge: Bookmark | None
) -> sa.Select[Any]:
    columns = side.subject.table.c
    bounds = [compared(columns, key, after, beyond=True)] if after is not None else []
    bounds += [compared(columns, key, edge, beyond=False)] if edge is not None else []
    # Offered the order of the ids for nothing, a planner without statistics walks over them instead of using the index
    # of the few rows that are served.
    order = key.order(columns, hidden=side.few)
    return sa.select(*key.columns(columns)).where(*bounds, *conditions).order_by(*order)


__all__ = ["STRETCH", "Found", "find"]
