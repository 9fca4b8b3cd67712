"""bulk: do something to all that a filter lets through, a chunk at a time."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sqlalchemy as sa

from runner.filters import Filter
from runner.store.database import Database
from runner.store.intervene.answers import Result, Target
from runner.store.observe.legible import whole
from runner.store.observe.search import STRETCH, find
from runner.store.transaction import Transaction

Operation: TypeAlias = Callable[[Transaction, Sequence[Target]], Awaitable[Result]]
"""An intervention that lacks only its targets: `functools.partial(terminate, by=by)`."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Tasks that a filter lets through, as they are now.

    Args:
        targets: with their versions.
        next: the place to go on from; None when there is nothing more.
    """

    targets: list[Target]
    next: int | None


async def matching(
    tx: Transaction, wanted: Filter, limit: int, after: int | None = None, stretch: int = STRETCH
) -> Matching:
    """Find the tasks that a filter lets through, the newest first.

    Args:
        tx: an open transaction.
        wanted: the filter.
        limit: the most tasks.
        after: the place to go on from, as the last call said; None to begin.
        stretch: the most rows to walk over in each table; fewer tasks than `limit` may be found because of it.
    """
    found = await find(tx, wanted, limit, after, stretch=stretch)
    versions: dict[int, int] = {}
    for table in (tx.tables.task, tx.tables.history):
        statement = sa.select(table.c.id, table.c.version).where(tx.dialect.one_of(table.c.id, found.ids))
        versions |= {row.id: whole(row.version) for row in await tx.rows(statement)}
    return Matching([Target(id, versions[id]) for id in found.ids if id in versions], found.next)


async def in_chunks(
    database: Database,
    operation: Operation,
    wanted: Filter,
    chunk: int = 500,
    on_progress: Callable[[Result], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Do something to all tasks that a filter lets through, in transactions of their own.

    Tasks are taken from the newest to the oldest, so that what is submitted meanwhile is left alone and what is put
    back is not met again. A task that changes between being found and being changed is reported as moved on.

    Args:
        database: where they are.
        operation: what to do to a chunk.
        wanted: the filter.
        chunk: the most tasks in one transaction.
        on_progress: told the result so far after every chunk.
        stop: asked before every chunk whether to stop.

    Returns:
        What was done to all of them.
    """
    result, after = Result(), None
    while not (stop and stop()):
        found = await database.read(matching, wanted, chunk, after)
        if found.targets:
            result.add(await database.write(operation, found.targets))
        if on_progress:
            on_progress(result)
        if found.next is None:
            break
        after = found.next
    return result
