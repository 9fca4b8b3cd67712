"""One query at a time polls the results of all tasks that callers wait for."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from runner.errors import DatabaseUnavailable, RunnerError, TaskNotFound
from runner.event_wait import within
from runner.model.task import LAST_ID

if TYPE_CHECKING:
    from runner.queries.task.results import TaskResult

SOONEST, LATEST = 0.02, 1.0
"""Bounds of the seconds between two queries of a task."""

SHARE = 0.5
"""The interval between queries of a task, as a share of the time since the wait began."""

REST, LONGEST_REST = 4, 0.05
"""The pause after a query, as a multiple of the query's duration, and its limit in seconds."""

NEWS_SHARE = 0.02
"""The shortest interval between queries of a task after writes to its file, as a share of the time of the wait: most
writes concern other tasks."""

WAIT_SECONDS = 30.0
"""Seconds of database downtime after which the callers receive an error."""

MOST = 5_000
"""Maximum number of tasks per query."""

Ending: TypeAlias = "TaskResult | Exception | None"
"""The result of a finished task, the error of its query, or None for a live task."""


@dataclass(slots=True, eq=False)
class ResultWait:
    """A caller that waits for tasks.

    Args:
        open: the tasks that it still waits for.
        until_finished: False if the next query of each task is enough, whether or not the task has finished.
        since: start of the wait, monotonic.
        endings: the endings so far, by task id.
    """

    open: set[int]
    until_finished: bool
    since: float = 0.0
    endings: dict[int, Ending] = field(default_factory=dict)
    future: "Future[Mapping[int, Ending]]" = field(default_factory=Future)

    def put(self, id: int, ending: Ending) -> None:
        """Add an ending; the last one resolves the future."""
        self.endings[id] = ending
        self.open.discard(id)
        if not self.open and self.future.set_running_or_notify_cancel():
            self.future.set_result(self.endings)


@dataclass(slots=True)
class PolledTask:
    """A task that callers wait for.

    Args:
        since: start of the wait, monotonic.
        due: time of the next query, monotonic; infinite during a query without news.
        queried: time of the last query, monotonic; 0 before the first.
        heard: True after news during a query that may concern other tasks.
    """

    since: float
    due: float
    waits: list[ResultWait] = field(default_factory=list)
    queried: float = 0.0
    heard: bool = False

    def start_query(self) -> None:
        """Leave the time of the next query to news during this one, or to `schedule_next` after it."""
        self.due = inf

    def schedule_next(self, now: float, rest: float = 0.0) -> None:
        """Schedule the next query, unless news during the last one did; the interval grows with the wait.

        Args:
            now: the time, monotonic.
            rest: the shortest interval in seconds.
        """
        share = NEWS_SHARE if self.heard else SHARE
        self.queried, self.heard = now, False
        self.due = min(self.due, now + min(LATEST, max(SOONEST, rest, share * (now - self.since))))

    def advance(self, now: float, certain: bool) -> None:
        """Advance the next query after news.

        Args:
            certain: True if the news concern this task.
        """
        if self.due == inf and not certain:
            self.heard = True
            return
        rest = 0.0 if certain else NEWS_SHARE * (now - self.since)
        self.due = min(self.due, max(now, self.queried + rest))

    @property
    def pending(self) -> bool:
        """True while a caller waits."""
        return any(not wait.future.done() for wait in self.waits)


