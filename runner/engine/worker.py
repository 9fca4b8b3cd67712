"""Worker: executes claimed tasks, from the slot to the settlement."""

import asyncio
import contextvars
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from runner.db.database import Database
from runner.engine.attempt_outcome import AttemptLimits, done, failure_of
from runner.engine.attempt_reports import OPEN, BreakerReports, Starts
from runner.engine.executor import Executor
from runner.engine.handler_context import HandlerTransaction, StoredParentResults
from runner.engine.hooks import attempt_end
from runner.engine.metrics import Metrics, ResourceMeter, log_failure, log_late_end, log_unfinished
from runner.engine.notes import AttemptNotes, NotesWriter
from runner.engine.resources import RunnerResources
from runner.engine.settle_buffer import SettleBuffer, Settling
from runner.engine.slots import InFlight, Running, Slots
from runner.handlers.registry import Handler
from runner.model.outcome import INTERRUPTED, Cancelled, Outcome, Release, Retry, Snooze
from runner.model.task import MOVES, Claimed
from runner.settings import Settings
from runner.store.settle import Settled, Settlement
from runner.text.sanitize import count_noun

if TYPE_CHECKING:
    from runner.engine.process_attempt import ProcessAttempts

log = logging.getLogger("runner")
DUPLICATE_DELAY = 1.0
"""Seconds by which a task is delayed that is still in flight from an earlier claim."""

FINAL = frozenset(verb for verb, move in MOVES.items() if move.target.final)
"""The moves to a final state."""

EAGER = sys.version_info >= (3, 12)
"""True where a task's first step runs immediately: most bodies then need no turn of the event loop."""

BURST = 50
"""Eager first steps between two turns of the event loop: the next claim must not wait for all tasks of the last one."""

_START: dict[str, Any] = {"eager_start": True} if EAGER else {}

INTERRUPT = 1.0
"""Seconds that an interrupted handler has to clean up."""


