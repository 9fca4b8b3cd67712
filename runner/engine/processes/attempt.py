"""Process attempts: run the handler of a task in a worker process, and kill the process when the attempt has to end.

A worker that begins a task receives the next one, so that it does not wait for its runner between two short tasks. The
runner can take an offered task back until the worker starts it: a kill, a stop or a breaker concerns running tasks
alone.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from runner.engine.executing.attempt_outcome import (
    AttemptLimits,
    handed_back,
    interrupted,
    timed_out,
)
from runner.engine.executing.deadlines import Deadlines
from runner.engine.executing.jobs import AttemptJob, end
from runner.engine.hosting.hooks import Middleware
from runner.engine.processes.inbox import AttemptInbox, state_text
from runner.engine.processes.messages import ProcessCall, ProcessNotStarted
from runner.engine.processes.middleware import run_in_middleware
from runner.engine.processes.pool import END_TIMEOUT, ProcessPool, WorkerProcess
from runner.engine.running import ChunkRunning, Running, SlotPool
from runner.engine.slots import ProcessSlots
from runner.errors import StoreError
from runner.handlers.context import Context
from runner.handlers.dependencies import ParentResults
from runner.model.outcome import Cancelled, Dead, Outcome, Retry
from runner.resource_limits import reached_limit
from runner.settings import Settings

GRACE = 0.5
"""Seconds for a handler to clean up after its timeout, a terminate request or an interruption, before it is killed."""

START_TIMEOUT = 60.0
"""Seconds for the start of a process and the import of the handler's module."""

OFFER_TIME = 1.0
"""Seconds for which a worker may start an offered task: a stopped runner may lose its lease."""


class ProcessAttempts:
    """Runs attempts in the worker processes of a runner.

    Args:
        parents: returns the reader of `ctx.batch.results()`.
        middleware: runs around each handler, in the process of the runner.
        may_start: True while the lease of the runner is valid.
        limit_of: returns the seconds allowed for an attempt; None for no limit.
        hung_server: returns the outage of a server that hangs while a task waits for it; None if it answers.
        is_sealed: True if the payload of a task is opened when it has a slot.
    """

    def __init__(
        self,
        settings: Settings,
        parents: Callable[[Running], ParentResults] | None,
        middleware: Middleware,
        may_start: Callable[[], bool],
        limit_of: Callable[[Running], float | None],
        hung_server: Callable[[Running], Awaitable[StoreError | None]],
        is_sealed: Callable[[Running], bool],
    ) -> None:
        self.pool = ProcessPool(settings)
        """The worker processes."""
        self.deadlines = Deadlines()
        """The deadlines of the starts and of the handlers."""
        self.parents, self.limit_of = parents, limit_of
        self._limits = AttemptLimits.of(settings)
        self._middleware, self._may_start, self._hung_server = middleware, may_start, hung_server
        self._is_sealed = is_sealed

    async def execute(self, running: Running, context: Callable[[], Context]) -> Outcome:
        """Run a task's handler; `context` is for the middleware. When it returns, the process is idle or dead."""
        attempt = running.offer if isinstance(running.offer, _Attempt) else _Attempt(self, running)
        running.offer, stopped, running.job = None, False, running.job or asyncio.current_task()
        body: asyncio.Future[Outcome] = attempt.inbox.ending
        if isinstance(running.slots, ProcessSlots):
            running.slots.on_waiting = self._offer
        if running.around or not attempt.assign():
            body = job = AttemptJob(
                run_in_middleware(self._middleware, running, context, attempt.run, self._limits),
                loop=asyncio.get_running_loop(),
            )
            job.owner = running.task
        attempt.open()
        if isinstance(running, ChunkRunning):
            running.on_cancelled = attempt.stop_part
        if running.cancel_requested and running.job is not None:  # the process has started it before its slot was free
            end(running.job)
        try:
            if await attempt.asked_to_end(body):
                outcome, stopped = await self._stopped(running, attempt, body)
        finally:
            attempt.unwatch()
            if not body.done():
                attempt.kill()
        if body.done():
            outcome = outcome if stopped and attempt.inbox.crashed else body.result()
        else:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([body], timeout=END_TIMEOUT if running.process is not None else 0)
            body.cancel()  # of a middleware that goes on, or of a task that never started
        await attempt.leave()
        if attempt.inbox.outage is None or not isinstance(outcome, (Retry, Dead)):
            return outcome
        return handed_back(running, TimeoutError(), attempt.inbox.outage, self._limits.interruptions)

    async def _stopped(
        self, running: Running, attempt: "_Attempt", body: "asyncio.Future[Outcome]"
    ) -> tuple[Outcome, bool]:
        """Return the outcome of an attempt that has to end, and False if its deadline is the reason."""
        late = attempt.unwatch()
        if running.cancel_requested or running.interrupted:
            outcome = Cancelled() if running.cancel_requested else interrupted(running, self._limits.interruptions)
            await attempt.stop(body)
            return outcome, True
        if late and attempt.has_begun:
            attempt.inbox.outage = await self._hung_server(running) or attempt.inbox.outage
            return timed_out(running, attempt.limit, self._limits.rules), False
        attempt.kill()
        return attempt.not_started(f"its process did not start within {START_TIMEOUT:.0f} s"), False

    def call(self, running: Running, number: int, offered_until: float | None) -> ProcessCall:
        """Return a task as a worker receives it."""
        handler = running.handler
        limits = self.limit_of(running), self._limits.interruptions, handler.defaults.memory_limit
        parts = tuple((part.task, state_text(part)) for part in running.parts()) if running.is_chunk else ()
        module = handler.function.__module__
        return ProcessCall(number, offered_until, running.task, module, state_text(running), *limits, parts)

    def offer_next(self, worker: WorkerProcess, slots: SlotPool) -> None:
        """Send the first waiting task to a worker that has begun another one."""
        if worker.offered is not None or worker.on_last_task or not isinstance(slots, ProcessSlots):
            return
        running = next((running for running in slots.waiting if running.offer is None), None)
        if running is None or slots.in_use > slots.size or not (self._is_plain(running) and self._may_start()):
            return
        running.offer = attempt = _Attempt(self, running)
        attempt.offer(worker, slots.offered)

    def _is_plain(self, running: Running) -> bool:
        """True if a task needs nothing from the runner at its start: middleware, a checkpoint, a key, or its expiry."""
        task, stateless = running.task, running.task.fence == 1 or not running.handler.context
        is_simple = task.payload is not None and task.expires_in is None and not running.cancel_requested
        is_single = stateless and not running.is_chunk
        return is_simple and is_single and not self._middleware.callbacks and not self._is_sealed(running)

    def _offer(self, slots: ProcessSlots) -> None:
        for worker in self.pool.busy:
            self.offer_next(worker, slots)


