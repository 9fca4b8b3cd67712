"""Worker: executes claimed tasks, from the slot to the settlement."""

import asyncio
import contextvars
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from runner.db.database import Database
from runner.engine.events import (
    AttemptsEnded,
    BreakerReviewed,
    Events,
    InterruptIgnored,
    LimitReached,
    RoomFreed,
    TaskClaimedTwice,
    TasksClaimed,
    TasksSubmitted,
)
from runner.engine.executing.attempt_error import drop_tracebacks
from runner.engine.executing.attempt_outcome import AttemptLimits, done, failure_of
from runner.engine.executing.child_calls import ChildCalls
from runner.engine.executing.executor import Executor
from runner.engine.executing.handler_context import (
    HandlerTransaction,
    StoredParentResults,
    completing_transaction,
)
from runner.engine.executing.jobs import AttemptJob
from runner.engine.executing.notes import AttemptNotes, NotesWriter
from runner.engine.executing.outages import hung_server
from runner.engine.executing.sealing import Sealing
from runner.engine.executing.step_store import StoredSteps
from runner.engine.hosting.resources import RunnerResources
from runner.engine.in_flight import InFlight
from runner.engine.lease.lease import Lease
from runner.engine.resource_meter import ResourceMeter
from runner.engine.running import ChunkRunning, Running
from runner.engine.settling.breaker_reports import OPEN, BreakerReports
from runner.engine.settling.settle_buffer import ROW_LOCKED, SettleBuffer, Settling
from runner.engine.settling.starts import Starts
from runner.engine.slots import Slots
from runner.engine.stuck_rows import StuckRows, blocking_sessions
from runner.errors import ResourceLimitReached
from runner.handlers.keyring import Keyring
from runner.handlers.registry import BreakerRule
from runner.logs import log_exception
from runner.model.outcome import INTERRUPTED, Cancelled, Outcome, Release, Retry, Snooze
from runner.own_code import OwnCodeFault, call_own
from runner.settings import Settings
from runner.store.retention import SubmitWatch
from runner.store.settle import Settled, Settlement
from runner.text.sanitize import count_noun, one_line

if TYPE_CHECKING:
    from runner.engine.external.attempts import ExternalAttempts
    from runner.engine.external.connections import ExternalExecutors
    from runner.engine.processes.attempt import ProcessAttempts

log = logging.getLogger("runner")
DUPLICATE_DELAY = 1.0
"""Seconds by which a task is delayed that is still in flight from an earlier claim."""

EAGER = sys.version_info >= (3, 12)
"""True where a task's first step runs immediately: most bodies then need no turn of the event loop."""

BURST = 50
"""Eager first steps between two turns of the event loop: the next claim must not wait for all tasks of the last one."""

_START: dict[str, Any] = {"eager_start": True} if EAGER else {}

ROOM_FREED = RoomFreed()

NOT_WRITTEN: Mapping[int, str] = MappingProxyType({})

UNSETTLED = "task %d (%s) ended without an outcome"

LONG_COMPLETION = 1.0
"""Seconds after which a transaction of a handler that completes its task is looked up: its row may be locked."""

INTERRUPT = 1.0
"""Seconds that an interrupted handler has to clean up."""


