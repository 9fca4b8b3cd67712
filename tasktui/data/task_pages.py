"""TaskPages: loads the task list page by page, and refreshes the visible tasks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from runner.db.transaction import Transaction, clock
from runner.filter.parse import Filter, parse_filter
from runner.filter.sort import NEWEST, Sort
from runner.operations.names import filter_warnings
from runner.operations.preview import bounded, matching_ids
from runner.queries.counting import Count, total_of
from runner.queries.registries import registry_entries
from runner.queries.signatures import payload_remark
from runner.queries.task_list.compile import indexed
from runner.queries.task_list.row import TaskRow, task_rows
from runner.queries.task_list.search import TaskPage, find, page_script, with_sort_field
from runner.queries.task_list.search import page as read_page
from runner.queries.task_list.shard_page import EARLIEST, ShardCursors, ShardPage, ShardTask, merged
from tasktui.data.task_list import Listing
from tasktui.messages import MatchesFound
from tasktui.render.render import line
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session
from tasktui.session.shard_reads import ShardReads, split
from tasktui.session.shards import database_of, each_database, shard_row

MOST_NEWER = 100
"""Limit of the count of newer tasks."""

MOST_MARKED = 1_000
"""Maximum number of tasks marked individually; beyond it the filter is marked."""


@dataclass(frozen=True, slots=True)
class FirstPage:
    """The first page of a database.

    Args:
        names: the queues and handlers, for completion.
        newest: highest matching id at that time; None if the search would be slow.
        unknown: a clause about each unknown queue and handler of the filter; empty if the page has tasks.
    """

    page: TaskPage
    newest: int | None
    unknown: tuple[str, ...] = ()
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The first page of a list.

    Args:
        parts: that of each database that answered, by its name.
        silent: the error of each other one.
    """

    page: ShardPage
    parts: Mapping[str, FirstPage]
    silent: Mapping[str, str]

    @property
    def unknown(self) -> tuple[str, ...]:
        """The clauses about names that no database knows."""
        first, *others = [part.unknown for part in self.parts.values()] or [()]
        return tuple(clause for clause in first if all(clause in other for other in others))


