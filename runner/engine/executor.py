"""Executor: runs the handler of a task and returns an outcome. It never raises."""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import Any, Self

from runner.engine.handler_result import done, redact_error, redact_outcome
from runner.engine.slots import Running
from runner.errors import InvalidPayload, TransactionUnavailable
from runner.handlers.batch import BatchResult, ParentResults
from runner.handlers.context import Context, OwnTransaction
from runner.handlers.registry import Handler
from runner.logs import CURRENT_TASK, TaskFields
from runner.model.duration import format_duration
from runner.model.outcome import Cancelled, Dead, Failure, HandlerOutcome, Interrupted, Outcome, Release, Retry, Snooze
from runner.settings import Settings

log = logging.getLogger("runner.task")


TOO_LARGE = (
    "the payload has {size} bytes, more than the setting payload_limit of the runner allows; submit a reference to the "
    "data instead, or raise the setting and retry the task"
)


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Limits of an attempt.

    Args:
        timeout: seconds for handlers and tasks without their own timeout; None for no limit.
        result: maximum size of a result in bytes.
        interruptions: maximum number of interruptions of a task without a new checkpoint; None for no limit.
    """

    timeout: float | None
    result: int
    interruptions: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits that the settings contain."""
        timeout = settings.timeout.total_seconds() if settings.timeout else None
        return cls(timeout, int(settings.result_limit), settings.max_interruptions)


class Executor:
    """Executes tasks: async handlers on the event loop, plain functions in threads.

    Args:
        threads: maximum number of plain functions that run at the same time.
        limits: the limits of an attempt.
        open_tx: opens `ctx.transaction()`; None without a database.
        parents: returns the reader of `ctx.batch.results()`; None without a database.
    """

    def __init__(
        self,
        threads: int,
        limits: AttemptLimits,
        open_tx: Callable[[Running], OwnTransaction] | None = None,
        parents: Callable[[int], ParentResults] | None = None,
    ) -> None:
        self._pool = _threads(threads)
        self._limits = limits
        self._open_tx = open_tx
        self._parents = parents
        self.stuck = 0
        """Threads that still run the function of an abandoned task."""

    async def execute(self, running: Running, release_slot: Callable[[], None]) -> Outcome:
        """Run a task's handler.

        Args:
            running: the task.
            release_slot: called when the body has really ended; for a thread this can be after the outcome.

        Returns:
            The outcome.
        """
        task = running.task
        before = CURRENT_TASK.get()
        CURRENT_TASK.set(TaskFields(task.id, task.handler, task.attempt))
        try:
            outcome = await self._outcome(running, release_slot)
            redacted = redact_outcome(outcome, task.payload or "{}")
            if redacted != outcome and running.error is not None:
                running.error = redact_error(running.error, redacted)
            return redacted
        finally:
            CURRENT_TASK.set(before)

    async def _outcome(self, running: Running, release_slot: Callable[[], None]) -> Outcome:
        task, handler = running.task, running.handler
        if (payload := task.payload) is None:
            release_slot()
            return Dead(failure=Failure("PayloadTooLarge", TOO_LARGE.format(size=task.oversize)))
        try:
            arguments = handler.bind(payload, lambda: self._context(running))
        except InvalidPayload as error:
            release_slot()
            return Dead(failure=Failure("InvalidPayload", str(error)))
        except BaseException as error:  # broken annotations, or a type whose validation exits
            release_slot()
            log.exception("task %d (%s) could not be executed", task.id, handler.name)
            running.error = error
            return Retry(failure=failure_of(error))
        return await (self._on_loop if handler.is_async else self._in_thread)(running, arguments, release_slot)

    async def _on_loop(self, running: Running, arguments: dict[str, Any], release_slot: Callable[[], None]) -> Outcome:
        limit = self._start_clock(running)
        try:
            if limit is None:
                result = await running.handler.function(**arguments)
            else:
                async with asyncio.timeout(limit) as clock:
                    result = await running.handler.function(**arguments)
        except asyncio.CancelledError as error:
            return self._cancelled(running, error)
        except TimeoutError as error:
            expired = limit is not None and clock.expired()
            return _timed_out(running, limit) if expired else _failed(running, error)
        except BaseException as error:  # a handler's SystemExit must not end the runner
            return _failed(running, error)
        finally:
            release_slot()
        return self._outcome_of(running, result)

    async def _in_thread(
        self, running: Running, arguments: dict[str, Any], release_slot: Callable[[], None]
    ) -> Outcome:
        limit = self._start_clock(running)
        running.stop = running.stop or threading.Event()
        work = partial(contextvars.copy_context().run, _call, running, arguments)
        body = asyncio.get_running_loop().run_in_executor(self._pool, work)
        body.add_done_callback(lambda _: release_slot())
        running.body = body
        try:
            await asyncio.wait([body], timeout=limit)
            outcome: Outcome = _timed_out(running, limit)
        except asyncio.CancelledError:
            outcome = Cancelled() if running.cancel_requested else self._interrupted(running)
            if running.cancel_requested:
                with contextlib.suppress(asyncio.CancelledError):  # ctx.stop is set; the result of the function decides
                    await asyncio.wait([body], timeout=limit)
        if not body.done():
            running.stop.set()
            return self._give_up(running, body, outcome)
        result, error = body.result()
        if running.cancel_requested and (error is not None or result is None):
            return Cancelled()
        return self._outcome_of(running, result) if error is None else _failed(running, error)

    def _give_up(self, running: Running, body: "asyncio.Future[Any]", outcome: Outcome) -> Outcome:
        """Abandon a thread that cannot be stopped. The fence of its task is void, so its writes are refused."""
        self.stuck += 1

        def report(_: object) -> None:
            self.stuck -= 1
            log.warning("task %d (%s) ended after its runner abandoned it", running.task.id, running.handler.name)

        body.add_done_callback(report)
        log.warning("task %d (%s) does not end: abandoning its thread", running.task.id, running.handler.name)
        return outcome

    def _outcome_of(self, running: Running, result: Any) -> Outcome:
        if isinstance(result, (Retry, Dead, Snooze)):
            return result
        if inspect.iscoroutine(result):
            result.close()
            return Dead("the handler returned a coroutine: define the handler with async def")
        outcome = done(result, self._limits.result)
        if outcome.why:
            log.warning("task %d (%s): %s", running.task.id, running.handler.name, outcome.why)
        return outcome

    def _cancelled(self, running: Running, error: asyncio.CancelledError) -> Outcome:
        """Distinguish a cancellation by the runner from a CancelledError of the handler itself."""
        if running.cancel_requested:
            return Cancelled()
        job = asyncio.current_task()
        interrupted = job is not None and job.cancelling() > 0
        return self._interrupted(running) if interrupted else _failed(running, error)

    def _interrupted(self, running: Running) -> Interrupted | Release:
        if running.waits_for:
            return Release("the runner stopped while the task waited for a transaction")
        return Interrupted(self._limits.interruptions)

    def _start_clock(self, running: Running) -> float | None:
        limit = self._limit(running)
        running.deadline = None if limit is None else time.monotonic() + limit
        return limit

    def _limit(self, running: Running) -> float | None:
        for limit in (running.task.timeout, running.handler.defaults.timeout):
            if limit is not None:
                return limit if limit != inf else None
        return self._limits.timeout

    def _context(self, running: Running) -> Context:
        task, limit = running.task, self._limit(running)
        running.stop = threading.Event()
        deadline = None if limit is None else datetime.now(UTC) + timedelta(seconds=limit)
        logger = logging.LoggerAdapter(log, {"task": task.id, "handler": task.handler, "attempt": task.attempt})
        open_tx = None if self._open_tx is None else partial(self._open_tx, running)
        return Context(
            task.id,
            task.key,
            task.attempt,
            task.max_attempts,
            task.fence,
            deadline,
            logger,
            running.stop,
            open_tx,
            BatchResult.read(task.parents, self._parents(task.id) if task.parents and self._parents else None),
        )

    def resize(self, threads: int) -> None:
        """Set the number of threads. Functions that already run finish in the old pool."""
        old_pool, self._pool = self._pool, _threads(threads)
        old_pool.shutdown(wait=False)

    def close(self) -> None:
        """Start no more functions."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix="runner-task")


def _timed_out(running: Running, limit: float | None) -> Retry | Release:
    if running.waits_for:
        return Release(f"timed out while waiting for a transaction: {running.waits_for}")
    allowed = format_duration(timedelta(seconds=limit or 0))
    return Retry(failure=Failure("Timeout", f"the task took longer than {allowed}"))


def _call(running: Running, arguments: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Call a plain function and return its exception as a value: a future rejects StopIteration."""
    running.thread = threading.get_ident()
    try:
        return running.handler.function(**arguments), None
    except BaseException as error:
        return None, error


