"""Recovery: periodic scans for tasks that no process runs: of lost runners, unknown to this one, or expired."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable

from runner.db.database import Database
from runner.engine.claimer import Claimer
from runner.engine.dependency_resolver import DependencyResolver
from runner.engine.heartbeat import Lease
from runner.engine.hooks import Hooks
from runner.engine.metrics import Metrics, log_rescued
from runner.engine.slots import Claim, InFlight
from runner.errors import DatabaseUnavailable, StoreError
from runner.handlers.hooks import AttemptEnd
from runner.model.outcome import Release
from runner.model.task import MOVES
from runner.policy.polling import Pace
from runner.store.dependencies.resolve import FinishedParent
from runner.store.expire import CHUNK, any_overdue, expire, unbind
from runner.store.heartbeat import HeartbeatReply
from runner.store.rescue import any_lost, rescue
from runner.store.settle import Settlement, settle
from runner.text.sanitize import count_noun, one_line

log = logging.getLogger("runner.recovery")

MAX_RESCUE_PAUSE = 2.0
"""Maximum pause between two searches for lost tasks in seconds; rescues have a deadline."""


class RescueLoop:
    """Rescues for one runner.

    Args:
        database: the database to search.
        lease: the lease of this runner, which allows rescues.
        grace: seconds after a task's deadline in which its runner may still end it.
        metrics: counts the rescues.
        resolver: receives the tasks that are dead or cancelled.
        hooks: receive the ends of the attempts.
        scan: called when rescued tasks are due.
    """

    def __init__(
        self,
        database: Database,
        lease: Lease,
        grace: float,
        metrics: Metrics,
        resolver: DependencyResolver,
        hooks: Hooks,
        scan: Callable[[], None],
    ) -> None:
        self._database = database
        self._lease = lease
        self._grace = grace
        self._metrics = metrics
        self._resolver = resolver
        self._hooks = hooks
        self._scan = scan
        self._pace = Pace(every=0.0, most=MAX_RESCUE_PAUSE)
        self.done = False
        """True unless others were lost before: a suspect that kills each new runner would prevent every rescue."""

    async def look(self) -> None:
        """Look for lost runners before the registration of this one."""
        self.done = not await self._any_lost()

    async def _any_lost(self) -> bool:
        """True if there are tasks to rescue, by this runner or another one."""
        return await self._database.read_single(any_lost, None, self._grace)

    async def run(self) -> None:
        """Rescue the tasks of lost runners."""
        started = time.monotonic()
        if not self._lease.may_rescue or not self._pace.is_due(started):
            return
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            lost = await self._database.read_single(any_lost, self._lease.rescuer, self._grace)
            self._pace.record(started, time.monotonic())
            rescued = await self._database.write(rescue, self._lease.rescuer, self._grace) if lost else {}
            # Without a result, another runner was faster, or this one has to renew its lease first: ask for any runner.
            self.done = self.done or bool(rescued) or not await self._any_lost()
            for task_id, task in rescued.items():
                self._metrics.verbs[task.verb] += 1
                if MOVES[task.verb].target.final:
                    self._resolver.add(FinishedParent(task_id, task.handler, task.key))
                log_rescued(task_id, task)
                end = (task_id, task.handler, task.queue, task.key, task.attempt, None, task.verb, None, task.text)
                self._hooks.publish(AttemptEnd(*end))
            if rescued:
                self._scan()


RELEASE_CHUNK = 500
"""Tasks released in one transaction."""

LOST_ANSWER = "the result of the claim never reached the runner"


class Reconciler:
    """Releases strangers: running tasks of this runner in the database that never arrived in this process.

    A stranger comes from a claim whose result was lost: the server restarted, the connection broke, or the process ran
    out of memory while reading the rows. The runner is alive, so no rescue applies to such a task.

    A heartbeat reads the running tasks while claims arrive and tasks end. A task in its reply is a stranger only if the
    process did not have it before the statement, and no claim delivered it before the current claim ended.

    Args:
        database: the database with the tasks.
        in_flight: the tasks of this process.
        claimer: the claimer whose current claim is awaited.
        on_release: called after tasks were released.
    """

    def __init__(
        self, database: Database, in_flight: InFlight, claimer: Claimer, on_release: Callable[[], object]
    ) -> None:
        self._database = database
        self._in_flight = in_flight
        self._claimer = claimer
        self._on_release = on_release
        self._known_claims: set[Claim] | None = None
        """The claims since the last `begin`; None if it came during a comparison, so that no reply can be judged."""
        self._comparison: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Record the claims of this process. Call it before the heartbeat."""
        self._known_claims = self._in_flight.watch() if self._comparison is None else None

    def compare(self, runner_id: int, reply: HeartbeatReply) -> None:
        """Release the strangers in a reply, in the background; comparisons never overlap.

        A reply is ignored if its heartbeat began during a comparison, which has ended since: the process may have
        claimed and settled tasks in between that no set contains.

        Args:
            runner_id: id of the runner.
            reply: reply of the heartbeat after `begin`.
        """
        claims = self._known_claims
        if self._comparison is not None or claims is None:
            return
        if reply.running <= claims:
            self._in_flight.unwatch()
            return
        self._comparison = asyncio.ensure_future(self._compare(runner_id, reply.running, claims))
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

    async def _compare(self, runner_id: int, running: frozenset[Claim], claims: set[Claim]) -> None:
        await self._claimer.claim_done()
        strangers = sorted(running - claims)
        for first in range(0, len(strangers), RELEASE_CHUNK):
            await self._release(runner_id, strangers[first : first + RELEASE_CHUNK])

    async def _release(self, runner_id: int, strangers: list[Claim]) -> None:
        settlements = [Settlement(task_id, fence, Release(LOST_ANSWER)) for task_id, fence in strangers]
        try:
            settled = await self._database.write(settle, runner_id, settlements)
        except StoreError as error:
            log.warning("could not release %s: %s", count_noun(len(strangers), "task"), error)
            return
        if settled.verbs:
            log.warning("released %s: %s", count_noun(len(settled.verbs), "task"), LOST_ANSWER)
            self._on_release()

    def _done(self, comparison: "asyncio.Task[None]") -> None:
        self._comparison = self._known_claims = None
        self._in_flight.unwatch()
        if not comparison.cancelled() and (error := comparison.exception()) is not None:
            log.error("could not reconcile tasks with the database", exc_info=error)


