"""TaskPages: loads the task list page by page, and refreshes the visible tasks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from runner.db.transaction import Transaction, clock
from runner.filter.parse import Filter, parse_filter
from runner.filter.sort import NEWEST, Sort, SortField
from runner.operations.names import filter_warnings
from runner.operations.preview import bounded, matching_ids
from runner.queries.counting import Count
from runner.queries.registries import registry_entries
from runner.queries.task_list.compile import indexed
from runner.queries.task_list.cursor import Cursor
from runner.queries.task_list.row import TaskRow, task_rows
from runner.queries.task_list.sealed_handlers import payload_remark
from runner.queries.task_list.search import TaskPage, find, page_script
from runner.queries.task_list.search import page as read_page
from tasktui.data.task_list import Listing
from tasktui.messages import MatchesFound
from tasktui.render.render import line
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session

MOST_NEWER = 100
"""Limit of the count of newer tasks."""

MOST_MARKED = 1_000
"""Maximum number of tasks marked individually; beyond it the filter is marked."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A first page.

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
class More:
    """A further page."""

    page: TaskPage


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The current rows of visible tasks, and the numbers of newer and matching tasks."""

    asked: tuple[int, ...]
    rows: Sequence[TaskRow]
    newer: int
    at: datetime
    matching: Count | None = None


async def names(tx: Transaction) -> dict[str, Sequence[str]]:
    """Existing names for completion; names that need sanitizing are left out."""
    tables = {"queue": tx.tables.queue, "handler": tx.tables.handler}
    found = await tx.gather(*(registry_entries(tx, table) for table in tables.values()))
    entries = dict(zip(tables, found, strict=True))
    return {kind: [name for name in values if line(name) == name] for kind, values in entries.items()}


async def load(tx: Transaction, task_filter: Filter, limit: int, sort: Sort) -> Loaded:
    """Read a first page, and the newest matching id, which may not be on it.

    Args:
        limit: maximum number of tasks per page.
    """
    (page, unknown), newest, found = await tx.gather(
        _first_page(tx, task_filter, limit, sort), _newest(tx, task_filter), names(tx)
    )
    return Loaded(page, newest, unknown, found)


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


async def count_matches(tx: Transaction, task_filter: Filter) -> Count:
    """Count the tasks that match a filter, up to a cap; for filters with an index."""
    ids, more = await matching_ids(tx, task_filter)
    return Count(len(ids), more)


async def matching(tx: Transaction, task_filter: Filter) -> MatchesFound:
    """Count the tasks that match a filter, and read them unless they are too many."""
    ids, more = await matching_ids(tx, task_filter)
    count = Count(len(ids), more)
    rows = await task_rows(tx, ids) if len(ids) <= MOST_MARKED and not more else None
    return MatchesFound(task_filter=bounded(task_filter, ids[0] if ids else None), count=count, rows=rows)


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
        self._newest: int | None = None
        self._counts = TtlCache[Count](COUNT_EVERY)

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
        if not near or self.listing.next is None or self._needs_page:
            return False
        self._needs_page = True
        return True

    @property
    def searching(self) -> bool:
        """True while a search goes on, page by page, until it finds another page of tasks."""
        return self._goal > 0

    def search(self) -> None:
        """Continue a search that stopped at the scan limit, until it finds another page of tasks or the end."""
        if self.listing.capped and self.listing.next is not None:
            self._goal, self._needs_page = len(self.listing.ids) + PAGE, True

    def stop_search(self) -> None:
        """Stop the search after the page that it reads."""
        self._goal, self._needs_page = 0, False

    async def read(self, session: Session, ids: tuple[int, ...]) -> Loaded | More | Refreshed:
        """Load the first page, read the next page, or refresh tasks."""
        if self.needs_load:
            loaded = await session.read(load, self.filter, PAGE, self.sort)
            session.add_names(loaded.names)
            return loaded
        if self._needs_page and self.listing.next is not None:
            return More(await self._next_page(session, self.listing.next))
        snapshot = await session.read(refresh, ids, self.filter, self._newest)
        return replace(snapshot, matching=await self._matching(session))

    async def _next_page(self, session: Session, cursor: Cursor) -> TaskPage:
        """Read the next page; a search reads several, until it has found enough or its progress is due."""
        tasks: list[TaskRow] = []
        begin = time.monotonic()
        while True:
            page = await session.read(read_page, self.filter, cursor, PAGE, self.sort)
            tasks += page.tasks
            enough = len(self.listing.ids) + len(tasks) >= self._goal
            if page.next is None or not page.capped or enough or time.monotonic() - begin > SEARCH_SECONDS:
                return replace(page, tasks=tasks)
            cursor = page.next

    async def sql(self, session: Session) -> str:
        """Write the SQL that lists the first page."""
        return await session.read(page_script, self.filter, self.sort, PAGE)

    async def _matching(self, session: Session) -> Count | None:
        """Count the matching tasks if not all of them are loaded and an index makes counting cheap."""
        cheap = self.listing.indexed and self.sort.by in (SortField.ID, SortField.AGE, SortField.ATTEMPTS)
        if self.listing.next is None or not cheap:
            return None
        return await self._counts.get(self.request, partial(session.read, count_matches, self.filter), session.distance)

    def update(self, snapshot: Loaded | More | Refreshed) -> None:
        """Update the list; only a load changes its order."""
        match snapshot:
            case Loaded(page, newest, unknown, _):
                self.listing, self.needs_load = self.listing.loaded(page, unknown), False
                self.stop_search()
                self._newest = newest
            case More(page):
                self.listing = self.listing.extended(page)
                unfinished = page.capped and page.next is not None and len(self.listing.ids) < self._goal
                self._needs_page, self._goal = unfinished, self._goal if unfinished else 0
            case Refreshed(ids, rows, newer, at, matching):
                self.listing = replace(self.listing.refreshed(ids, rows, at, newer), matching=matching)
                self.needs_load = bool(newer) and not self.listing.ids