class Worker:
    """Starts tasks as slots become free, executes them, and queues their outcomes.

    Args:
        database: the database that receives the outcomes.
        lease: the lease of the runner: while it is not valid, other runners may have the tasks.
        in_flight: the claimed tasks, and the slots.
        resources: the resources, the middleware and the hooks.
        events: receives the claimed tasks, and their ends.
        external: the external executors; None if no handler uses one.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        lease: Lease,
        in_flight: InFlight,
        resources: RunnerResources,
        stuck: StuckRows,
        events: Events,
        external: "ExternalExecutors | None" = None,
    ) -> None:
        self._settings, self._lease, self.in_flight = settings, lease, in_flight
        self._hooks, self._middleware = resources.hooks, resources.middleware
        self._database = database
        self._events = events
        self._retry = settings.retry
        self._starting = self._starts_soon = False
        self._context = contextvars.copy_context()
        """The context of the runner: a task that starts when another ends must not inherit the context of that task."""
        limits, self.keyring = AttemptLimits.of(settings), Keyring(settings)
        self._sealing = Sealing(self.keyring)
        self._done = partial(done, limit=limits.result)
        self._stuck = stuck
        self.breakers = BreakerReports(database, in_flight.probes, events)
        self.notes = NotesWriter(database, settings, lambda: lease.id, stuck, events)
        self._calls = ChildCalls(database, settings, lambda: events.publish(TasksSubmitted()))
        self.executor = Executor(
            settings.threads,
            limits,
            self._own_transaction,
            self._parent_results,
            resources.opened.values,
            resources.middleware,
            self.notes.begin,
            self._open_processes,
            steps=self._step_store,
            open_external=None if external is None else partial(self._open_external, external),
            ask_server=lambda running: hung_server(running, database),
            sealing=self._sealing,
        )
        self.meter = ResourceMeter(self.executor.process_ids)
        linger = settings.settle_interval.total_seconds()
        self._starts = Starts(database, lease, in_flight.started, stuck)
        watch = SubmitWatch() if settings.retention_succeeded == timedelta() else None
        self.buffer = SettleBuffer(database, settings.settle_batch_size, linger, self._settled, stuck, watch)
        self.buffer.on_limit = self.reach_limit
        for slots in in_flight.pools:
            slots.on_chunk = self.start_soon
            # The deadlines of its tasks count from their claim, and others rescue them one lease after that.
            slots.longest_wait = settings.lease_timeout.total_seconds() / 2
        events.subscribe(TasksClaimed, self._start_claimed)
        events.subscribe(TaskClaimedTwice, self._snooze_duplicate)
        events.subscribe(BreakerReviewed, self._hand_back_of_open)

    def reach_limit(self, error: ResourceLimitReached, outcomes: int) -> None:
        """Free threads for the database.

        Args:
            outcomes: number of outcomes that wait to be written.
        """
        self.executor.end_idle()
        self._events.publish(LimitReached(error, outcomes))

    def _start_claimed(self, event: TasksClaimed) -> None:
        if event.may_start:
            self.start(event.slots)

    def start(self, slots: Slots) -> None:
        """Start the tasks that have a slot. A body that ends immediately frees its slot inside this loop."""
        self._starting = True
        try:
            loop = asyncio.get_running_loop()
            may_start, budget = self._lease.is_valid, BURST
            while may_start and (running := slots.next()) is not None:
                work, running.context = self._execute(running, EAGER), self._context.copy()
                running.job = AttemptJob(work, loop=loop, context=running.context, **_START)
                budget -= EAGER
                if not budget:
                    self.start_soon()
                # A task that may not start returns to its position: with eager first steps the loop would never end.
                may_start = not EAGER or (budget > 0 and self._lease.is_valid)
        finally:
            self._starting = False

    def start_waiting(self) -> None:
        """Start the waiting tasks of all pools, as far as slots are free."""
        self._starts_soon = False
        for slots in self.in_flight.pools:
            self.start(slots)

    def may_start(self) -> bool:
        """True while the lease is valid: other runners may have the tasks otherwise."""
        return self._lease.is_valid

    def resize(self, slots: int | None, threads: int | None, processes: int | None) -> None:
        """Change the number of slots and start waiting tasks; None keeps the current number."""
        self.in_flight.resize(slots, threads, processes)
        if threads is not None:
            self.executor.resize(threads)
        self.start_waiting()
        self._events.publish(ROOM_FREED)

    def cancel(self, ids: Iterable[int]) -> None:
        """Cancel tasks in flight, after terminate requests or the loss of the lease."""
        for task_id in ids:
            running = self.in_flight.tasks.get(task_id)
            if running is not None and not running.cancel_requested:
                running.cancel()

    async def write_stack(self, task_id: int) -> None:
        """Write the stack of a task in flight into its log."""
        running = self.in_flight.tasks.get(task_id)
        if running is None or running.settled or running.job is None:
            return
        from runner.engine.stack import describe_stack

        notes = running.notes if isinstance(running.notes, AttemptNotes) else self.notes.begin(running)
        running.notes = notes  # the numbers of its lines continue
        for line in await describe_stack(running.chunk or running):
            notes.stack_line(line)
        await self.notes.flush()

    async def note_completions(self) -> None:
        """Record the tasks whose own transactions wait for the locks of their rows."""
        before = time.monotonic() - LONG_COMPLETION
        waiting = {each.task.id: each.task for each in self.in_flight.started() if 0 < each.completing < before}
        self._stuck.free("complete", self._stuck.tasks("complete") - waiting.keys())
        if waiting:
            for id, session in (await blocking_sessions(self._database, list(waiting))).items():
                self._stuck.set_apart("complete", id, waiting[id].handler, ROW_LOCKED, session)

    def _snooze_duplicate(self, event: TaskClaimedTwice) -> None:
        """Return a task to the queue whose earlier claim is still in flight here, so that other runners can take it."""
        earlier = self.in_flight.tasks[event.task.id]
        running = Running(event.task, earlier.handler, earlier.slots)
        self.in_flight.add_claim(event.task)
        self._settle(running, Snooze(DUPLICATE_DELAY, "an earlier attempt is still running in the same runner"), None)

    def hand_back(self, max_wait: float) -> None:
        """Release the tasks that have waited too long for a slot, so that other runners can take them.

        Args:
            max_wait: maximum wait in seconds.
        """
        self._hand_back(self.in_flight.unstarted(time.monotonic() - max_wait), "its runner had no free slot")

    def _hand_back_of_open(self, event: BreakerReviewed) -> None:
        if event.review.is_open:
            self._hand_back(self.in_flight.unstarted_of(event.handler), OPEN)

    def drop_waiting(self) -> None:
        """Release the tasks that have not started, because their runner was declared lost."""
        self._hand_back(self.in_flight.unstarted(), "its runner was declared lost before the task started")

    async def finish(self, limit: float) -> bool:
        """Release the tasks that have not started and wait for the others.

        Args:
            limit: maximum wait in seconds; then running tasks are interrupted.

        Returns:
            False if some tasks are still running.
        """
        self._hand_back(self.in_flight.unstarted(), "its runner stopped before the task started")
        for running in self.in_flight.in_processes.begun():
            loop, running.context = asyncio.get_running_loop(), self._context.copy()
            running.job = AttemptJob(self._execute(running), loop=loop, context=running.context)
        self.settle_abandoned()
        try:
            return await self._finished(limit)
        finally:
            self.settle_abandoned()
            await self._starts.close(INTERRUPT)
            await self.notes.flush()

    async def _finished(self, limit: float) -> bool:
        jobs = {running.job: running for running in self.in_flight.started() if running.job is not None}
        if not jobs:
            return True
        log.info("draining: %s running, waiting up to %.0f s", count_noun(len(jobs), "task"), limit)
        _, unfinished = await asyncio.wait(jobs, timeout=limit)
        if unfinished:
            log.warning("interrupting %s that did not end in time", count_noun(len(unfinished), "task"))
            for job in unfinished:
                jobs[job].interrupt()
            _, unfinished = await asyncio.wait(unfinished, timeout=INTERRUPT)
            for job in unfinished:
                self._events.publish(InterruptIgnored(jobs[job]))
        return not unfinished

    def settle_abandoned(self) -> None:
        """Settle each task whose job ended without an outcome as a failed attempt, and release its slot.

        This happens only through a bug here or in a library. Without this the task would occupy its slot, and stay
        running in the table, until its runner ends.
        """
        for running in self.in_flight.abandoned():
            error, place = running.job_error, (running.task.id, running.task.handler)
            if error is None:
                log.error(UNSETTLED, *place)
            else:
                log_exception(log, logging.ERROR, UNSETTLED, *place, error=error)
            failure = INTERRUPTED if error is None else failure_of(error)
            if running.done_in_tx:
                self._finish_in_tx(running, Retry(failure=failure), time.monotonic() - running.started)
            else:
                self._settle(running, Retry(failure=failure), None)
            holder = running.chunk or running
            if not holder.slot_released and holder.body is None:
                self._release_slot(holder)

    def _hand_back(self, unstarted: Iterable[Running], why: str) -> None:
        for running in unstarted:
            self._settle(running, Release(why), None)

    async def _execute(self, running: Running, checked: bool = False) -> None:
        if not (checked or running.cancel_requested or self._lease.is_valid):  # frozen since the task got its slot
            running.slots.put_back(running)
            return
        job: Any = running.job
        if EAGER:
            running.job = job = asyncio.current_task()  # `start` receives it only after the first step, which may block
        job.owner = running.task
        running.started = time.monotonic()
        if isinstance(running, ChunkRunning):
            await self._execute_chunk(running)
            return
        unwanted = _is_unwanted(running)
        if unwanted and running.withdraw():
            outcome = _unstarted_outcome(running)
            self._release_slot(running)
        else:
            if running.prefetched and self._starts.timer is None:
                self._starts.expect()
            outcome = await self.executor.execute(running, self._release_slot)
        took = time.monotonic() - running.started
        if running.done_in_tx:
            self._finish_in_tx(running, outcome, took)
        else:
            self._settle(running, outcome, took)

    async def _execute_chunk(self, chunk: ChunkRunning) -> None:
        """Call a chunk handler, and settle each of its tasks; those that must not start leave the chunk before."""
        for member in [*chunk.members]:
            member.job, member.started, member.slot_released = chunk.job, chunk.started, True
            if _is_unwanted(member):
                chunk.remove(member)
                self._settle(member, _unstarted_outcome(member), 0.0)
        if not chunk.members:
            self._release_slot(chunk)
            return
        if self._starts.timer is None:
            self._starts.expect()
        outcomes = await self.executor.execute_chunk(chunk, self._release_slot)
        took = time.monotonic() - chunk.started
        for member, outcome in outcomes:
            self._settle(member, outcome, took)

    def _own_transaction(self, running: Running) -> HandlerTransaction:
        return completing_transaction(self._database, self.buffer.runner_id, running, self._done)

    def _step_store(self, running: Running) -> StoredSteps:
        return StoredSteps(running, self.notes, self._calls)

    def _parent_results(self, running: Running) -> StoredParentResults:
        return StoredParentResults(self._database, running, asyncio.get_running_loop(), self.keyring)

    def _open_processes(self) -> "ProcessAttempts":
        from runner.engine.processes.attempt import ProcessAttempts  # most runners have no process handlers

        return ProcessAttempts(
            self._settings,
            self._parent_results,
            self._middleware,
            self.may_start,
            self.executor.limit,
            self.executor.hung_server,
            self._sealing.concerns,
        )

    def _open_external(self, executors: "ExternalExecutors") -> "ExternalAttempts":
        from runner.engine.external.attempts import ExternalAttempts  # most runners have no external executors

        executors.attempts = ExternalAttempts(
            self._settings,
            executors.find,
            executors.next_number,
            self._parent_results,
            self._middleware,
            self.executor.limit,
            self.executor.hung_server,
        )
        return executors.attempts

    def _finish_in_tx(self, running: Running, outcome: Outcome, took: float) -> None:
        """Remove a task that its handler completed in its own transaction; a later failure changes nothing."""
        task = running.task
        running.settled = True
        self.in_flight.remove(running)
        self._publish_ends("succeed", [(running, Settlement(task.id, task.fence, outcome, took))])
        self._events.publish(ROOM_FREED)

    def _release_slot(self, running: Running) -> None:
        running.slot_released = True
        running.slots.release()
        if running.slots.waiting and not self._starting:
            self.start_soon()
        self._events.publish(ROOM_FREED)

    def start_soon(self) -> None:
        """Start waiting tasks in the next turn of the event loop, together for all slots that are free by then."""
        if not self._starts_soon:
            self._starts_soon = True
            asyncio.get_running_loop().call_soon(self.start_waiting, context=self._context)

    def _settle(self, running: Running, outcome: Outcome, duration: float | None) -> None:
        task = running.task
        options = running.handler.defaults
        effect = _effect(options.breaker, outcome, running) if options.breaker else ""
        plan = options.retry or self._retry
        share = 1 if running.chunk is None else len(running.chunk.members)
        running.slots.look_ahead.busy += (duration or 0.0) / max(1, running.slots.limit) / share
        noted = running.notes is not None
        headers = task.headers if running.has_new_headers else None
        values = outcome, duration, plan, effect, task.address, noted, headers
        self.buffer.add(running, Settlement(task.id, task.fence, *values))
        running.settled = True  # it may be claimed again before the result of the settle arrives

    def _settled(self, batch: Sequence[Settling], settled: Settled) -> None:
        moved = defaultdict[str | None, list[Settling]](list)
        for settling in batch:
            running, settlement = settling
            self.in_flight.remove(running)
            moved[settled.verbs.get(settlement.id) or settled.written.get(settlement.id)].append(settling)
        for verb, attempts in moved.items():
            self._publish_ends(verb, attempts, settled.written, settled.saw_none)
        self._events.publish(ROOM_FREED)

    def _publish_ends(
        self,
        verb: str | None,
        attempts: Sequence[Settling],
        written: Mapping[int, str] = NOT_WRITTEN,
        saw_none: bool = False,
    ) -> None:
        """Publish the ends of attempts, then break their reference cycles; exceptions without a hook are released."""
        self._stuck.forget(settlement.id for _, settlement in attempts)
        self._events.publish(AttemptsEnded(verb, attempts, written, self.buffer.runner_id, saw_none))
        for running, _ in attempts:
            running.notes, running.outages, running.context = None, (), None
            if (error := running.error) is not None:
                running.error = None
                if verb is None or not self._hooks.listens(verb):
                    drop_tracebacks(error)


def _is_unwanted(running: Running) -> bool:
    return running.cancel_requested or (running.task.expires_in is not None and running.expired)


def _unstarted_outcome(running: Running) -> Outcome:
    """The outcome of a task that was terminated or expired while it waited for a slot."""
    before = "terminated before it started" if running.cancel_requested else ""
    return Cancelled(before) if before else Release("it expired while it waited for a slot")


def _effect(breaker: BreakerRule, outcome: Outcome, running: Running) -> Literal["", "counts", "opens"]:
    """The effect of an attempt on the breaker of its handler; none if an exception class of the breaker fails."""
    try:
        return call_own(breaker.effect, outcome, running.error)
    except OwnCodeFault as fault:
        text = "the breaker of %s does not count task %d: one of its exception classes %s"
        log.error(text, one_line(running.task.handler), running.task.id, one_line(str(fault)))
        return ""