MAX_PAUSE = 5.0
"""Maximum pause between two checks in seconds. No claim takes an expired task, so a late check only shows it longer."""


class Expiry:
    """Cancels expired tasks, and unbinds tasks from their hosts. Several runners may do this at the same time.

    Args:
        database: the database with the tasks.
        metrics: counts the cancelled tasks.
        on_final: called with each cancelled task.
        stopping: returns True when the runner is stopping.
        scan_soon: starts a scan.
    """

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        on_final: Callable[[FinishedParent], None],
        stopping: Callable[[], bool],
        scan_soon: Callable[[], None],
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._on_final = on_final
        self._stopping = stopping
        self._scan_soon = scan_soon
        self._pace = Pace(every=0.0, most=MAX_PAUSE)

    async def run(self) -> None:
        """Cancel all expired tasks, and unbind tasks whose time on their hosts is over, in small transactions."""
        started = time.monotonic()
        if not self._pace.is_due(started):
            return
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            overdue = await self._database.read_single(any_overdue)
            while overdue.expired and not self._stopping() and await self._expire() == CHUNK:
                pass
            while overdue.unbound and not self._stopping() and await self._unbind() == CHUNK:
                pass
        self._pace.record(started, time.monotonic())

    async def _unbind(self) -> int:
        tasks = await self._database.write(unbind)
        if tasks:
            log.info("any host may take %s that waited for theirs", count_noun(tasks, "task"))
            self._scan_soon()
        return tasks

    async def _expire(self) -> int:
        tasks = await self._database.write(expire)
        for task in tasks:
            self._metrics.verbs["cancel"] += 1
            self._on_final(task.as_parent)
        for handler, number in Counter(task.handler for task in tasks).items():
            log.warning("%s of %s expired without a start", count_noun(number, "task"), one_line(handler))
        return len(tasks)
