"""What the list of tasks asks the database for, and the frozen answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from runner.people.filters import Filter
from runner.people.sorts import Sort
from runner.store import intervene, observe
from runner.store.observe import Count, Page, TaskRow
from runner.store.transaction import Transaction
from tasktui.draw.render import line
from tasktui.messages import Matched

MOST_NEWER = 100
"""Newer tasks are counted up to so many."""

MOST_MARKED = 1_000
"""Tasks that are marked one by one; of more it is noted that all are meant that match."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A first page.

    Args:
        page: the page.
        newest: the highest id that the filter let through then; None where finding it would take long.
    """

    page: Page
    newest: int | None


@dataclass(frozen=True, slots=True)
class More:
    """A further page."""

    page: Page


@dataclass(frozen=True, slots=True)
class Refreshed:
    """Tasks that are in sight, as they are now, how many newer ones there are, and how many match if that is known."""

    asked: tuple[int, ...]
    rows: Sequence[TaskRow]
    newer: int
    at: datetime
    matching: Count | None = None


async def names(tx: Transaction) -> dict[str, Sequence[str]]:
    """Names that exist, for completing; a name that is not harmless is not offered."""
    found = {"queue": tx.tables.queue, "handler": tx.tables.handler}
    known = {field: await observe.registered(tx, table) for field, table in found.items()}
    return {field: [name for name in entries if line(name) == name] for field, entries in known.items()}


async def load(tx: Transaction, wanted: Filter, limit: int, sort: Sort) -> Loaded:
    """Read a first page, and what is the newest of all: a list need not begin with it.

    Args:
        tx: an open transaction.
        wanted: the filter.
        limit: the most tasks on a page.
        sort: the order.
    """
    page = await observe.page(tx, wanted, None, limit, sort)
    if not observe.indexed(wanted):
        return Loaded(page, None)
    return Loaded(page, max((await observe.find(tx, wanted, 1)).ids, default=0))


async def refresh(tx: Transaction, asked: tuple[int, ...], wanted: Filter, newest: int | None) -> Refreshed:
    """Read tasks again, and count those that came since.

    Args:
        tx: an open transaction.
        asked: ids of the tasks.
        wanted: the filter that newer ones must pass.
        newest: the highest id when the list was loaded; None to count none.
    """
    rows = await observe.task_rows(tx, asked)
    newer = 0
    if newest is not None:
        found = await observe.find(tx, wanted, MOST_NEWER)
        newer = sum(id > newest for id in found.ids)
    return Refreshed(asked, rows, newer, await observe.clock(tx))


async def counted(tx: Transaction, wanted: Filter) -> Count:
    """Count what a filter lets through, up to a cap; for filters that an index serves."""
    ids, more = await intervene.gathered(tx, wanted)
    return Count(len(ids), more)


async def matching(tx: Transaction, wanted: Filter) -> Matched:
    """Count what a filter lets through, and name it if that is not too much."""
    ids, more = await intervene.gathered(tx, wanted)
    count = Count(len(ids), more)
    rows = await observe.task_rows(tx, ids) if len(ids) <= MOST_MARKED and not more else None
    return Matched(wanted=intervene.bounded(wanted, ids[0] if ids else None), count=count, rows=rows)
