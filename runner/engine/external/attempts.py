"""External attempts: run the handler of a task in a worker of an external executor."""

import asyncio
import contextlib
import pickle
import time
from collections.abc import Awaitable, Callable
from typing import Any

from runner.engine.executing.attempt_outcome import AttemptLimits, handed_back, interrupted, timed_out
from runner.engine.executing.jobs import AttemptJob
from runner.engine.external.call import CallLimits, ExternalCall
from runner.engine.external.executor import ExecutorLost, ExternalExecutor, StartedCall, WorkerLost, WorkerMessage
from runner.engine.hosting.hooks import Middleware
from runner.engine.processes.inbox import AttemptInbox, state_text
from runner.engine.processes.messages import ProcessCall, ProcessNotStarted, read_message
from runner.engine.processes.middleware import run_in_middleware
from runner.engine.running import Running
from runner.engine.slots import ExternalSlots
from runner.errors import StoreError
from runner.handlers.context import Context
from runner.handlers.dependencies import ParentResults
from runner.handlers.registry import REGISTRY
from runner.model.outcome import Cancelled, Failure, Outage, Outcome
from runner.settings import Settings

GRACE = 0.5
"""Seconds for a handler to clean up after its timeout, or when its runner stops."""

LATE_MESSAGES = 5.0
"""Seconds for messages that the end of their call has overtaken."""

TERMINATE_GRACE = 5.0
"""Seconds for a handler to end after a terminate request, which travels through the engine."""


class ExternalAttempts:
    """Runs attempts in the workers of external executors.

    Args:
        find: returns the executor of a name; None without a connection.
        next_number: returns a number for a call that no other call has.
        parents: returns the reader of `ctx.batch.results()`.
        middleware: runs around each handler, in the process of the runner.
        limit_of: returns the seconds allowed for an attempt; None for no limit.
        hung_server: returns the outage of a server that hangs while a task waits for it; None if it answers.
    """

    def __init__(
        self,
        settings: Settings,
        find: Callable[[str], ExternalExecutor | None],
        next_number: Callable[[], int],
        parents: Callable[[Running], ParentResults] | None,
        middleware: Middleware,
        limit_of: Callable[[Running], float | None],
        hung_server: Callable[[Running], Awaitable[StoreError | None]],
    ) -> None:
        self.limits, self._call_limits = AttemptLimits.of(settings), CallLimits.of(settings)
        self.parents, self.limit_of = parents, limit_of
        self._find, self._next_number = find, next_number
        self._middleware, self._hung_server = middleware, hung_server
        self._attempts: dict[str, set[ExternalAttempt]] = {}

    async def execute(
        self, running: Running, context: Callable[[], Context], release_slot: Callable[[Running], None]
    ) -> Outcome:
        """Run a task's handler; `context` is for the middleware.

        Args:
            release_slot: called when the engine has ended the call, which can be after the outcome.
        """
        attempt = ExternalAttempt(self, running, release_slot)
        body: asyncio.Future[Outcome]
        if running.around:
            body = job = AttemptJob(
                run_in_middleware(self._middleware, running, context, attempt.run, self.limits),
                loop=asyncio.get_running_loop(),
            )
            job.owner = running.task
        else:
            body = attempt.start()
        if await attempt.ended(body):
            ended: Outcome = body.result()
            return ended
        outcome = await self._end(running, attempt, body)
        if body.done() and not attempt.crashed:  # the result of a handler that was asked to end decides
            outcome = body.result()
        body.cancel()
        return outcome

    async def _end(self, running: Running, attempt: "ExternalAttempt", body: "asyncio.Future[Outcome]") -> Outcome:
        """Return the outcome of an attempt that has to end."""
        if running.cancel_requested or running.interrupted:
            outcome = Cancelled() if running.cancel_requested else interrupted(running, self.limits.interruptions)
            await attempt.stop(body)
            return outcome
        outage = await self._hung_server(running)
        attempt.kill()
        if outage is not None:
            return handed_back(running, TimeoutError(), outage, self.limits.interruptions)
        return timed_out(running, attempt.limit, self.limits.rules)

    def begin(self, attempt: "ExternalAttempt") -> ExternalExecutor | None:
        """Return the executor of an attempt that begins."""
        name = attempt.executor_name
        self._attempts.setdefault(name, set()).add(attempt)
        return self._find(name)

    def forget(self, attempt: "ExternalAttempt") -> None:
        """Forget an attempt whose call has ended."""
        self._attempts[attempt.executor_name].discard(attempt)

    def lose(self, name: str, why: str) -> None:
        """Hand back the attempts of an executor whose cluster is gone."""
        for attempt in list(self._attempts.get(name, ())):
            attempt.end(ExecutorLost(why))

    def call(self, running: Running, limit: float | None) -> ExternalCall:
        """Return the call of an attempt."""
        module, most = running.handler.function.__module__, self.limits.interruptions
        call = ProcessCall(self._next_number(), None, running.task, module, state_text(running), limit, most, None)
        return ExternalCall.of(call, self._call_limits, REGISTRY.prepare)


