"""Starts: marks long-running prefetched tasks as started, in batches."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from runner.db.database import Database
from runner.engine.slots import Running
from runner.errors import StoreError
from runner.store.start import Start, mark_started

log = logging.getLogger("runner")

QUICK = 0.1
"""Seconds that a prefetched task runs before it is marked; most tasks end earlier and need no statement."""

RETRY = 1.0
"""Seconds until a failed statement is retried."""

CHUNK = 500
"""Maximum number of tasks per statement."""


class Starts:
    """Marks prefetched tasks that run longer than QUICK.

    Args:
        database: the database with the tasks.
        runner_id: returns the id of the runner.
    """

    def __init__(self, database: Database, runner_id: Callable[[], int]) -> None:
        self._database = database
        self._runner_id = runner_id
        self._unmarked: deque[Running] = deque()
        self._timer: asyncio.TimerHandle | asyncio.Task[None] | None = None

    def add(self, running: Running) -> None:
        """Record that the body of a prefetched task starts."""
        self._unmarked.append(running)
        if self._timer is None:
            self._check_in(QUICK)

    async def close(self, limit: float) -> None:
        """Mark no further tasks and wait for the current statement.

        Args:
            limit: maximum wait in seconds.
        """
        self._unmarked.clear()
        if isinstance(self._timer, asyncio.Task):
            await asyncio.wait([self._timer], timeout=limit)
        elif self._timer is not None:
            self._timer.cancel()

    def _check_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        now, batch = time.monotonic(), list[Running]()
        while self._unmarked and len(batch) < CHUNK and self._unmarked[0].started <= now - QUICK:
            running = self._unmarked.popleft()
            if not running.settled:
                batch.append(running)
        if batch:
            self._timer = asyncio.ensure_future(self._mark(batch))
        else:
            self._schedule_next()

    def _schedule_next(self) -> None:
        self._timer = None
        if self._unmarked:
            self._check_in(max(0.0, self._unmarked[0].started + QUICK - time.monotonic()))

    async def _mark(self, batch: list[Running]) -> None:
        now = time.monotonic()
        starts = [Start(running.task.id, running.task.fence, running.started - now) for running in batch]
        try:
            await self._database.write_single(mark_started, self._runner_id(), starts)
        except StoreError as error:
            log.warning("could not mark %d tasks as started: %s", len(batch), error)
            self._unmarked.extendleft(reversed(batch))
            self._check_in(RETRY)
        else:
            self._schedule_next()
