"""Process attempts: run the handler of a task in a worker process, and kill the process when the attempt has to end."""

import asyncio
import contextlib
import json
import pickle
import time
from collections.abc import Callable
from typing import Any

from runner.engine.attempt_outcome import AttemptLimits, failed, interrupted, result_outcome, timed_out
from runner.engine.hooks import Middleware
from runner.engine.process_messages import ProcessCall, ProcessEnd
from runner.engine.process_pool import (
    ProcessCrashed,
    ProcessNotStarted,
    ProcessPool,
    WorkerProcess,
    begin,
    error_of,
    forward,
)
from runner.engine.slots import Running
from runner.handlers.context import Context
from runner.handlers.dependencies import ParentResults
from runner.model.outcome import Cancelled, Done, Failure, Outcome, Retry
from runner.settings import Settings

GRACE = 0.5
"""Seconds for a handler to clean up after its timeout, a terminate request or an interruption, before it is killed."""

KILL_TIMEOUT = 2.0
"""Maximum wait in seconds for the end of a killed process."""


class ProcessAttempts:
    """Runs attempts in the worker processes of a runner.

    Args:
        settings: the settings of the runner.
        parents: returns the reader of `ctx.batch.results()`.
        middleware: runs around each handler, in the process of the runner.
    """

    def __init__(
        self, settings: Settings, parents: Callable[[int], ParentResults] | None, middleware: Middleware
    ) -> None:
        self.pool = ProcessPool(settings)
        """The worker processes."""
        self._limits = AttemptLimits.of(settings)
        self._rules = self._limits.rules
        self._parents, self._middleware = parents, middleware

    async def execute(self, running: Running, limit: float | None, context: Callable[[], Context]) -> Outcome:
        """Run a task's handler. When it returns, the process is idle or dead.

        Args:
            running: the task.
            limit: seconds allowed for the attempt; None for no limit.
            context: makes the Context for the middleware.
        """
        attempt = _Attempt(self.pool, running, self._call(running, limit), self._parents)
        body, stopped = asyncio.ensure_future(self._body(running, attempt, context)), False
        try:
            first: set[asyncio.Future[Any]] = {body, attempt.began}
            await asyncio.wait(first, return_when="FIRST_COMPLETED")
            running.deadline = None if limit is None else time.monotonic() + limit
            await asyncio.wait([body], timeout=None if limit is None else limit + GRACE)
            outcome: Outcome = timed_out(running, limit, self._rules)
        except asyncio.CancelledError:
            stopped = True
            outcome = Cancelled() if running.cancel_requested else interrupted(running, self._limits.interruptions)
            if running.process is not None and attempt.began.done():
                running.process.send("stop", running.cancel_requested)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([body], timeout=GRACE)
        finally:
            attempt.began.cancel()
            if not body.done() and running.process is not None:
                running.process.kill()
        if body.done():
            return outcome if stopped and attempt.crashed else body.result()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([body], timeout=KILL_TIMEOUT)
        body.cancel()  # of a middleware that goes on
        return outcome

    async def close(self) -> None:
        """End all processes."""
        await self.pool.close()

    def _call(self, running: Running, limit: float | None) -> ProcessCall:
        options, notes = running.handler.defaults, running.notes
        state = None if notes is None or notes.state is None else json.dumps(notes.state)
        module = running.handler.function.__module__
        return ProcessCall(running.task, module, state, limit, self._limits.interruptions, options.memory_limit)

    async def _body(self, running: Running, attempt: "_Attempt", context: Callable[[], Context]) -> Outcome:
        if not self._middleware.callbacks:
            return await attempt.run()
        try:
            result = await self._middleware.run(context(), attempt.result)
        except BaseException as error:
            known = attempt.outcome is not None and error is attempt.error
            return attempt.outcome if known and attempt.outcome is not None else failed(running, error, self._rules)
        if isinstance(attempt.outcome, Done) and result is attempt.value:
            return attempt.outcome
        return result_outcome(running, result, self._limits)


class _Attempt:
    """One attempt in a worker process.

    Args:
        pool: the worker processes.
        running: the task.
        call: the task, as the worker receives it.
        parents: returns the reader of `ctx.batch.results()`.
    """

    def __init__(
        self, pool: ProcessPool, running: Running, call: ProcessCall, parents: Callable[[int], ParentResults] | None
    ) -> None:
        self._pool, self._running, self._call, self._parents = pool, running, call, parents
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the handler starts: the import of its module does not count."""
        self.crashed = False
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        """The exception that the middleware receives."""
        self.value: Any = None
        """The result as plain JSON, which the middleware receives."""

    async def result(self) -> Any:
        """Run the handler and return its result, or raise its exception, for the middleware."""
        outcome = await self.run()
        if isinstance(outcome, Done):
            self.value = None if outcome.result is None else json.loads(outcome.result)
            return self.value
        self.error = self._running.error
        if self.error is None:
            self.error = outcome if isinstance(outcome, BaseException) else asyncio.CancelledError()
        raise self.error

    async def run(self) -> Outcome:
        """Run the handler."""
        try:
            end = await self._end()
        except (ProcessCrashed, ProcessNotStarted) as error:
            self._running.error, self.crashed = error, True
            stack = error.args[1] if len(error.args) > 1 else ""
            self.outcome = Retry(failure=Failure(type(error).__name__, str(error.args[0]), stack))
        else:
            self._running.error = error_of(end)
            self.outcome = end.outcome
        return self.outcome

    async def _end(self) -> ProcessEnd:
        worker, reusable = await self._pool.take(), False
        self._running.process = worker
        try:
            await begin(worker, self._call)
            if not self.began.done():
                self.began.set_result(None)
            end = await self._messages(worker)
            reusable = end.reusable
        except ProcessCrashed as error:
            raise ProcessCrashed(error.args[0], worker.crash_stack) from None
        finally:
            self._running.process = None
            await self._pool.put_back(worker, reusable)
        return end

    async def _messages(self, worker: WorkerProcess) -> ProcessEnd:
        """Execute the requests of the handler until it ends."""
        notes = self._running.notes
        while True:
            kind, *values = await worker.receive()
            match kind:
                case "end":
                    end: ProcessEnd = values[0]
                    return end
                case "log":
                    forward(*values)
                case "line" if notes is not None:
                    notes.line(*values)
                case "progress" if notes is not None:
                    notes.progress(*values)
                case "keep" if notes is not None:
                    notes.keep(json.loads(values[0]))
                case "save" | "parents":
                    await self._reply(worker, kind, *values)

    async def _reply(self, worker: WorkerProcess, kind: str, number: int, *values: str) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            if kind == "parents" and self._parents is not None:
                value = await self._parents(self._running.task.id).read()
            elif self._running.notes is not None:
                await self._running.notes.save(json.loads(values[0]))
            pickle.dumps(value)
        except Exception as failure:
            value, error = None, failure
        try:
            worker.send("reply", number, value, error)
        except Exception:  # the error cannot be pickled
            worker.send("reply", number, None, RuntimeError(f"{type(error).__name__}: {error}"))
