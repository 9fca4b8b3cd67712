"""pages: the list of tasks, a screenful at a time."""

from dataclasses import dataclass
from datetime import datetime

from runner.people.filters import Filter
from runner.people.sorts import NEWEST, Sort
from runner.store.observe.bookmark import Bookmark
from runner.store.observe.filtering import indexed
from runner.store.observe.found import STRETCH, Way
from runner.store.observe.legible import clock
from runner.store.observe.search import find
from runner.store.observe.tasks import TaskRow, task_rows
from runner.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks of a list.

    Args:
        tasks: in order.
        next: what to pass as `after` for the next page; None on the last one.
        capped: the search stopped after walking far; fewer tasks than asked for does not mean that there are no more.
        indexed: an index finds the filter's tasks; else rows are walked over one by one.
        at: the database's time, from which ages count.
        sorted: no index has the order: what matches was sorted, and when that is capped only the newest.
    """

    tasks: list[TaskRow]
    next: Bookmark | None
    capped: bool
    indexed: bool
    at: datetime
    sorted: bool = False

    @property
    def way(self) -> str:
        """How they were found, in words."""
        if self.sorted:
            return f"scan: sorted among the newest {STRETCH:,} looked at" if self.capped else "scan: all were sorted"
        short = ", stopped after looking at many rows" if self.capped else ""
        return f"{'indexed' if self.indexed else 'scan'}{short}"


async def page(
    tx: Transaction,
    wanted: Filter,
    after: Bookmark | None = None,
    limit: int = 50,
    sort: Sort = NEWEST,
    stretch: int = STRETCH,
) -> Page:
    """List live and finished tasks.

    The cost does not grow with the tables: a filter that no index serves is answered a stretch at a time.

    Args:
        tx: an open transaction.
        wanted: the filter.
        after: as the page before said; None for the first page.
        limit: the most tasks on a page.
        sort: what is listed in which order.
        stretch: the most rows to walk over, or to sort, in each table.

    Returns:
        The page.

    Raises:
        InvalidSort: the filter lets nothing through that has what is sorted by, or what waits is of too many kinds.
    """
    found = await find(tx, wanted, limit, after, sort, stretch)
    tasks = await task_rows(tx, found.ids)
    served = indexed(wanted) or found.way is Way.INDEX
    return Page(tasks, found.next, found.capped, served, await clock(tx), found.way is Way.SORTED)
