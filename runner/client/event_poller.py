"""EventPoller: reads the events of all tasks that callers of a process follow, with shared queries."""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runner.client.event_position import EventPage, EventPosition, first_page, next_page, request_of
from runner.client.result_poller import LONGEST_REST, MOST, REST, WAIT_SECONDS
from runner.errors import DatabaseUnavailable, RunnerError, TaskNotFound
from runner.event_wait import within
from runner.model.task import LAST_ID

if TYPE_CHECKING:
    from runner.queries.task.event_facts import EventFacts, EventRequest

EVERY = 0.5
"""Seconds between two queries without news; all tasks share them."""

NEWS_REST = 0.1
"""Shortest interval between two queries after writes to a file, most of which concern other tasks."""

MOST_CHANGED = 10_000
"""Tasks of which the poller keeps the time of the last change."""


@dataclass(slots=True, eq=False)
class EventWait:
    """A caller that waits for the next events of a task.

    Args:
        position: the events that it knows; None for a caller that asks for the current state.
        kinds: the kinds of events that it wants.
        known_at: begin of the query with its last events, monotonic; 0 without one.
        since: start of the wait, monotonic.
    """

    id: int
    position: EventPosition | None
    kinds: frozenset[str]
    known_at: float
    since: float = 0.0
    future: "Future[tuple[EventPage, float]]" = field(default_factory=Future)

    def page(self, facts: "EventFacts") -> EventPage:
        """The events after its position."""
        return first_page(facts, self.kinds) if self.position is None else next_page(self.position, facts, self.kinds)

    def put(self, page: EventPage, at: float) -> None:
        """Pass a page on."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result((page, at))

    def fail(self, error: Exception) -> None:
        """Pass an error on."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(copy(error))


class EventPoller:
    """Queries the tasks whose events callers wait for.

    A caller that does something else between two events costs nothing: it has no wait then, and no queue that grows.
    All tasks share one query per pause. News, new callers, and callers who missed a change bring their tasks forward.

    Args:
        look: reads the facts about tasks.
        loop: event loop on which to query.
        on_watch: called on the loop with the task of a new wait.
    """

    def __init__(
        self,
        look: "Callable[[Sequence[EventRequest]], Awaitable[Mapping[int, EventFacts]]]",
        loop: asyncio.AbstractEventLoop,
        on_watch: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        self._look, self._loop, self._on_watch = look, loop, on_watch
        self._waits: dict[int, list[EventWait]] = defaultdict(list)
        self._due: set[int] = set()
        """Tasks to query before the next pause ends."""
        self._changed: dict[int, float] = {}
        self._written = 0.0
        """The time of the last news that named no task."""
        self._next = self._rested = 0.0
        """The time of the next query of all tasks, and the earliest time of another query; monotonic."""
        self._wakeup = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._away_since: float | None = None

    def wait(
        self, id: int, position: EventPosition | None, kinds: frozenset[str], known_at: float = 0.0
    ) -> "Future[tuple[EventPage, float]]":
        """Wait for the next events of a task, from any thread. Cancel the future to stop waiting.

        Args:
            position: the known events; None for the current state.
            kinds: the kinds of events to wait for.
            known_at: the time that came with the last page; 0 to query the task at once.

        Returns:
            The page, and a time for the next call.
        """
        wait = EventWait(int(id), position, kinds, known_at)
        self._loop.call_soon_threadsafe(self._watch, wait)
        return wait.future

    @property
    def watched(self) -> list[int]:
        """The tasks that callers wait for."""
        return [id for id, waits in self._waits.items() if any(not wait.future.done() for wait in waits)]

    def hear(self, ids: Iterable[int] | None) -> None:
        """Query tasks early, because they have changed. Call it on the loop.

        Args:
            ids: the tasks; None if any may have changed.
        """
        now = time.monotonic()
        if ids is None:
            self._written = now
            self._next = min(self._next, max(now, self._rested + NEWS_REST))
        else:
            for id in ids:
                self._note_change(id, now)
                self._due.add(id)
        self._wakeup.set()

    async def end(self, error: RunnerError) -> None:
        """Stop polling, and fail all waiting callers with an error."""
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
        self._fail([*self._waits], error)

    def _watch(self, wait: EventWait) -> None:
        wait.since = time.monotonic()
        if not self._waits:
            self._next = wait.since + EVERY
        self._waits[wait.id].append(wait)
        if wait.known_at == 0.0 or self._changed.get(wait.id, 0.0) > wait.known_at:
            self._due.add(wait.id)
            self._wakeup.set()
        elif self._written > wait.known_at:
            self._next = min(self._next, max(wait.since, self._rested + NEWS_REST))
            self._wakeup.set()
        if wait.known_at == 0.0:
            self._on_watch([wait.id])
        if self._poller is None or self._poller.done():
            self._poller = asyncio.ensure_future(self._poll())

    async def _poll(self) -> None:
        while self._prune():
            self._wakeup.clear()
            now = time.monotonic()
            if now >= self._next:
                self._next, ids = now + EVERY, [*self._waits]
            else:
                ids = [id for id in self._due if id in self._waits] if now >= self._rested else []
            if ids:
                self._due.difference_update(ids)
                for first in range(0, len(ids), MOST):
                    await self._query(ids[first : first + MOST])
                self._rested = time.monotonic() + min(LONGEST_REST, REST * (time.monotonic() - now))
            self._due.intersection_update(self._waits)
            due = min(self._next, self._rested) if self._due else self._next
            await within(self._wakeup, max(0.0, due - time.monotonic()))

    def _prune(self) -> bool:
        """Forget the waits of callers that have left; False if there is none left."""
        for id, waits in [*self._waits.items()]:
            if left := [wait for wait in waits if not wait.future.done()]:
                self._waits[id] = left
            else:
                del self._waits[id]
        return bool(self._waits)

    async def _query(self, ids: Sequence[int]) -> None:
        began = time.monotonic()
        try:
            # The database rejects an id that no column can hold, and with it the query for the others.
            facts = await self._look([self._request(id) for id in ids if 0 < id <= LAST_ID])
        except DatabaseUnavailable as error:
            now = time.monotonic()
            self._away_since = now if self._away_since is None else self._away_since
            if now - self._away_since > WAIT_SECONDS:
                self._fail(ids, error)
        except Exception as error:
            self._fail(ids, error)
        else:
            self._away_since = None
            for id in ids:
                if id in facts:
                    self._resolve(id, facts[id], began)
                else:
                    self._fail([id], TaskNotFound(id=id))

    def _request(self, id: int) -> "EventRequest":
        return request_of(id, [(wait.position, wait.kinds) for wait in self._waits[id] if wait.position is not None])

    def _resolve(self, id: int, facts: "EventFacts", began: float) -> None:
        """Pass pages on, except to callers that came after the query began: it did not read all that they need."""
        for wait in self._waits.pop(id):
            page = wait.page(facts) if wait.since <= began else None
            if page is None or not (page.events or page.ended):
                self._waits[id].append(wait)
                if page is not None:
                    wait.position = page.position
                if page is None or page.is_short:
                    self._due.add(id)
            else:
                self._note_change(id, began)
                wait.put(page, 0.0 if page.is_short else began)

    def _note_change(self, id: int, at: float) -> None:
        if len(self._changed) >= MOST_CHANGED:
            self._changed.clear()
        self._changed[id] = max(at, self._changed.get(id, at))  # a change during a query is newer than its page

    def _fail(self, ids: Sequence[int], error: Exception) -> None:
        for id in ids:
            for wait in self._waits.pop(id, ()):
                wait.fail(error)