@dataclass(frozen=True, slots=True)
class More:
    """A further page, and the error of each database without an answer."""

    page: ShardPage
    silent: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The current rows of visible tasks, and the numbers of newer and matching tasks.

    Args:
        silent: the error of each database without an answer.
    """

    asked: tuple[int, ...]
    rows: Sequence[TaskRow]
    newer: int
    at: datetime
    matching: Count | None = None
    silent: Mapping[str, str] = field(default_factory=dict)


async def names(tx: Transaction) -> dict[str, Sequence[str]]:
    """Existing names for completion; names that need sanitizing are left out."""
    tables = {"queue": tx.tables.queue, "handler": tx.tables.handler}
    found = await tx.gather(*(registry_entries(tx, table) for table in tables.values()))
    entries = dict(zip(tables, found, strict=True))
    return {kind: [name for name in values if line(name) == name] for kind, values in entries.items()}


async def load(tx: Transaction, task_filter: Filter, limit: int, sort: Sort) -> FirstPage:
    """Read a first page, and the newest matching id, which may not be on it.

    Args:
        limit: maximum number of tasks per page.
    """
    (page, unknown), newest, found = await tx.gather(
        _first_page(tx, task_filter, limit, sort), _newest(tx, task_filter), names(tx)
    )
    return FirstPage(page, newest, unknown, found)


async def _first_page(tx: Transaction, task_filter: Filter, limit: int, sort: Sort) -> tuple[TaskPage, tuple[str, ...]]:
    page = await read_page(tx, task_filter, None, limit, sort)
    if page.tasks:
        return page, ()
    remark = await payload_remark(tx, task_filter)
    warnings = await filter_warnings(tx, task_filter, if_similar=False)
    return page, (*warnings, *([remark] if remark else []))


async def _newest(tx: Transaction, task_filter: Filter) -> int | None:
    """The highest matching id; None if the search would be slow."""
    return max((await find(tx, task_filter, 1)).ids, default=0) if indexed(task_filter) else None


async def refresh(tx: Transaction, asked: tuple[int, ...], task_filter: Filter, newest: int | None) -> Refreshed:
    """Read tasks again, and count newer ones.

    Args:
        newest: highest id when the list was loaded; None skips the count.
    """
    rows, ids, at = await tx.gather(task_rows(tx, asked), _latest(tx, task_filter, newest), clock(tx))
    return Refreshed(asked, rows, sum(id > (newest or 0) for id in ids), at)


async def _latest(tx: Transaction, task_filter: Filter, newest: int | None) -> list[int]:
    return [] if newest is None else (await find(tx, task_filter, MOST_NEWER)).ids


async def count_matches(tx: Transaction, task_filter: Filter, sort: Sort = NEWEST) -> Count:
    """Count the tasks of a list, up to a cap; for filters with an index."""
    ids, more = await matching_ids(tx, with_sort_field(tx, task_filter, sort))
    return Count(len(ids), more)


@dataclass(frozen=True, slots=True)
class Matches:
    """The tasks of a database that match a filter.

    Args:
        task_filter: the filter, bounded by the newest match.
        rows: the tasks; None if there are too many to list.
    """

    task_filter: Filter
    count: Count
    rows: Sequence[TaskRow] | None


async def _matches(tx: Transaction, task_filter: Filter) -> Matches:
    """Count the tasks that match a filter, and read them unless they are too many."""
    ids, more = await matching_ids(tx, task_filter)
    rows = await task_rows(tx, ids) if len(ids) <= MOST_MARKED and not more else None
    return Matches(bounded(task_filter, ids[0] if ids else None), Count(len(ids), more), rows)


PAGE = 200
"""Tasks per page."""

NEXT_PAGE_DISTANCE = 50
"""Distance from the last loaded task at which the next page is read."""

COUNT_EVERY = 10.0
"""Seconds to cache the number of matching tasks."""

SEARCH_SECONDS = 0.5
"""Seconds after which a search for older tasks shows its progress."""

MOST_LOADED = 5_000
"""Maximum number of tasks to load; use a filter to go further."""


class TaskPages:
    """The loaded tasks of a filter in an order, and the part to read next."""

    def __init__(self) -> None:
        self.listing = Listing()
        self.filter = Filter()
        self.filter_text = ""
        self.sort = NEWEST
        self.needs_load = True
        self._needs_page = False
        self._goal = 0
        self._load_count = 0
        self._turn = 0
        self._newest: Mapping[str, int | None] = {}
        self._reads = ShardReads[Any]()
        self._counts = TtlCache[Count | None](COUNT_EVERY)

    @property
    def request(self) -> object:
        """The filter, the order and the number of reloads."""
        return (self.filter_text, self.sort, self._load_count)

    def set_filter(self, text: str, session: Session) -> None:
        """Load the tasks of another filter.

        Raises:
            InvalidInput: the filter cannot be parsed.
        """
        self.filter = parse_filter(text, session.now(), session.zone)
        self.filter_text = text
        self.reload()

    def set_sort(self, sort: Sort) -> None:
        """Load the tasks in another order."""
        self.sort = sort
        self.reload()

    def reload(self) -> None:
        """Load the first page again."""
        self.needs_load, self._load_count, self._goal = True, self._load_count + 1, 0

    def continues(self, position: int) -> bool:
        """Request the next page if the cursor is near the end; True if the request is new."""
        loaded = len(self.listing.ids)
        near = position >= loaded - NEXT_PAGE_DISTANCE and loaded < MOST_LOADED
        if not near or not self.listing.next or self._needs_page:
            return False
        self._needs_page = True
        return True

    @property
    def searching(self) -> bool:
        """True while a search goes on, page by page, until it finds another page of tasks."""
        return self._goal > 0

    def search(self) -> None:
        """Continue a search that stopped at the scan limit, until it finds another page of tasks or the end."""
        if self.listing.capped and self.listing.next:
            self._goal, self._needs_page = len(self.listing.ids) + PAGE, True

    def stop_search(self) -> None:
        """Stop the search after the page that it reads."""
        self._goal, self._needs_page = 0, False

    async def read(self, session: Session, ids: tuple[int, ...]) -> Loaded | More | Refreshed:
        """Load the first page, read the next page, or refresh tasks.

        Args:
            ids: the tasks to refresh; the others follow in turn, because the list counts the states of all its tasks.
        """
        if self.needs_load:
            return await self._first_page(session)
        if self._needs_page and self.listing.next:
            return await self._next_page(session, self.listing.next)
        ids = tuple(dict.fromkeys((*ids, *self.listing.ids[self._turn : self._turn + PAGE])))
        self._turn = self._turn + PAGE if self._turn + PAGE < len(self.listing.ids) else 0
        snapshot = await self._refreshed(session, ids)
        return replace(snapshot, matching=None if snapshot.silent else await self._matching(session))

    async def _first_page(self, session: Session) -> Loaded:
        task_filter, sort = self.filter, self.sort

        async def of_database(each: Session) -> FirstPage:
            return await each.read(load, task_filter, PAGE, sort)

        parts, silent = split(await self._reads.read(session, of_database, ("load", self.request)))
        for part in parts.values():
            session.add_names(part.names)
        pages = {name: _named(session, name, part.page) for name, part in parts.items()}
        return Loaded(merged(pages, dict.fromkeys(pages), sort, PAGE), parts, silent)

    async def _next_page(self, session: Session, cursors: ShardCursors) -> More:
        """Read the next page; a search reads several, until it has found enough or its progress is due."""
        tasks: list[ShardTask] = []
        task_filter, sort, begin = self.filter, self.sort, time.monotonic()

        async def of_database(each: Session) -> TaskPage | None:
            if each.name not in cursors:
                return None
            return await each.read(read_page, task_filter, cursors[each.name], PAGE, sort)

        while True:
            parts, silent = split(await self._reads.read(session, of_database, ("more", self.request, cursors)))
            pages = {name: _named(session, name, page) for name, page in parts.items() if page is not None}
            page = merged(pages, cursors, sort, PAGE)
            tasks += page.tasks
            enough = len(self.listing.ids) + len(tasks) >= self._goal
            late = time.monotonic() - begin > SEARCH_SECONDS
            if not page.next or not page.capped or enough or late or silent:
                return More(replace(page, tasks=tasks), silent)
            cursors = page.next

    async def _refreshed(self, session: Session, ids: tuple[int, ...]) -> Refreshed:
        task_filter, newest = self.filter, self._newest

        async def of_database(each: Session) -> Refreshed:
            own = tuple(int(id) for id in ids if database_of(session, id)[0] is each)
            return await each.read(refresh, own, task_filter, newest.get(each.name))

        parts, silent = split(await self._reads.read(session, of_database, ("refresh", self.request)))
        rows = [shard_row(session, name, row) for name, part in parts.items() for row in part.rows]
        read = {name: {*part.asked} for name, part in parts.items()}
        asked = tuple(id for id in ids if int(id) in read.get(database_of(session, id)[0].name, ()))
        at = max((part.at for part in parts.values()), default=self.listing.at or EARLIEST)
        return Refreshed(asked, rows, sum(part.newer for part in parts.values()), at, silent=silent)

    async def matching(self, session: Session) -> MatchesFound:
        """Count the tasks that match the filter, and read them unless they are too many."""
        task_filter = self.filter

        async def of_database(each: Session) -> Matches:
            return await each.read(_matches, task_filter)

        parts, silent = split(await ShardReads[Matches]().read(session, of_database))
        count = Count(*total_of(part.count for part in parts.values()))
        filters = {name: part.task_filter for name, part in parts.items() if part.count.number}
        if count.number > MOST_MARKED or any(part.rows is None for part in parts.values()):
            return MatchesFound(filters, count, None, [*silent])
        rows = [shard_row(session, name, row) for name, part in parts.items() for row in part.rows or ()]
        return MatchesFound(filters, count, rows, [*silent])

    async def sql(self, session: Session) -> str:
        """Write the SQL that lists the first page; it is the same in all shards."""
        return await each_database(session)[0].read(page_script, self.filter, self.sort, PAGE)

    async def _matching(self, session: Session) -> Count | None:
        """Count the matching tasks if not all of them are loaded and an index makes counting cheap."""
        if not self.listing.next or not self.listing.indexed:
            return None
        return await self._counts.get(self.request, partial(self._counted, session), session.distance)

    async def _counted(self, session: Session) -> Count | None:
        task_filter, sort = self.filter, self.sort

        async def of_database(each: Session) -> Count:
            return await each.read(count_matches, task_filter, sort)

        parts, silent = split(await self._reads.read(session, of_database, ("count", self.request)))
        return None if silent else Count(*total_of(parts.values()))

    def update(self, snapshot: Loaded | More | Refreshed) -> None:
        """Update the list; only a load changes its order."""
        match snapshot:
            case Loaded(page, parts, silent):
                listing = self.listing.loaded(page, snapshot.unknown)
                self.listing = replace(listing, silent=silent, unlisted=frozenset(silent))
                self.stop_search()
                self._newest = {name: part.newest for name, part in parts.items()}
                self.needs_load = bool(silent) and not self.listing.ids
            case More(page, silent):
                self.listing = replace(self.listing.extended(page), silent=silent)
                unfinished = page.capped and bool(page.next) and len(self.listing.ids) < self._goal and not silent
                self._needs_page, self._goal = unfinished, self._goal if unfinished else 0
            case Refreshed(ids, rows, newer, at, matching, silent):
                listing = self.listing.refreshed(ids, rows, at, newer)
                self.listing = replace(listing, matching=matching, silent=silent)
                self.needs_load = bool(newer) and not self.listing.ids


def _named(session: Session, name: str, page: TaskPage) -> TaskPage:
    """A page of a database, whose ids have the shard if the session has several."""
    return replace(page, tasks=[shard_row(session, name, task) for task in page.tasks])
