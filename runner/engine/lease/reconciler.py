"""Reconciler: compares the tasks in flight with the table."""

import asyncio
import logging
import time
from collections.abc import Sequence

from runner.db.database import Database
from runner.db.halves import write_in_halves
from runner.db.server_watch import answer_within
from runner.engine.claiming.claims import Claims
from runner.engine.event_log import LOST_ANSWER
from runner.engine.events import Events, StrangersReleased
from runner.engine.in_flight import InFlight
from runner.engine.running import Claim
from runner.errors import StoreError
from runner.model.outcome import Release
from runner.model.stuck_row import RowFault
from runner.policy.polling import Pace
from runner.store.heartbeat import running_tasks
from runner.store.settle import Settlement, settle
from runner.text.sanitize import count_noun, one_line

log = logging.getLogger("runner.recovery")


RELEASE_CHUNK = 500
"""Tasks released in one transaction."""


class Reconciler:
    """Releases strangers: running tasks of this runner in the database that never arrived in this process.

    A stranger comes from a claim whose result was lost: the server restarted, the connection broke, or the process ran
    out of memory while reading the rows. The runner is alive, so no rescue applies to such a task.

    It reads the running tasks after a heartbeat, while claims arrive and tasks end. One of them is a stranger only if
    the process did not have it before the statement, and no claim delivered it before the current claim ended. While an
    old snapshot of another client keeps the dead entries of the index, the statement is slow, and it reads less often.

    Args:
        in_flight: the tasks of this process.
        claims: the claims of this runner, of which the current one is awaited.
        events: receives the number of released tasks.
    """

    def __init__(self, database: Database, in_flight: InFlight, claims: Claims, events: Events) -> None:
        self._database = database
        self._in_flight = in_flight
        self._claims = claims
        self._events = events
        self._comparison: asyncio.Task[None] | None = None
        self._pace = Pace(every=0.0)

    def compare(self, runner_id: int) -> None:
        """Look for strangers and release them, in the background: the next heartbeat must not wait for a slow look."""
        if self._comparison is not None or self._pace.is_barred(time.monotonic()):
            return
        self._comparison = asyncio.ensure_future(self._compare(runner_id, self._in_flight.watch()))
        self._comparison.add_done_callback(self._done)

    async def close(self, limit: float) -> None:
        """Wait for the current comparison, then cancel it.

        Args:
            limit: maximum wait in seconds.
        """
        if self._comparison is not None:
            await asyncio.wait([self._comparison], timeout=limit)
        if self._comparison is not None:
            self._comparison.cancel()

    async def _compare(self, runner_id: int, claims: set[Claim]) -> None:
        started = time.monotonic()
        try:
            with answer_within(None):
                running = await self._database.read(running_tasks, runner_id)
        except StoreError as error:
            log.warning("could not compare the tasks in flight with the table: %s", error)
            return
        finally:
            self._pace.record(started, time.monotonic())
        if running <= claims:
            return
        await self._claims.done.wait()
        strangers = sorted(running - claims)
        for first in range(0, len(strangers), RELEASE_CHUNK):
            await self._release(runner_id, strangers[first : first + RELEASE_CHUNK])

    async def _release(self, runner_id: int, strangers: list[Claim]) -> None:
        settlements = [Settlement(task_id, fence, Release(LOST_ANSWER)) for task_id, fence in strangers]
        released = 0

        async def write(batch: Sequence[Settlement]) -> None:
            nonlocal released
            released += len((await self._database.write(settle, runner_id, batch)).verbs)

        try:
            await write_in_halves(settlements, write, self._set_apart)
        except StoreError as error:
            log.warning("could not release %s: %s", count_noun(len(strangers), "task"), error)
        if released:
            self._events.publish(StrangersReleased(released))

    @staticmethod
    def _set_apart(item: Settlement, fault: RowFault) -> None:
        """The next heartbeat finds it again."""
        log.warning("could not release task %d: %s", item.id, one_line(fault.fact))

    def _done(self, comparison: "asyncio.Task[None]") -> None:
        self._comparison = None
        self._in_flight.unwatch()
        if not comparison.cancelled() and (error := comparison.exception()) is not None:
            log.error("could not reconcile tasks with the database", exc_info=error)
