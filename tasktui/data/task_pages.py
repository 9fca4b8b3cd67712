"""TaskPages: loads the task list page by page, and refreshes the visible tasks."""

from dataclasses import replace
from functools import partial

from runner.filter.parse import Filter, parse_filter
from runner.filter.sort import NEWEST, Sort, SortField
from runner.queries.counting import Count
from runner.queries.task_list.page import page as read_page
from runner.queries.task_list.page import page_script
from tasktui.data.load_tasks import Loaded, More, Refreshed, count_matches, load, names, refresh
from tasktui.data.task_list import Listing
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session

PAGE = 200
"""Tasks per page."""

NEXT_PAGE_DISTANCE = 50
"""Distance from the last loaded task at which the next page is read."""

COUNT_EVERY = 10.0
"""Seconds to cache the number of matching tasks."""

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
        self.needs_load, self._load_count = True, self._load_count + 1

    def continues(self, position: int) -> bool:
        """Request the next page if the cursor is near the end; True if the request is new."""
        loaded = len(self.listing.ids)
        near = position >= loaded - NEXT_PAGE_DISTANCE and loaded < MOST_LOADED
        if not near or self.listing.next is None or self._needs_page:
            return False
        self._needs_page = True
        return True

    async def read(self, session: Session, ids: tuple[int, ...]) -> Loaded | More | Refreshed:
        """Load the first page, read the next page, or refresh tasks.

        Args:
            session: the operator's session.
            ids: the tasks to refresh.
        """
        if self.needs_load:
            session.add_names(await session.read(names))
            return await session.read(load, self.filter, PAGE, self.sort)
        if self._needs_page and self.listing.next is not None:
            return More(await session.read(read_page, self.filter, self.listing.next, PAGE, self.sort))
        snapshot = await session.read(refresh, ids, self.filter, self._newest)
        return replace(snapshot, matching=await self._matching(session))

    async def sql(self, session: Session) -> str:
        """Write the SQL that lists the first page."""
        return await session.read(page_script, self.filter, self.sort, PAGE)

    async def _matching(self, session: Session) -> Count | None:
        """Count the matching tasks if not all of them are loaded and an index makes counting cheap."""
        cheap = self.listing.indexed and self.sort.by in (SortField.ID, SortField.AGE, SortField.ATTEMPTS)
        if self.listing.next is None or not cheap:
            return None
        return await self._counts.get(self.request, partial(session.read, count_matches, self.filter))

    def update(self, snapshot: Loaded | More | Refreshed) -> None:
        """Update the list; only a load changes its order."""
        match snapshot:
            case Loaded(page, newest):
                self.listing, self.needs_load, self._needs_page = self.listing.loaded(page), False, False
                self._newest = newest
            case More(page):
                self.listing, self._needs_page = self.listing.extended(page), False
            case Refreshed(ids, rows, newer, at, matching):
                self.listing = replace(self.listing.refreshed(ids, rows, at, newer), matching=matching)
                self.needs_load = bool(newer) and not self.listing.ids
