"""Batch: the outcomes of the tasks that a task depended on, as its handler receives them."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, Self

from runner.errors import NoRunner, WouldBlock


class ParentResults(Protocol):
    """Reads the results of the tasks that a task depended on."""

    async def read(self) -> list[Any]:
        """Return the result of each parent, or the error in its place, in the order of the dependencies."""
        ...

    def submit(self, work: Callable[[], Coroutine[Any, Any, list[Any]]]) -> Future[list[Any]]:
        """Run a coroutine function on the runner's loop, from a thread."""
        ...


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Outcomes of the tasks that a task depended on.

    Args:
        total: number of them.
        succeeded: number that succeeded.
        dead: number that are dead.
        cancelled: number that were cancelled.
        parents: reads their results; None outside a runner.
    """

    total: int
    succeeded: int
    dead: int
    cancelled: int
    parents: ParentResults | None = field(default=None, repr=False, compare=False)

    def results(self, *, return_exceptions: bool = False) -> list[Any]:
        """Read the results of these tasks, in a plain function.

        Args:
            return_exceptions: True to return errors in the place of missing results.

        Returns:
            The results in the order of the dependencies; for a callback, in the order of the batch. Each has the type
            of its handler's return annotation, or is plain JSON if the runner does not load that handler.

        Raises:
            TaskFailed: the first task without a result is dead; TaskCancelled, ResultNotKept and InvalidResult as for
                TaskHandle.result.
            TaskNotFound: it was pruned.
            NoResult: it has not finished, because an operator removed the dependency.
            WouldBlock: called on an event loop: await `results_async` there.
            NoRunner: no runner executes the task.

        Example:
            >>> @handler("shop.total")
            ... def total(ctx: Context) -> int:
            ...     return sum(ctx.batch.results()) if ctx.batch else 0
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            parents = self._require_parents()
            return _checked(parents.submit(parents.read).result(), return_exceptions)
        raise WouldBlock(call="ctx.batch.results", instead="ctx.batch.results_async")

    async def results_async(self, *, return_exceptions: bool = False) -> list[Any]:
        """Same as `results`, in an async handler."""
        return _checked(await self._require_parents().read(), return_exceptions)

    def _require_parents(self) -> ParentResults:
        if self.parents is None:
            raise NoRunner(call="ctx.batch.results()")
        return self.parents

    @property
    def failed(self) -> int:
        """Number that did not succeed, including dependencies that an operator removed before they finished."""
        return self.total - self.succeeded

    @classmethod
    def read(cls, text: str | None, parents: ParentResults | None = None) -> Self | None:
        """Read the counts of a row; None if there are none or they are not readable."""
        names = [item.name for item in fields(cls) if item.name != "parents"]
        try:
            counts = json.loads(text) if text else None
            return cls(**{name: int(counts[name]) for name in names}, parents=parents) if counts else None
        except (ValueError, KeyError, TypeError):
            return None


def _checked(values: list[Any], return_exceptions: bool) -> list[Any]:
    for value in values:
        if isinstance(value, Exception) and not return_exceptions:
            raise value
    return values
