"""bulk: apply an operation to many tasks in chunks, each chunk in its own transaction."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.filter.parse import Filter
from runner.operations.results import Result, Target
from runner.queries.rows import whole
from runner.queries.task_list.cursor import SCAN_LIMIT, Cursor
from runner.queries.task_list.scans import is_few
from runner.queries.task_list.search import find

P = ParamSpec("P")
T = TypeVar("T")

CHUNK = 500
"""The most tasks changed in one transaction."""

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
    """The default of Course.stop."""
    return False


@dataclass(frozen=True, slots=True)
class Course:
    """The options of a bulk operation.

    Args:
        chunk: the most tasks in one transaction.
        most: the most tasks to change; None for no limit.
        on_progress: called with the result so far after every chunk.
        stop: called before every chunk; True stops the operation.
    """

    chunk: int = CHUNK
    most: int | None = None
    on_progress: Callable[[Result], object] | None = None
    stop: Callable[[], bool] = never

    def over(self, so_far: Result) -> bool:
        """True if no further chunk may begin."""
        return self.stop() or (self.most is not None and len(so_far.changed) >= self.most)

    async def step(
        self, database: DatabaseAccess, operation: Operation, targets: Sequence[Target], so_far: Result
    ) -> None:
        """Process one chunk and add its result."""
        limit = None if self.most is None else self.most - len(so_far.changed)
        if targets:
            so_far.add(await database.write(_at_most, limit, operation, targets))
        if self.on_progress:
            self.on_progress(so_far)


PLAIN = Course()


@dataclass(frozen=True, slots=True)
class Matching:
    """Tasks that match a filter, with their current versions.

    Args:
        targets: the tasks.
        next: the cursor to continue from; None at the end.
    """

    targets: list[Target]
    next: Cursor | None


async def matching(
    tx: Transaction, task_filter: Filter, limit: int, after: Cursor | None = None, scan_limit: int = SCAN_LIMIT
) -> Matching:
    """Find the tasks that match a filter, newest first.

    Args:
        tx: an open transaction.
        task_filter: the filter.
        limit: the most tasks.
        after: the cursor from the previous call; None to begin.
        scan_limit: the most rows to check in each table; it can leave fewer than `limit` tasks.
    """
    page = await find(tx, task_filter, limit, after, scan_limit=scan_limit)
    versions: dict[int, int] = {}
    for table in (tx.tables.task, tx.tables.history):
        statement = sa.select(table.c.id, table.c.version).where(tx.dialect.one_of(table.c.id, page.ids))
        versions |= {row.id: whole(row.version) for row in await tx.rows(statement)}
    return Matching([Target(id, versions[id]) for id in page.ids if id in versions], page.next)


async def to_all(database: DatabaseAccess, operation: Operation, task_filter: Filter, course: Course = PLAIN) -> Result:
    """Apply an operation to all tasks that match a filter.

    The bulk goes from the newest task to the oldest, so that it skips later submits and does not meet requeued tasks
    again. A task that changes between the search and the operation is reported as a conflict.

    Args:
        database: access to the database.
        operation: the operation on a chunk.
        task_filter: the filter.
        course: the options.

    Returns:
        The combined result.
    """
    result, after = Result(), None
    limit = max(course.chunk, SORTED_CHUNK) if is_few(task_filter) else course.chunk
    while not course.over(result):
        page = await database.read(matching, task_filter, limit, after)
        for first in range(0, max(1, len(page.targets)), course.chunk):
            if not course.over(result):
                await course.step(database, operation, page.targets[first : first + course.chunk], result)
        after = page.next
        if after is None:
            break
    return result


async def to_each(
    database: DatabaseAccess, operation: Operation, targets: Sequence[Target], course: Course = PLAIN
) -> Result:
    """Apply an operation to selected tasks.

    Args:
        database: access to the database.
        operation: the operation on a chunk.
        targets: the tasks, with the versions that the operator saw.
        course: the options.

    Returns:
        The combined result.
    """
    result = Result()
    for first in range(0, len(targets), course.chunk):
        if course.over(result):
            break
        await course.step(database, operation, targets[first : first + course.chunk], result)
    return result


async def _at_most(tx: Transaction, most: int | None, operation: Operation, targets: Sequence[Target]) -> Result:
    """Apply the operation until it has changed `most` tasks; skipped tasks do not count."""
    if most is None:
        return await operation(tx, targets)
    result, position = Result(), 0
    while position < len(targets) and len(result.changed) < most:
        chunk = targets[position : position + most - len(result.changed)]
        result.add(await operation(tx, chunk))
        position += len(chunk)
    return result
