"""The bulk operation: many tasks, changed in chunks."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import sqlalchemy as sa

from runner.db.halves import write_in_halves
from runner.db.transaction import Transaction
from runner.filter.parse import Filter
from runner.model.stuck_row import RowFault
from runner.operations.results import Result, Target, stuck_of
from runner.queries.rows import as_int
from runner.queries.task_list.compile import is_few
from runner.queries.task_list.cursor import SCAN_LIMIT, Cursor
from runner.queries.task_list.search import find

P = ParamSpec("P")
T = TypeVar("T")

CHUNK = 500
"""Maximum number of tasks changed in one transaction."""

SORTED_CHUNK = 5_000
"""The tasks found per search if a search must sort all matches: by key or failure group."""

Operation: TypeAlias = Callable[[Transaction, Sequence[Target]], Awaitable[Result]]
"""An operation that lacks only its targets: `functools.partial(terminate, by=by)`."""


class DatabaseAccess(Protocol):
    """Access to a database: a Database or a wrapper."""

    async def read(
        self, verb: Callable[Concatenate[Transaction, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a verb of the store in its own reading transaction."""
        ...

    async def write(
        self, verb: Callable[Concatenate[Transaction, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a verb of the store in its own writing transaction."""
        ...


def never() -> bool:
    """The default of BulkOptions.stop."""
    return False


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """The options of a bulk operation.

    Args:
        chunk: maximum number of tasks changed in one transaction.
        limit: maximum number of tasks to change; None for no limit.
        on_progress: called with the result so far after every chunk.
        stop: called before every chunk; True stops the operation.
    """

    chunk: int = CHUNK
    limit: int | None = None
    on_progress: Callable[[Result], object] | None = None
    stop: Callable[[], bool] = never

    def is_done(self, so_far: Result) -> bool:
        """True if no further chunk may begin."""
        return self.stop() or (self.limit is not None and len(so_far.changed) >= self.limit)

    async def step(
        self, database: DatabaseAccess, operation: Operation, targets: Sequence[Target], so_far: Result
    ) -> None:
        """Process one chunk and add its result; tasks that the database refuses to change hold up no others."""

        async def write(part: Sequence[Target]) -> None:
            limit = None if self.limit is None else self.limit - len(so_far.changed)
            so_far.add(await database.write(_at_most, limit, operation, part))

        def refuse(target: Target, fault: RowFault) -> None:
            so_far.stuck.append(stuck_of(target.id, fault))

        await write_in_halves(targets, write, refuse)
        if self.on_progress:
            self.on_progress(so_far)


DEFAULT_OPTIONS = BulkOptions()


@dataclass(frozen=True, slots=True)
class Matching:
    """Tasks that match a filter, with their current versions.

    Args:
        next: the cursor to continue from; None at the end.
    """

    targets: list[Target]
    next: Cursor | None


async def matching(
    tx: Transaction, task_filter: Filter, limit: int, after: Cursor | None = None, scan_limit: int = SCAN_LIMIT
) -> Matching:
    """Find the tasks that match a filter, newest first.

    Args:
        limit: maximum number of tasks.
        after: the cursor from the previous call; None to begin.
        scan_limit: maximum number of rows to check in each table; it can leave fewer than `limit` tasks.
    """
    page = await find(tx, task_filter, limit, after, scan_limit=scan_limit)
    versions: dict[int, int] = {}
    for table in (tx.tables.task, tx.tables.history):
        statement = sa.select(table.c.id, table.c.version).where(tx.dialect.one_of(table.c.id, page.ids))
        versions |= {row.id: as_int(row.version) for row in await tx.rows(statement)}
    return Matching([Target(id, versions[id]) for id in page.ids if id in versions], page.next)


async def to_all(
    database: DatabaseAccess, operation: Operation, task_filter: Filter, options: BulkOptions = DEFAULT_OPTIONS
) -> Result:
    """Apply an operation to all tasks that match a filter.

    The bulk goes from the newest task to the oldest, so that it skips later submits and does not meet requeued tasks
    again. A task that changes between the search and the operation is reported as a conflict.

    Returns:
        The combined result.
    """
    result, after = Result(), None
    limit = max(options.chunk, SORTED_CHUNK) if is_few(task_filter) else options.chunk
    while not options.is_done(result):
        page = await database.read(matching, task_filter, limit, after)
        for first in range(0, max(1, len(page.targets)), options.chunk):
            if not options.is_done(result):
                await options.step(database, operation, page.targets[first : first + options.chunk], result)
        after = page.next
        if after is None:
            break
    return result


async def to_each(
    database: DatabaseAccess, operation: Operation, targets: Sequence[Target], options: BulkOptions = DEFAULT_OPTIONS
) -> Result:
    """Apply an operation to selected tasks.

    Returns:
        The combined result.
    """
    result = Result()
    for first in range(0, len(targets), options.chunk):
        if options.is_done(result):
            break
        await options.step(database, operation, targets[first : first + options.chunk], result)
    return result


async def _at_most(tx: Transaction, limit: int | None, operation: Operation, targets: Sequence[Target]) -> Result:
    """Apply the operation until it has changed `limit` tasks; skipped tasks do not count."""
    if limit is None:
        return await operation(tx, targets)
    result, position = Result(), 0
    while position < len(targets) and len(result.changed) < limit:
        chunk = targets[position : position + limit - len(result.changed)]
        result.add(await operation(tx, chunk))
        position += len(chunk)
    return result