class ExternalAttempt:
    """One attempt in a worker of an external executor."""

    def __init__(self, attempts: ExternalAttempts, running: Running, release_slot: Callable[[Running], None]) -> None:
        self._attempts, self._running, self._release_slot = attempts, running, release_slot
        self._loop = asyncio.get_running_loop()
        self._inbox = AttemptInbox(running, attempts.parents, self._reply)
        self.executor_name = running.handler.external or ""
        self.limit = attempts.limit_of(running)
        """Seconds allowed for the handler: its wait in the engine does not count."""
        self._call: StartedCall | None = None
        self._begun_at: float | None = None
        """The start of the handler in monotonic seconds."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False
        self._woken: asyncio.Future[None] | None = None
        """Receives the end of the handler, or its deadline."""
        self._occupies = True
        self._received = 0
        self._last: WorkerMessage = b""
        """The number of its messages, and its end if that has overtaken one of them."""

    async def run(self) -> Outcome:
        """Start the handler and wait for its end."""
        return await self.start()

    def start(self) -> "asyncio.Future[Outcome]":
        """Start the handler; the future receives its outcome."""
        executor = self._attempts.begin(self)
        self._inbox.open()
        if executor is None:
            self.end(ExecutorLost("it is not connected"))
        else:
            try:
                call = self._attempts.call(self._running, self.limit)
                ways = (self._receive, self.end) if executor.calls_on_loop else (self._receive_later, self._end_later)
                self._call = executor.start(call, *ways)
            except Exception as error:
                self.end(ExecutorLost(f"{type(error).__name__}: {error}"))
        return self._inbox.ending

    async def ended(self, body: "asyncio.Future[Outcome]") -> bool:
        """Wait for the end of the handler; False if its deadline passes, or the runner asks it to end, before.

        Nothing else can end it, so any other cancellation of its asyncio task is ignored.
        """
        running = self._running
        body.add_done_callback(self._wake)
        try:
            while not (body.done() or self._is_late):
                self._woken = self._loop.create_future()
                try:
                    await self._woken
                except asyncio.CancelledError:
                    if running.cancel_requested or running.interrupted:
                        return False
            return body.done()
        finally:
            body.remove_done_callback(self._wake)
            if self._timer is not None:
                self._timer.cancel()

    def _wake(self, _: object = None) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _begin(self, ago: float = 0.0, *, has_ended: bool = False) -> None:
        """Note that the handler started some seconds ago: its time limit began."""
        if self._begun_at is None:
            self._begun_at = time.monotonic() - ago
            if self.limit is not None and not has_ended:
                self._running.deadline = self._begun_at + self.limit + GRACE
                self._timer = self._loop.call_later(self.limit + GRACE - ago, self._expire)

    def _expire(self) -> None:
        self._is_late = True
        self._wake()

    @property
    def crashed(self) -> bool:
        """True if its worker ended before the handler."""
        return self._inbox.crashed

    async def stop(self, body: "asyncio.Future[Outcome]") -> None:
        """Ask the handler to end, wait a little, and give it up."""
        if self._call is not None:
            self._call.send(pickle.dumps(("stop", self._running.cancel_requested)))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([body], timeout=TERMINATE_GRACE if self._running.cancel_requested else GRACE)
        self.kill()

    def kill(self) -> None:
        """End the call if the engine can."""
        if self._call is not None and self._occupies:
            self._call.kill()

    def end(self, end: WorkerMessage | BaseException) -> None:
        """End the attempt with the last message of its worker, or with the error of its engine."""
        if not self._occupies:
            return
        if not isinstance(end, BaseException) and end != self._last and not self._has_all(end):
            self._last = end
            self._loop.call_later(LATE_MESSAGES, self.end, end)
            return
        self._occupies = False
        if self._call is not None:
            self._call.close()
        self._attempts.forget(self)
        if not isinstance(end, BaseException):
            self._receive(end)
        elif isinstance(end, ExecutorLost):
            text = f"executor {self.executor_name} is lost: {end}"
            outage = Outage(Failure("ExecutorLost", text), self._attempts.limits.interruptions)
            if not self._inbox.ending.done():
                self._inbox.ending.set_result(outage)
        else:
            error = end if isinstance(end, WorkerLost) else WorkerLost(f"{type(end).__name__}: {end}")
            self._inbox.receive("fail", [error])
        if self._begun_at is not None and isinstance(self._running.slots, ExternalSlots):
            self._running.slots.note_run(time.monotonic() - self._begun_at)
        self._release_slot(self._running)

    def _receive(self, data: WorkerMessage) -> None:
        try:
            kind, *values = data if isinstance(data, tuple) else read_message(data)
        except Exception as error:
            kind, values = "fail", [WorkerLost(f"it sent a message that is not readable: {error}")]
        if kind == "started":
            self._begin(*values)
        elif kind == "end":
            for seconds in values[2:]:
                self._begin(seconds, has_ended=True)
            self._inbox.receive(kind, values)
        elif kind == "fail" and isinstance(values[0], str):
            self._inbox.receive("fail", [ProcessNotStarted(values[0])])
        else:
            self._inbox.receive(kind, values)
        self._received += 1
        if self._last and self._occupies and self._has_all(self._last):
            self.end(self._last)

    def _has_all(self, end: WorkerMessage) -> bool:
        """True if all messages before the end have arrived."""
        with contextlib.suppress(Exception):  # an unreadable end, which `_receive` names
            kind, _, *sent = end if isinstance(end, tuple) else read_message(end)
            return kind != "end" or bool(self._received >= sent[0])
        return True

    def _receive_later(self, data: WorkerMessage) -> None:
        with contextlib.suppress(RuntimeError):  # the loop of the runner is closed
            self._loop.call_soon_threadsafe(self._receive, data)

    def _end_later(self, end: WorkerMessage | BaseException) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.end, end)

    def _reply(self, number: int, value: Any, error: BaseException | None) -> None:
        if self._call is not None:
            self._call.send(pickle.dumps(("reply", number, value, error)))
