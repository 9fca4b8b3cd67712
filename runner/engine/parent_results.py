"""StoredParentResults: reads the results of the tasks that a task depended on, for its handler."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

import sqlalchemy as sa

from runner.client.results import value_of
from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import NoResult, RunnerError, TaskNotFound
from runner.queries.task.results import TaskResult, endings

MOST = 5_000
"""Maximum number of parents per query."""


class StoredParentResults:
    """The results of the parents of one task.

    Args:
        database: the database of the tasks.
        task_id: id of the dependent task.
        loop: event loop of the runner, on which queries run.
    """

    def __init__(self, database: Database, task_id: int, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._task_id = task_id
        self._loop = loop

    async def read(self) -> list[Any]:
        """Return the result of each parent, or the error in its place, in the order of the dependencies."""
        ids = await self._database.read(_parent_ids, self._task_id)
        results: dict[int, TaskResult | None] = {}
        stored = [id for id in ids if id is not None]
        for first in range(0, len(stored), MOST):
            results |= await self._database.read_single(_endings, stored[first : first + MOST])
        return [_value(id, results) for id in ids]

    def submit(self, work: Callable[[], Coroutine[Any, Any, list[Any]]]) -> Future[list[Any]]:
        """Run a coroutine function on the runner's loop, from a thread."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop)


async def _endings(tx: Transaction, ids: Sequence[int]) -> dict[int, TaskResult | None]:
    return await tx.follow(endings(tx, ids))


async def _parent_ids(tx: Transaction, task_id: int) -> list[int | None]:
    """The parents in the order of the dependencies; None for one that an operator removed before it existed."""
    dependency = tx.tables.dependency.c
    statement = (
        sa.select(dependency.parent_id)
        .where(dependency.task_id == task_id, ~dependency.in_order)
        .order_by(dependency.id)
    )
    return [row.parent_id for row in await tx.rows(statement)]


def _value(id: int | None, results: dict[int, TaskResult | None]) -> Any:
    if id is None or id not in results:
        return TaskNotFound(id="that it depended on" if id is None else id)
    result = results[id]
    try:
        return NoResult(id=id) if result is None else value_of(result)
    except RunnerError as error:
        return error
