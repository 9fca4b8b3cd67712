"""pages: the list of tasks, a screenful at a time."""

from dataclasses import dataclass
from datetime import datetime

from runner.people.filters import Filter
from runner.store.observe.filtering import indexed
from runner.store.observe.legible import clock
from runner.store.observe.search import STRETCH, Order, find
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
    """

    tasks: list[TaskRow]
    next: int | None
    capped: bool
    indexed: bool
    at: datetime


async def page(
    tx: Transaction,
    wanted: Filter,
    after: int | None = None,
    limit: int = 50,
    order: Order = Order.NEWEST,
    stretch: int = STRETCH,
) -> Page:
    """List live and finished tasks by id.

    The cost does not grow with the tables: a filter that no index serves is answered a stretch at a time.

    Args:
        tx: an open transaction.
        wanted: the filter.
        after: as the page before said; None for the first page.
        limit: the most tasks on a page.
        order: newest or oldest first.
        stretch: the most rows to walk over in each table.

    Returns:
        The page.
    """
    found = await find(tx, wanted, limit, after, order, stretch)
    tasks = await task_rows(tx, found.ids)
    return Page(tasks, found.next, found.capped, indexed(wanted), await clock(tx))
