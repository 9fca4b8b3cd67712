"""Starts: marks prefetched tasks that have started."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from runner.db.database import Database
from runner.db.halves import write_in_halves
from runner.engine.lease.lease import Lease
from runner.engine.running import Running
from runner.engine.stuck_rows import StuckRows
from runner.errors import StoreError
from runner.model.stuck_row import RowFault
from runner.store.attempts import Start, mark_started

log = logging.getLogger("runner")


QUICK = 0.1
"""Seconds that a prefetched task runs before it is marked, at most twice as many; most tasks end earlier."""


RETRY = 1.0
"""Seconds until a failed statement is retried."""


CHUNK = 500
"""Maximum number of tasks per statement."""


class Starts:
    """Marks prefetched tasks that run longer than QUICK.

    It looks at the tasks in flight once per QUICK: a record per task would cost more than its mark is worth, as most
    tasks end earlier.

    Args:
        lease: the lease of the runner, which has its id.
        running: returns the tasks that run.
    """

    def __init__(
        self,
        database: Database,
        lease: Lease,
        running: Callable[[], Iterable[Running]],
        stuck: StuckRows,
    ) -> None:
        self._database = database
        self._stuck = stuck
        self._lease = lease
        self._running = running
        self.timer: asyncio.TimerHandle | asyncio.Task[None] | None = None
        """The next look, or the marks in progress; None if no prefetched task has started since."""
        self._closed = False

    def expect(self) -> None:
        """Record that the body of a prefetched task starts."""
        if self.timer is None and not self._closed:
            self._check_in(QUICK)

    async def close(self, limit: float) -> None:
        """Mark no further tasks and wait for the current statement.

        Args:
            limit: maximum wait in seconds.
        """
        self._closed = True
        if isinstance(self.timer, asyncio.Task):
            await asyncio.wait([self.timer], timeout=limit)
        elif self.timer is not None:
            self.timer.cancel()

    def _check_in(self, seconds: float) -> None:
        self.timer = None if self._closed else asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        self.timer, before = None, time.monotonic() - QUICK
        unmarked = [each for each in self._running() if each.prefetched and each.started and not each.settled]
        resting = self._stuck.resting("start")
        batch = [running for running in unmarked if running.started <= before and running.task.id not in resting]
        if batch:
            self.timer = asyncio.ensure_future(self._mark(batch[:CHUNK], more=len(batch) > CHUNK))
        elif unmarked:
            self._check_in(QUICK)

    async def _mark(self, batch: list[Running], more: bool) -> None:
        try:
            await write_in_halves(batch, self._write, self._set_apart)
        except StoreError as error:
            log.warning("could not mark %d tasks as started: %s", len(batch), error)
            self._check_in(RETRY)
        else:
            self._check_in(0.0 if more else QUICK)

    async def _write(self, batch: Sequence[Running]) -> None:
        now = time.monotonic()
        starts = [Start(running.task.id, running.task.fence, running.started - now) for running in batch]
        await self._database.write(mark_started, self._lease.id, starts)
        for running in batch:
            running.prefetched = False  # its attempt counts from the mark
            running.task = running.task._replace(address=None)  # the row has a new address
        self._stuck.free("start", [running.task.id for running in batch])

    def _set_apart(self, running: Running, fault: RowFault) -> None:
        self._stuck.set_apart("start", running.task.id, running.task.handler, fault)
