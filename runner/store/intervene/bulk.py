"""bulk: do something to many tasks, a chunk at a time, each chunk in a transaction of its own."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import sqlalchemy as sa

from runner.people.filters import Filter
from runner.store.intervene.answers import Result, Target
from runner.store.observe.bookmark import Bookmark
from runner.store.observe.found import STRETCH
from runner.store.observe.legible import whole
from runner.store.observe.search import find
from runner.store.observe.sides import is_few
from runner.store.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")

CHUNK = 500
"""Tasks that are changed in one transaction at most."""

SORTED_AT_ONCE = 5_000
"""Tasks that are found at once where finding some means to sort all: by a key, or by a kind of failure."""

Operation: TypeAlias = Callable[[Transaction, Sequence[Target]], Awaitable[Result]]
"""An intervention that lacks only its targets: `functools.partial(terminate, by=by)`."""


class Doors(Protocol):
    """The ways into a database: a Database, or whatever guards one."""

    async def read(
        self, verb: Callable[Concatenate[Transaction, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a verb of the store in a reading transaction of its own."""
        ...

    async def write(
        self, verb: Callable[Concatenate[Transaction, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a verb of the store in a writing transaction of its own."""
        ...


def go_on() -> bool:
    """Never stop."""
    return False


@dataclass(frozen=True, slots=True)
class Course:
    """How a bulk goes.

    Args:
        chunk: the most tasks in one transaction.
        most: the most tasks to change; None for any number.
        on_progress: told the result so far after every chunk.
        stop: asked before every chunk whether to stop.
    """

    chunk: int = CHUNK
    most: int | None = None
    on_progress: Callable[[Result], object] | None = None
    stop: Callable[[], bool] = go_on

    def over(self, so_far: Result) -> bool:
        """Tell whether to begin no other chunk."""
        return self.stop() or (self.most is not None and len(so_far.changed) >= self.most)

    async def step(self, doors: Doors, operation: Operation, targets: Sequence[Target], so_far: Result) -> None:
        """Do a chunk, and add what was done to what was done so far."""
        left = None if self.most is None else self.most - len(so_far.changed)
        if targets:
            so_far.add(await doors.write(_at_most, left, operation, targets))
        if self.on_progress:
            self.on_progress(so_far)


PLAIN = Course()


@dataclass(frozen=True, slots=True)
class Matching:
    """Tasks that a filter lets through, as they are now.

    Args:
        targets: with their versions.
        next: the place to go on from; None when there is nothing more.
    """

    targets: list[Target]
    next: Bookmark | None


async def matching(
    tx: Transaction, wanted: Filter, limit: int, after: Bookmark | None = None, stretch: int = STRETCH
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


async def to_all(doors: Doors, operation: Operation, wanted: Filter, course: Course = PLAIN) -> Result:
    """Do something to all tasks that a filter lets through.

    Tasks are taken from the newest to the oldest, so that what is submitted meanwhile is left alone and what is put
    back is not met again. A task that changes between being found and being changed is reported as moved on.

    Args:
        doors: to the database.
        operation: what to do to a chunk.
        wanted: the filter.
        course: how it goes.

    Returns:
        What was done to all of them.
    """
    result, after = Result(), None
    limit = max(course.chunk, SORTED_AT_ONCE) if is_few(wanted) else course.chunk
    while not course.over(result):
        found = await doors.read(matching, wanted, limit, after)
        for first in range(0, max(1, len(found.targets)), course.chunk):
            if not course.over(result):
                await course.step(doors, operation, found.targets[first : first + course.chunk], result)
        after = found.next
        if after is None:
            break
    return result


async def to_each(doors: Doors, operation: Operation, targets: Sequence[Target], course: Course = PLAIN) -> Result:
    """Do something to tasks that somebody chose.

    Args:
        doors: to the database.
        operation: what to do to a chunk.
        targets: the tasks, as they were seen.
        course: how it goes.

    Returns:
        What was done to all of them.
    """
    result = Result()
    for first in range(0, len(targets), course.chunk):
        if course.over(result):
            break
        await course.step(doors, operation, targets[first : first + course.chunk], result)
    return result


async def _at_most(tx: Transaction, most: int | None, operation: Operation, targets: Sequence[Target]) -> Result:
    """Do it until so many tasks are changed; those that cannot be changed do not count."""
    if most is None:
        return await operation(tx, targets)
    result, tried = Result(), 0
    while tried < len(targets) and len(result.changed) < most:
        part = targets[tried : tried + most - len(result.changed)]
        result.add(await operation(tx, part))
        tried += len(part)
    return result
