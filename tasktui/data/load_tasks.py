"""The queries of the task list, and their frozen results."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from runner.db.transaction import Transaction, clock
from runner.filter.parse import Filter
from runner.filter.sort import Sort
from runner.operations.preview import bounded, matching_ids
from runner.queries.counting import Count
from runner.queries.pauses import registry_entries
from runner.queries.task_list.compile import indexed
from runner.queries.task_list.page import TaskPage
from runner.queries.task_list.page import page as read_page
from runner.queries.task_list.row import TaskRow, task_rows
from runner.queries.task_list.search import find
from tasktui.messages import MatchesFound
from tasktui.render.render import line

MOST_NEWER = 100
"""Limit of the count of newer tasks."""

MOST_MARKED = 1_000
"""Maximum number of tasks marked individually; beyond it the filter is marked."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A first page.

    Args:
        page: the page.
        newest: highest matching id at that time; None if the search would be slow.
    """

    page: TaskPage
    newest: int | None


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
    entries = {field: await registry_entries(tx, table) for field, table in tables.items()}
    return {field: [name for name in values if line(name) == name] for field, values in entries.items()}


async def load(tx: Transaction, task_filter: Filter, limit: int, sort: Sort) -> Loaded:
    """Read a first page, and the newest matching id, which may not be on it.

    Args:
        tx: an open transaction.
        task_filter: the filter.
        limit: maximum number of tasks per page.
        sort: the order.
    """
    page = await read_page(tx, task_filter, None, limit, sort)
    if not indexed(task_filter):
        return Loaded(page, None)
    return Loaded(page, max((await find(tx, task_filter, 1)).ids, default=0))


async def refresh(tx: Transaction, asked: tuple[int, ...], task_filter: Filter, newest: int | None) -> Refreshed:
    """Read tasks again, and count newer ones.

    Args:
        tx: an open transaction.
        asked: ids of the tasks.
        task_filter: the filter for newer tasks.
        newest: highest id when the list was loaded; None skips the count.
    """
    rows = await task_rows(tx, asked)
    newer = 0
    if newest is not None:
        page = await find(tx, task_filter, MOST_NEWER)
        newer = sum(id > newest for id in page.ids)
    return Refreshed(asked, rows, newer, await clock(tx))


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