def _failed(running: Running, error: BaseException) -> Outcome:
    if isinstance(error, HandlerOutcome):
        running.error = error.__cause__
        return _raised(error)
    running.error = error
    return _classify(running.handler, error)


def _raised(outcome: HandlerOutcome) -> Outcome:
    """Return an outcome that a handler raised, with the failure that it was raised from."""
    cause = outcome.__cause__
    match outcome:
        case Retry() | Dead():
            return replace(outcome, failure=None if cause is None else _with_reason(failure_of(cause), outcome.why))
        case Snooze():
            return replace(outcome)  # without its traceback
    raise outcome


def _classify(handler: Handler, error: BaseException) -> Outcome:
    if isinstance(error, TransactionUnavailable):
        return Release(str(error))
    failure = failure_of(error)
    if not isinstance(error, Exception):
        return Retry(failure=failure)
    try:
        outcome = handler.judge(error)
    except BaseException as second:  # on_error may raise or exit
        name, message = _describe(second)
        log.warning("on_error of %s failed: %s: %s", handler.name, name, message)
        return Retry(failure=replace(failure, message=f"{failure.message}; on_error raised {name}: {message}"))
    return (
        replace(outcome, failure=_with_reason(failure, outcome.why)) if isinstance(outcome, (Retry, Dead)) else outcome
    )


def _with_reason(failure: Failure, why: str) -> Failure:
    """Combine the reason from on_error with the message of the exception."""
    text = f" ({failure.message})" if failure.message else ""
    return replace(failure, message=f"{why}{text}") if why else failure


def failure_of(error: BaseException) -> Failure:
    """Return the failure for an exception that ended an attempt."""
    name, message = _describe(error)
    return Failure(name, message, _traceback(error))


def _describe(error: BaseException) -> tuple[str, str]:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        return name, str(error)
    except BaseException:  # __str__ of an exception may raise
        return name, "(message not readable)"


def _traceback(error: BaseException) -> str:
    """Format the traceback without the frames of the runner."""
    try:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        return "".join(traceback.format_exception(type(error), error, frames, limit=-50))
    except BaseException:
        return ""
