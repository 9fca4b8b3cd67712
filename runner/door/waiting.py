"""Waiting: any number of callers wait for tasks to end, and one look at the database serves them all."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from runner.errors import DatabaseAway, RunnerError, TaskNotFound

if TYPE_CHECKING:
    from runner.store.observe.endings import Ending

E = TypeVar("E")

SOONEST, LATEST = 0.02, 1.0
"""Seconds between two looks at a task that somebody waits for."""

SHARE = 0.5
"""Of the time that a task has been waited for: so long until the next look at it."""

REST = 4
"""A look that took t is followed by at least so many t without one."""

PATIENCE = 30.0
"""Seconds for which the database may be away before those who wait are told."""

MOST = 5_000
"""Tasks of one look."""

MOST_ID = 2**63 - 1
"""What a column for ids can hold."""


@dataclass
class Watched:
    """A task that is waited for.

    Args:
        since: when that began.
        due: when to look at it next.
        waiters: who waits.
        askers: who wants to know what the next look finds, whatever that is.
    """

    since: float
    due: float
    waiters: "list[Future[Ending]]" = field(default_factory=list)
    askers: "list[Future[Ending | None]]" = field(default_factory=list)

    def looked(self, now: float) -> None:
        """Put off the next look: the longer it takes already, the more seldom."""
        self.due = now + min(LATEST, max(SOONEST, SHARE * (now - self.since)))

    @property
    def wanted(self) -> bool:
        """True while somebody still waits or asks."""
        futures: list[Future[Any]] = [*self.waiters, *self.askers]
        return any(not future.done() for future in futures)


class Waiting:
    """Looks after the tasks that are waited for, as long as there are any.

    No settle has to tell anybody, so tasks that nobody waits for cost nothing.

    Args:
        look: finds out what has become of tasks: None for one that lives, nothing for one that there is not.
        loop: on which it does so.
    """

    def __init__(
        self,
        look: "Callable[[Sequence[int]], Awaitable[Mapping[int, Ending | None]]]",
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._look = look
        self._loop = loop
        self._watched: dict[int, Watched] = {}
        self._some = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._away_since: float | None = None
        self.trouble: RunnerError | None = None
        """Why the last look failed; None when it did not."""

    def wait(self, id: int) -> "Future[Ending]":
        """Wait for a task to end, from any thread; whoever wants to no more cancels the future."""
        told: Future[Ending] = Future()
        self._loop.call_soon_threadsafe(lambda: self._due(int(id)).waiters.append(told))
        return told

    def ask(self, id: int) -> "Future[Ending | None]":
        """Look at once, from any thread: how the task has ended, or None while it lives."""
        told: Future[Ending | None] = Future()
        self._loop.call_soon_threadsafe(lambda: self._due(int(id)).askers.append(told))
        return told

    async def end(self, error: RunnerError) -> None:
        """Look no more, and tell all who wait why."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        self._fail(list(self._watched), error)

    def _due(self, id: int) -> Watched:
        """A task, to be looked at next."""
        now = time.monotonic()
        watched = self._watched.setdefault(id, Watched(now, now))
        watched.due = now
        self._some.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._watch())
        return watched

    async def _watch(self) -> None:
        while self._watched:
            self._some.clear()
            began = time.monotonic()
            self._watched = {id: watched for id, watched in self._watched.items() if watched.wanted}
            due = [id for id, watched in self._watched.items() if watched.due <= began]
            for first in range(0, len(due), MOST):
                await self._tell(due[first : first + MOST])
            now = time.monotonic()
            await asyncio.sleep(max(SOONEST / 4, REST * (now - began)))  # company for what comes one by one
            nearest = min((watched.due for watched in self._watched.values()), default=now)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._some.wait(), max(0.0, nearest - time.monotonic()))

    async def _tell(self, ids: Sequence[int]) -> None:
        try:
            # The database would refuse a number that no column can hold, and with it the look for all the others.
            found = await self._look([id for id in ids if 0 < id <= MOST_ID])
        except DatabaseAway as error:
            self._bear(ids, error)
        except Exception as error:
            self._fail(ids, error)
        else:
            self._away_since = self.trouble = None
            for id in ids:
                self._answer(id, found)

    def _answer(self, id: int, found: "Mapping[int, Ending | None]") -> None:
        if id not in found:
            self._fail([id], TaskNotFound(id=id))
            return
        watched, ending = self._watched[id], found[id]
        for asker in watched.askers:
            _tell(asker, ending)
        watched.askers.clear()
        if ending is None:
            watched.looked(time.monotonic())
            return
        for waiter in self._watched.pop(id).waiters:
            _tell(waiter, ending)

    def _bear(self, ids: Sequence[int], error: DatabaseAway) -> None:
        """Wait for the database as well, for some time."""
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


def _tell(future: "Future[E]", ending: E) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(ending)