class _Attempt:
    """One attempt in a worker process."""

    def __init__(self, attempts: ProcessAttempts, running: Running) -> None:
        self._attempts, self._running = attempts, running
        self.inbox = AttemptInbox(running, attempts.parents, self._reply)
        self.limit = attempts.limit_of(running)
        """Seconds allowed for the handler: the import of its module does not count."""
        self._kill_after = None if self.limit is None else self.limit + GRACE
        self.call: ProcessCall
        self.has_begun = False
        self._worker: WorkerProcess | None = None
        self._offered: list[Running] = []
        self._open = self._finished = self._late = False
        """True from its slot on, after a decision about its end, and after its deadline."""
        self._watched: float | None = None
        """The timeout of which the deadline is watched."""
        self._new_process: asyncio.Task[Outcome] | None = None

    @property
    def is_next(self) -> bool:
        """True if the task before it has ended."""
        return self._worker is not None and self._worker.current in (None, self)

    def offer(self, worker: WorkerProcess, offered: list[Running]) -> None:
        """Send it to a worker that executes another task, and add it to the offered ones."""
        offered.append(self._running)
        self._worker, self._offered, until = worker, offered, time.monotonic() + OFFER_TIME
        self.call = self._attempts.call(self._running, next(self._attempts.pool.numbers), until)
        worker.offer(self)

    def withdraw(self) -> bool:
        """Take it back from the worker that it was offered to; False if its handler has started."""
        return self._worker is None or (self._worker.offered is self and self._worker.withdraw())

    def withdrawn(self) -> None:
        """Record that the worker will not start it."""
        self._worker = self._running.process = None
        if self._running.offer is self:
            self._running.offer = None
            if self._running in self._offered:
                self._offered.remove(self._running)
        elif self._open and not self._finished and not self.assign():
            self._new_process = asyncio.ensure_future(self.run())

    def assign(self) -> bool:
        """Find a worker; return False if a new one is necessary."""
        worker = self._worker
        if worker is not None and (self.has_begun or worker.current is None or not self.withdraw()):
            self._running.process = worker
            return True
        if (idle := self._attempts.pool.idle()) is not None:
            self._start(idle)
        return idle is not None

    def open(self) -> None:
        """Begin to execute its messages: it has a slot."""
        self._open = True
        if self.has_begun:
            self._watch(self._kill_after)
        self.inbox.open()

    async def run(self) -> Outcome:
        """Run the handler, in a new worker if none is idle."""
        if not self.assign():
            try:
                self._start(await self._attempts.pool.start())
            except (OSError, RuntimeError, MemoryError) as error:
                return self.not_started(f"its process could not start: {reached_limit(error) or error}")
        return await self.inbox.ending

    async def asked_to_end(self, body: "asyncio.Future[Outcome]") -> bool:
        """Wait for the end of the handler; return True if its deadline passes, or the runner asks it to end, before.

        Nothing else can end a process, so any other cancellation of its asyncio task is ignored.
        """
        running = self._running
        while not body.done():
            try:
                await asyncio.wait([body])
            except asyncio.CancelledError:
                late = running.job is not None and self._attempts.deadlines.has_expired(running.job)
                if late or running.cancel_requested or running.interrupted:
                    return True
        return False

    async def stop(self, body: "asyncio.Future[Outcome]") -> None:
        """Ask the handler to end, and wait a little."""
        if self.has_begun and self._worker is not None:
            self._worker.send("stop", self.call.number, self._running.cancel_requested)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([body], timeout=GRACE)

    def stop_part(self, position: int) -> None:
        """Set `ctx.stop` of one task of a chunk."""
        if self.has_begun and self._worker is not None:
            self._worker.send("stop part", self.call.number, position)

    def kill(self) -> None:
        """Kill the process, unless it has ended this task and begun another one."""
        self._finished, worker = True, self._worker
        runs = worker is not None and worker.current is self and (worker.offered is None or worker.withdraw())
        if worker is not None and (runs or (worker.offered is self and not worker.withdraw())):
            worker.kill()

    async def leave(self) -> None:
        """Wait for the end of a worker that cannot take another task."""
        worker, self._running.process = self._worker, None
        self.inbox.close()
        if self._new_process is not None:
            self._new_process.cancel()
        if worker is not None and not worker.alive:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self._attempts.pool.retire(worker)], timeout=END_TIMEOUT)

    def unwatch(self) -> bool:
        """Forget the deadline; return True if it has passed."""
        limit, self._watched = self._watched, None
        if limit is not None and (job := self._running.job) and self._attempts.deadlines.end(job, limit):
            self._late = True
            job.uncancel()
        return self._late

    def not_started(self, reason: str) -> Outcome:
        """Return the outcome of an attempt whose process could not start."""
        self.inbox.end(ProcessNotStarted(reason))
        return self.inbox.ending.result()

    def began(self, worker: WorkerProcess) -> None:
        """Record that the handler is loaded and starts."""
        self.has_begun = True
        if self._open and not self._finished:
            self._watch(self._kill_after)
        self._attempts.offer_next(worker, self._running.slots)

    def receive(self, kind: str, values: list[Any]) -> None:
        """Take a message of the handler."""
        self.inbox.receive(kind, values)

    def fail(self, error: Exception) -> None:
        """End the attempt: its process crashed or could not start it."""
        self.receive("fail", [error])

    def _start(self, worker: WorkerProcess) -> None:
        self._worker = self._running.process = worker
        self.call = self._attempts.call(self._running, next(self._attempts.pool.numbers), None)
        self._watch(START_TIMEOUT)
        worker.start(self)

    def _watch(self, limit: float | None) -> None:
        """Cancel the attempt after a time in seconds; None for never."""
        self.unwatch()
        self._watched, job = limit, self._running.job
        if limit is not None and job is not None:
            self._attempts.deadlines.watch(job, limit)

    def _reply(self, number: int, value: Any, error: BaseException | None) -> None:
        if self._worker is not None:
            self._worker.send("reply", number, value, error)