class ResultPoller:
    """Polls tasks while callers wait for them.

    The first query of a task starts immediately, or when the running query ends; so concurrent callers share queries.
    Only repeated queries rest. News of a change make them start earlier.

    Args:
        look: queries tasks: maps a live task to None, and omits a task that does not exist.
        loop: event loop on which to query.
        on_watch: called on the loop with the tasks of a new caller that waits until they have finished.
    """

    def __init__(
        self,
        look: "Callable[[Sequence[int]], Awaitable[Mapping[int, TaskResult | None]]]",
        loop: asyncio.AbstractEventLoop,
        on_watch: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        self._look = look
        self._loop = loop
        self._on_watch = on_watch
        self._watched: dict[int, PolledTask] = {}
        self._wakeup = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._away_since: float | None = None
        self.trouble: RunnerError | None = None
        """Error of the last query; None if it succeeded."""

    def wait(self, ids: Iterable[int], *, until_finished: bool = True) -> "Future[Mapping[int, Ending]]":
        """Query tasks immediately, from any thread. Cancel the future to stop waiting.

        Args:
            until_finished: continue until all tasks have finished; False returns None for a live task.

        Returns:
            The endings by id.
        """
        wait = ResultWait({int(id) for id in ids}, until_finished)
        if wait.open:
            self._loop.call_soon_threadsafe(self._watch, wait)
        else:
            wait.future.set_result(wait.endings)
        return wait.future

    @property
    def watched(self) -> list[int]:
        """The tasks that callers wait for."""
        return [id for id, watched in self._watched.items() if watched.pending]

    def hear(self, ids: Iterable[int] | None) -> None:
        """Query tasks early, because they may have finished. Call it on the loop.

        Args:
            ids: the tasks that have changed; None if any may have.
        """
        now = time.monotonic()
        for id in [*self._watched] if ids is None else ids:
            if (watched := self._watched.get(id)) is not None:
                watched.advance(now, certain=ids is not None)
        self._wakeup.set()

    async def end(self, error: RunnerError) -> None:
        """Stop polling, and fail all waiting callers with an error."""
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
        self._fail(list(self._watched), error)

    def _watch(self, wait: ResultWait) -> None:
        """Make the tasks of a caller due now."""
        now = wait.since = time.monotonic()
        for id in wait.open:
            watched = self._watched.setdefault(id, PolledTask(now, now))
            watched.due = now
            watched.waits.append(wait)
        self._wakeup.set()
        if wait.until_finished:
            self._on_watch([*wait.open])
        if self._poller is None or self._poller.done():
            self._poller = asyncio.ensure_future(self._poll())

    async def _poll(self) -> None:
        while self._watched:
            self._wakeup.clear()
            now = time.monotonic()
            self._watched = {id: watched for id, watched in self._watched.items() if watched.pending}
            due = [id for id, watched in self._watched.items() if watched.due <= now]
            for id in due:
                self._watched[id].start_query()
            for first in range(0, len(due), MOST):
                await self._query(due[first : first + MOST])
            now = time.monotonic()
            nearest = min((watched.due for watched in self._watched.values()), default=now)
            await within(self._wakeup, max(0.0, nearest - now))

    async def _query(self, ids: Sequence[int]) -> None:
        began = time.monotonic()
        try:
            # The database rejects an id that no column can hold, and with it the query for the others.
            endings = await self._look([id for id in ids if 0 < id <= LAST_ID])
        except DatabaseUnavailable as error:
            self._handle_downtime(ids, error)
        except Exception as error:
            self._fail(ids, error)
        else:
            self._away_since = self.trouble = None
            rest = min(LONGEST_REST, REST * (time.monotonic() - began))
            for id in ids:
                self._resolve(id, endings[id] if id in endings else TaskNotFound(id=id), began, rest)

    def _resolve(self, id: int, ending: Ending, began: float, rest: float) -> None:
        """Pass an ending on, except to callers that came after the query began: it may be out of date for them."""
        watched = self._watched[id]
        waits = [wait for wait in watched.waits if not wait.future.done()]
        ready = [wait for wait in waits if wait.since <= began and (ending is not None or not wait.until_finished)]
        watched.waits = [wait for wait in waits if wait not in ready]
        if not watched.waits:
            del self._watched[id]
        elif all(wait.since <= began for wait in watched.waits):
            watched.schedule_next(time.monotonic(), rest)
        for wait in ready:
            wait.put(id, ending)

    def _handle_downtime(self, ids: Sequence[int], error: DatabaseUnavailable) -> None:
        """Keep waiting for the database up to WAIT_SECONDS, then fail the callers."""
        now = time.monotonic()
        self.trouble = error
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since > WAIT_SECONDS:
            self._fail(ids, error)
        for id in ids:
            if (watched := self._watched.get(id)) is not None:
                watched.due = now + LATEST
                for wait in watched.waits:
                    if not wait.until_finished:
                        wait.put(id, copy(error))

    def _fail(self, ids: Sequence[int], error: Exception) -> None:
        for id in ids:
            for wait in self._watched.pop(id).waits:
                wait.put(id, copy(error))
