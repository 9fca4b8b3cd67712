"""execute: one task in, one outcome out; whatever its handler does, this never raises."""

import asyncio
import contextlib
import inspect
import logging
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from runner.engine.discretion import discreet
from runner.engine.misraised import advice
from runner.engine.result import done
from runner.engine.slots import Running
from runner.errors import InvalidPayload
from runner.handlers import Context, Handler, OwnTransaction
from runner.outcome import Cancelled, Dead, Failure, Outcome, Retry, Snooze
from runner.people.times import format_duration
from runner.rules.batch import Batch

log = logging.getLogger("runner.task")


class Executor:
    """Executes tasks: async handlers on the event loop, plain functions in threads.

    Args:
        threads: how many plain functions run at once.
        timeout: seconds, for handlers and tasks that name none; None for no limit.
        result_limit: bytes of a result that is kept.
        own: opens the transaction in which a handler ends its own task; None when there is no database.
    """

    def __init__(
        self,
        threads: int,
        timeout: float | None,
        result_limit: int,
        own: Callable[[Running], OwnTransaction] | None = None,
    ) -> None:
        self._pool = _threads(threads)
        self._timeout = timeout
        self._result_limit = result_limit
        self._own = own
        self.stuck = 0
        """Threads whose task was given up while its function still runs."""

    async def execute(self, running: Running, left: Callable[[], None]) -> Outcome:
        """Run a task's handler.

        Args:
            running: the task in hand.
            left: called when the body has really ended, which for a thread may be after the outcome.

        Returns:
            What it led to.
        """
        task, handler = running.task, running.handler
        try:
            arguments = handler.bind(task.payload, lambda: self._context(running))
        except InvalidPayload as error:
            left()
            return Dead(failure=Failure("InvalidPayload", str(error)))
        except Exception as error:  # e.g. annotations that name nothing
            left()
            log.exception("task %d of %s could not be executed", task.id, handler.name)
            return Retry(failure=_failure(error))
        outcome = await (self._on_loop if handler.is_async else self._in_thread)(running, arguments, left)
        return discreet(outcome, task.payload)

    async def _on_loop(self, running: Running, arguments: dict[str, Any], left: Callable[[], None]) -> Outcome:
        limit = self._limit(running)
        try:
            if limit is None:
                result = await running.handler.function(**arguments)
            else:
                async with asyncio.timeout(limit) as clock:
                    result = await running.handler.function(**arguments)
        except asyncio.CancelledError as error:
            return _cancelled(running, error)
        except TimeoutError as error:
            expired = limit is not None and clock.expired()
            return _timed_out(limit) if expired else _judged(running.handler, error)
        except BaseException as error:  # a handler's SystemExit must not end the runner
            return _judged(running.handler, error)
        finally:
            left()
        return self._returned(running, result)

    async def _in_thread(self, running: Running, arguments: dict[str, Any], left: Callable[[], None]) -> Outcome:
        limit = self._limit(running)
        running.stop = running.stop or threading.Event()
        work = partial(_call, running.handler.function, arguments)
        body = asyncio.get_running_loop().run_in_executor(self._pool, work)
        body.add_done_callback(lambda _: left())
        try:
            await asyncio.wait([body], timeout=limit)
            given_up: Outcome = _timed_out(limit)
        except asyncio.CancelledError:
            given_up = Cancelled() if running.told else Retry("0s", failure=INTERRUPTED)
            if running.told:
                with contextlib.suppress(asyncio.CancelledError):  # it is told, and then what it does counts
                    await asyncio.wait([body], timeout=limit)
        if not body.done():
            running.stop.set()
            return self._give_up(running, body, given_up)
        result, error = body.result()
        if running.told and (error is not None or result is None):
            return Cancelled()
        return self._returned(running, result) if error is None else _judged(running.handler, error)

    def _give_up(self, running: Running, body: "asyncio.Future[Any]", outcome: Outcome) -> Outcome:
        """Leave a thread that cannot be stopped to itself: whatever it still does, its fence is void."""
        self.stuck += 1

        def report(_: object) -> None:
            self.stuck -= 1
            log.warning("task %d of %s ended after it had been given up", running.task.id, running.handler.name)

        body.add_done_callback(report)
        log.warning("task %d of %s does not end; its thread is given up", running.task.id, running.handler.name)
        return outcome

    def _returned(self, running: Running, result: Any) -> Outcome:
        if isinstance(result, (Retry, Dead, Snooze)):
            return result
        if inspect.iscoroutine(result):
            result.close()
            return Dead("it returned a coroutine, which nobody awaits: define the handler itself with async def")
        outcome = done(result, self._result_limit)
        if outcome.why:
            log.warning("task %d of %s: %s", running.task.id, running.handler.name, outcome.why)
        return outcome

    def _limit(self, running: Running) -> float | None:
        for limit in (running.task.timeout, running.handler.defaults.timeout):
            if limit is not None:
                return limit
        return self._timeout

    def _context(self, running: Running) -> Context:
        task, limit = running.task, self._limit(running)
        running.stop = threading.Event()
        deadline = None if limit is None else datetime.now(UTC) + timedelta(seconds=limit)
        logger = logging.LoggerAdapter(log, {"task": task.id, "handler": task.handler})
        own = None if self._own is None else partial(self._own, running)
        return Context(
            task.id,
            task.key,
            task.attempt,
            task.max_attempts,
            task.fence,
            deadline,
            logger,
            running.stop,
            own,
            Batch.read(task.parents),
        )

    def resize(self, threads: int) -> None:
        """Run so many plain functions at once from now on; what runs in the threads of before ends there."""
        before, self._pool = self._pool, _threads(threads)
        before.shutdown(wait=False)

    def close(self) -> None:
        """Start nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix="runner-task")


INTERRUPTED = Failure("Interrupted", "its runner was stopped before it had ended")


def _timed_out(limit: float | None) -> Retry:
    allowed = format_duration(timedelta(seconds=limit or 0))
    return Retry(failure=Failure("Timeout", f"it took longer than {allowed}"))


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Call a plain function; what it raises travels as a value, since a future refuses StopIteration."""
    try:
        return function(**arguments), None
    except BaseException as error:
        return None, error