class Worker:
    """Starts tasks as slots become free, executes them, and queues their outcomes.

    Args:
        settings: the settings of the runner.
        database: the database that receives the outcomes.
        may_start: True while the lease is valid; otherwise other runners may have the tasks.
        on_release: called when released tasks wait in the table again.
        on_final: called with the tasks that reached a final state.
        resources: the resources, the middleware and the hooks.
        processes: number of worker processes; 0 if no handler needs one.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        may_start: Callable[[], bool],
        on_release: Callable[[], None],
        on_final: Callable[..., None],
        resources: RunnerResources,
        processes: int = 0,
    ) -> None:
        self._settings = settings
        self._hooks, self._middleware = resources.hooks, resources.middleware
        self._database = database
        self.on_settled: Callable[[Sequence[Claimed]], None] = _ignore
        """Called with the tasks of which the outcome is written, before `on_room`; the runner sets it."""
        self.on_room: Callable[[], None] = _ignore
        """Called when a slot is free; the runner sets it."""
        self.breakers = BreakerReports(database, lambda name: self._hand_back(self.in_flight.unstarted_of(name), OPEN))
        self._on_final = on_final
        self._retry = settings.retry
        self._may_start = may_start
        self._on_release = on_release
        self._starting = self._starts_soon = False
        self._context = contextvars.copy_context()
        """The context of the runner: a task that starts when another ends must not inherit the context of that task."""
        self.metrics = Metrics()
        self.in_flight = InFlight(settings.concurrency, settings.threads, settings.prefetch, processes)
        limits = AttemptLimits.of(settings)
        self._done = partial(done, limit=limits.result)
        self.notes = NotesWriter(database, settings, lambda: self.buffer.runner_id)
        self.executor = Executor(
            settings.threads,
            limits,
            self._own_transaction,
            self._parent_results,
            resources.opened.values,
            resources.middleware,
            self.notes.begin,
            self._open_processes,
        )
        self.meter = ResourceMeter(self.executor.process_ids)
        linger = settings.settle_interval.total_seconds()
        self._starts = Starts(database, lambda: self.buffer.runner_id, self.in_flight.started)
        keep = settings.retention_succeeded != timedelta()
        self.buffer = SettleBuffer(database, settings.settle_batch_size, linger, self._settled, keep)

    def start(self, slots: Slots) -> None:
        """Start the tasks that have a slot. A body that ends immediately frees its slot inside this loop."""
        self._starting = True
        try:
            loop = asyncio.get_running_loop()
            may_start, budget = self._may_start(), BURST
            while may_start and (running := slots.next()) is not None:
                work = self._execute(running, EAGER)
                running.job = asyncio.Task(work, loop=loop, context=self._context.copy(), **_START)
                budget -= EAGER
                if not budget:
                    self._start_soon()
                # A task that may not start returns to its position: with eager first steps the loop would never end.
                may_start = not EAGER or (budget > 0 and self._may_start())
        finally:
            self._starting = False

    def start_waiting(self) -> None:
        """Start the waiting tasks of all pools, as far as slots are free."""
        self._starts_soon = False
        for slots in self.in_flight.pools:
            self.start(slots)

    def resize(self, slots: int | None, threads: int | None, processes: int | None) -> None:
        """Change the number of slots and start waiting tasks; None keeps the current number."""
        self.in_flight.resize(slots, threads, processes)
        if threads is not None:
            self.executor.resize(threads)
        self.start_waiting()

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
        from runner.engine.commands import describe_stack

        notes = running.notes if isinstance(running.notes, AttemptNotes) else self.notes.begin(running)
        running.notes = notes  # the numbers of its lines continue
        for line in await describe_stack(running):
            notes.stack_line(line)
        await self.notes.flush()

    def snooze_duplicate(self, task: Claimed, handler: Handler) -> None:
        """Return a task to the queue whose earlier claim is still in flight here, so that other runners can take it."""
        running = Running(task, handler, self.in_flight.slots_of(handler))
        self.in_flight.add_claim(task)
        self._settle(running, Snooze(DUPLICATE_DELAY, "an earlier attempt is still running in the same runner"), None)

    def hand_back(self, max_wait: float) -> None:
        """Release the tasks that have waited too long for a slot, so that other runners can take them.

        Args:
            max_wait: maximum wait in seconds.
        """
        self._hand_back(self.in_flight.unstarted(time.monotonic() - max_wait), "its runner had no free slot")

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
            running.job = asyncio.get_running_loop().create_task(self._execute(running), context=self._context.copy())
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
                job.cancel()
            _, unfinished = await asyncio.wait(unfinished, timeout=INTERRUPT)
            for job in unfinished:
                log_unfinished(jobs[job])
        return not unfinished

    def settle_abandoned(self) -> None:
        """Settle each task whose job ended without an outcome as a failed attempt, and release its slot.

        This happens only through a bug here or in a library. Without this the task would occupy its slot, and stay
        running in the table, until its runner ends.
        """
        for running in self.in_flight.abandoned():
            error = running.job_error
            log.error("task %d (%s) ended without an outcome", running.task.id, running.task.handler, exc_info=error)
            failure = INTERRUPTED if error is None else failure_of(error)
            if running.done_in_tx:
                self._finish_in_tx(running, Retry(failure=failure), time.monotonic() - running.started)
            else:
                self._settle(running, Retry(failure=failure), None)
            if not running.slot_released and running.body is None:
                self._release_slot(running)

    def _hand_back(self, unstarted: Iterable[Running], why: str) -> None:
        for running in unstarted:
            self._settle(running, Release(why), None)

    async def _execute(self, running: Running, checked: bool = False) -> None:
        if not (checked or running.cancel_requested or self._may_start()):  # it was frozen since the task got its slot
            running.slots.put_back(running)
            return
        if EAGER:
            running.job = asyncio.current_task()  # `start` receives it only after the first step, which may block
        running.started = time.monotonic()
        unwanted = running.cancel_requested or (running.task.expires_in is not None and running.expired)
        if unwanted and running.withdraw():
            before = "terminated before it started" if running.cancel_requested else ""
            outcome: Outcome = Cancelled(before) if before else Release("it expired while it waited for a slot")
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

    def _own_transaction(self, running: Running) -> HandlerTransaction:
        return HandlerTransaction(self._database, self.buffer.runner_id, running, self._done)

    def _parent_results(self, task_id: int) -> StoredParentResults:
        return StoredParentResults(self._database, task_id, asyncio.get_running_loop())

    def _open_processes(self) -> "ProcessAttempts":
        from runner.engine.process_attempt import ProcessAttempts  # most runners have no process handlers

        return ProcessAttempts(
            self._settings, self._parent_results, self._middleware, self._may_start, self.executor.limit
        )

    def _finish_in_tx(self, running: Running, outcome: Outcome, took: float) -> None:
        """Remove a task that its handler completed in its own transaction; a later failure changes nothing."""
        task = running.task
        running.settled = True
        self.in_flight.remove(running)
        self._report("succeed", [(running, Settlement(task.id, task.fence, outcome, took))], Settled())
        log_late_end(running, outcome, self.metrics.late_results)
        self.on_room()

    def _release_slot(self, running: Running) -> None:
        running.slot_released = True
        running.slots.release()
        if running.slots.waiting and not self._starting:
            self._start_soon()
        self.on_room()

    def _start_soon(self) -> None:
        """Start waiting tasks in the next turn of the event loop, together for all slots that are free by then."""
        if not self._starts_soon:
            self._starts_soon = True
            asyncio.get_running_loop().call_soon(self.start_waiting, context=self._context)

    def _settle(self, running: Running, outcome: Outcome, duration: float | None) -> None:
        task = running.task
        options = running.handler.defaults
        effect = options.breaker.effect(outcome, running.error) if options.breaker else ""
        plan = options.retry or self._retry
        running.slots.look_ahead.busy += (duration or 0.0) / running.slots.size
        noted = running.notes is not None
        self.buffer.add(running, Settlement(task.id, task.fence, outcome, duration, plan, effect, task.address, noted))
        running.settled = True  # it may be claimed again before the result of the settle arrives

    def _settled(self, batch: list[Settling], settled: Settled) -> None:
        moved = defaultdict[str | None, list[Settling]](list)
        for settling in batch:
            running, settlement = settling
            self.in_flight.remove(running)
            moved[settled.verbs.get(settlement.id) or settled.written.get(settlement.id)].append(settling)
        for verb, items in moved.items():
            try:
                self._report(verb, items, settled)
            except Exception:  # the others must have their dependents and hooks
                log.exception("outcomes of %s were written, but not reported", count_noun(len(items), "task"))
        if "release" in moved:
            self._on_release()
        self.on_room()

    def _report(self, verb: str | None, items: list[Settling], settled: Settled) -> None:
        """Report the ends of attempts with the same move; None if the runner had lost the tasks."""
        tasks = [running.task for running, _ in items]
        self.on_settled(tasks)
        for running, settlement in items:
            if settlement.effect or self.breakers.probes:
                self.breakers.add(running, verb, settlement)
        if verb is None:
            self.metrics.verbs["fenced"] += len(items)
            for task in tasks:
                log.warning("task %d (%s) was fenced out: its outcome is discarded", task.id, task.handler)
            return
        for task in tasks if settled.written else ():
            if task.id in settled.written:
                log.info(
                    "task %d (%s): %s was written before: its commit was not answered", task.id, task.handler, verb
                )
        self.metrics.count(verb, items)
        if verb in FINAL:
            self._on_final(*tasks)
        for running, settlement in items if verb != "succeed" else ():
            log_failure(running, settlement, verb)
        for running, settlement in items if self._hooks.listens(verb) else ():
            self._hooks.publish(attempt_end(running, verb, settlement.outcome, settlement.duration))


def _ignore(*_tasks: object) -> None:
    """Do nothing."""
