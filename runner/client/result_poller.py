"""One query at a time polls the results of all tasks that callers wait for."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from runner.errors import DatabaseUnavailable, RunnerError, TaskNotFound

if TYPE_CHECKING:
    from runner.queries.task.results import TaskResult

E = TypeVar("E")

SOONEST, LATEST = 0.02, 1.0
"""Bounds of the seconds between two queries of a task."""

SHARE = 0.5
"""The interval between queries of a task, as a share of the time since the wait began."""

REST = 4
"""The pause after a query, as a multiple of the query's duration."""

PATIENCE = 30.0
"""Seconds of database downtime after which the callers receive an error."""

MOST = 5_000
"""Maximum number of tasks per query."""

MOST_ID = 2**63 - 1
"""Largest id that a column can hold."""


@dataclass
class PolledTask:
    """A task that callers wait for.

    Args:
        since: start of the wait, monotonic.
        due: time of the next query, monotonic.
        waiters: futures that resolve when the task has finished.
        askers: futures that resolve with the next query, whether or not the task has finished.
    """

    since: float
    due: float
    waiters: "list[Future[TaskResult]]" = field(default_factory=list)
    askers: "list[Future[TaskResult | None]]" = field(default_factory=list)

    def schedule_next(self, now: float) -> None:
        """Schedule the next query; the interval grows with the length of the wait."""
        self.due = now + min(LATEST, max(SOONEST, SHARE * (now - self.since)))

    @property
    def pending(self) -> bool:
        """True while a future is unresolved."""
        futures: list[Future[Any]] = [*self.waiters, *self.askers]
        return any(not future.done() for future in futures)


class ResultPoller:
    """Polls tasks while callers wait for them.

    A settle notifies no client, so a task without waiting callers costs nothing.

    Args:
        look: queries tasks: maps a live task to None, and omits a task that does not exist.
        loop: event loop on which to query.
    """

    def __init__(
        self,
        look: "Callable[[Sequence[int]], Awaitable[Mapping[int, TaskResult | None]]]",
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._look = look
        self._loop = loop
        self._watched: dict[int, PolledTask] = {}
        self._wakeup = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._away_since: float | None = None
        self.trouble: RunnerError | None = None
        """Error of the last query; None if it succeeded."""

    def wait(self, id: int) -> "Future[TaskResult]":
        """Wait for a task to finish, from any thread. Cancel the future to stop waiting."""
        future: Future[TaskResult] = Future()
        self._loop.call_soon_threadsafe(lambda: self._watch_now(int(id)).waiters.append(future))
        return future

    def ask(self, id: int) -> "Future[TaskResult | None]":
        """Query a task immediately, from any thread: its ending, or None while it is live."""
        future: Future[TaskResult | None] = Future()
        self._loop.call_soon_threadsafe(lambda: self._watch_now(int(id)).askers.append(future))
        return future

    async def end(self, error: RunnerError) -> None:
        """Stop polling, and fail all waiting callers with an error."""
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
        self._fail(list(self._watched), error)

    def _watch_now(self, id: int) -> PolledTask:
        """Return the record of a task, due for a query now."""
        now = time.monotonic()
        watched = self._watched.setdefault(id, PolledTask(now, now))
        watched.due = now
        self._wakeup.set()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.ensure_future(self._poll())
        return watched

    async def _poll(self) -> None:
        while self._watched:
            self._wakeup.clear()
            began = time.monotonic()
            self._watched = {id: watched for id, watched in self._watched.items() if watched.pending}
            due = [id for id, watched in self._watched.items() if watched.due <= began]
            for first in range(0, len(due), MOST):
                await self._query(due[first : first + MOST])
            now = time.monotonic()
            await asyncio.sleep(max(SOONEST / 4, REST * (now - began)))  # lets single requests share the next query
            nearest = min((watched.due for watched in self._watched.values()), default=now)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), max(0.0, nearest - time.monotonic()))

    async def _query(self, ids: Sequence[int]) -> None:
        try:
            # The database rejects an id that no column can hold, and with it the query for the others.
            endings = await self._look([id for id in ids if 0 < id <= MOST_ID])
        except DatabaseUnavailable as error:
            self._handle_downtime(ids, error)
        except Exception as error:
            self._fail(ids, error)
        else:
            self._away_since = self.trouble = None
            for id in ids:
                self._resolve(id, endings)

    def _resolve(self, id: int, endings: "Mapping[int, TaskResult | None]") -> None:
        if id not in endings:
            self._fail([id], TaskNotFound(id=id))
            return
        watched, ending = self._watched[id], endings[id]
        for asker in watched.askers:
            _set_result(asker, ending)
        watched.askers.clear()
        if ending is None:
            watched.schedule_next(time.monotonic())
            return
        for waiter in self._watched.pop(id).waiters:
            _set_result(waiter, ending)

    def _handle_downtime(self, ids: Sequence[int], error: DatabaseUnavailable) -> None:
        """Keep waiting for the database up to PATIENCE, then fail the callers."""
        now = time.monotonic()
        self.trouble = error
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since > PATIENCE:
            self._fail(ids, error)
        for id in ids:
            if id in self._watched:
                self._watched[id].due = now + LATEST

    def _fail(self, ids: Sequence[int], error: Exception) -> None:
        for id in ids:
            watched = self._watched.pop(id)
            futures: list[Future[Any]] = [*watched.waiters, *watched.askers]
            for future in futures:
                if future.set_running_or_notify_cancel():
                    future.set_exception(copy(error))


def _set_result(future: "Future[E]", ending: E) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(ending)