def _cancelled(running: Running, error: asyncio.CancelledError) -> Outcome:
    """Tell whether somebody cancelled the body, or it raised that by itself: awaiting what was cancelled does."""
    if running.told:
        return Cancelled()
    job = asyncio.current_task()
    interrupted = job is not None and job.cancelling() > 0
    return Retry("0s", failure=INTERRUPTED) if interrupted else _judged(running.handler, error)


def _judged(handler: Handler, error: BaseException) -> Outcome:
    failure = _failure(error)
    if not isinstance(error, Exception):
        return Retry(failure=failure)
    try:
        outcome = handler.judge(error)
    except Exception as second:  # an author's on_error may fail as well
        log.warning("on_error of %s failed: %r", handler.name, second)
        return Retry(failure=failure)
    return replace(outcome, failure=_explained(failure, outcome.why)) if isinstance(outcome, (Retry, Dead)) else outcome


def _explained(failure: Failure, why: str) -> Failure:
    """Keep the reason that on_error gave, and what the exception said."""
    said = f" ({failure.message})" if failure.message else ""
    return replace(failure, message=f"{why}{said}") if why else failure


def _failure(error: BaseException) -> Failure:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # an exception whose text cannot be had is an exception all the same
        message = "(its message could not be read)"
    return Failure(name, message + advice(error), _traceback(error))


def _traceback(error: BaseException) -> str:
    """The traceback from the handler on: our own frames say nothing to its author."""
    try:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        return "".join(traceback.format_exception(type(error), error, frames, limit=-50))
    except Exception:
        return ""
