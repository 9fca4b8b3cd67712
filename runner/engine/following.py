"""Following: what waited for tasks that have ended is let go, or cancelled with them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from runner.engine.tally import Tally
from runner.errors import DatabaseAway, DatabaseRefused, StoreError
from runner.policy.polling import Pace
from runner.store.database import Database
from runner.store.dependencies import Ended, any_open, forget, resolve, strays, waiting_for
from runner.store.dependencies.resolving import Edge
from runner.store.dependencies.sweeping import NEWEST

log = logging.getLogger("runner.following")

LOOK_EVERY = 0.05
"""Seconds between two questions whether anything waits at all, while tasks end and nothing does."""

BUSY = 0.02
"""Seconds until a task is tried again that somebody else holds."""

TRIES = 5
"""How often that is tried before it is left to the next sweep: others must not wait long for it."""

SPAN = 0.05
"""Seconds for which one sweep goes on over a long list, which the next one then takes up."""


REST = 5.0
"""Seconds that sweeps rest at most, however long one took: what nobody was told of waits so long."""


class Following:
    """Tells those that wait for tasks of their ends.

    It goes on beside settling and never holds it up: what ends meanwhile is taken together the next time.

    Args:
        database: where they are.
        notify: wake other runners for what is let go (PostgreSQL).
        tally: counts what is cancelled.
        freed: called when tasks were let go that may be claimed now.
    """

    def __init__(self, database: Database, notify: bool, tally: Tally, freed: Callable[[], object]) -> None:
        self._database = database
        self._notify = notify
        self._tally = tally
        self._freed = freed
        self._ended: list[Ended] = []
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._asking = Pace(every=LOOK_EVERY)
        self._sweeping = Pace(every=0.0, most=REST)
        self._below = NEWEST

    def add(self, task: Ended) -> None:
        """Take in that a task has ended."""
        self._ended.append(task)
        self._idle.clear()
        self._some.set()

    async def run(self) -> None:
        """Tell of ends for ever."""
        while True:
            await self._some.wait()
            await asyncio.sleep(self._asking.left(time.monotonic()))
            self._some.clear()
            ended, self._ended = self._ended, []
            try:
                await self._tell(ended)
            except Exception as error:  # the sweep finds what is missed here
                if not isinstance(error, StoreError):
                    log.exception("could not tell of the end of %d tasks", len(ended))
            if not self._some.is_set():
                self._idle.set()

    async def drained(self, timeout: float) -> None:
        """Wait until nothing is left to tell, or so many seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout)

    @property
    def idle(self) -> bool:
        """True when nothing is left to tell."""
        return self._idle.is_set()

    async def sweep(self) -> None:
        """Look at what waits, and find what nobody was told of; a long list is gone over in several calls."""
        started = time.monotonic()
        if not self._sweeping.due(started):
            return
        with contextlib.suppress(DatabaseAway):  # claims and beats say so already
            await self._look(NEWEST)
            while self._below < NEWEST and time.monotonic() < started + SPAN:
                await self._look(self._below)
        self._sweeping.done(started, time.monotonic())

    async def exhausted(self) -> bool:
        """Look at all that waits; True when there was nothing to be done about any of it."""
        found = await self._look(NEWEST)
        while self._below < NEWEST:
            found += await self._look(self._below)
        return not found

    async def _tell(self, ended: Sequence[Ended]) -> None:
        started = time.monotonic()
        if not await self._database.ask(any_open):
            self._asking.done(started, time.monotonic())
            return
        patience = TRIES
        while patience and (edges := await self._database.ask(waiting_for, ended)):
            if not await self._resolve(edges):
                patience -= 1
                await asyncio.sleep(BUSY)

    async def _look(self, below: int) -> int:
        found = await self._database.ask(strays, below)
        if self._below in (below, NEWEST):
            self._below = NEWEST if found.lowest is None else found.lowest
        if found.moot:
            await self._database.write(forget, found.moot)
        return await self._resolve(found.edges)

    async def _resolve(self, edges: Sequence[Edge]) -> int:
        """Resolve edges; returns how many were not left to be tried again."""
        if not edges:
            return 0
        try:
            result = await self._database.write(resolve, edges, notify=self._notify)
        except DatabaseRefused as error:
            return await self._resolve_apart(edges, error)
        for child in result.cancelled:
            self._tally.add("cancel", child.queue, child.handler, child.attempt, None)
            self.add(child.ended)
        if result.freed:
            self._freed()
        return len(edges) - len(result.left)

    async def _resolve_apart(self, edges: Sequence[Edge], error: DatabaseRefused) -> int:
        """One task is to blame, whatever a foreign client has written into it; let the others through."""
        half = len(edges) // 2
        if half:
            return await self._resolve(edges[:half]) + await self._resolve(edges[half:])
        log.warning("task %d cannot be let go: %s", edges[0].task_id, error)
        return 0
