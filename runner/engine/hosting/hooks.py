"""Hooks and middleware: the calls of the functions that an application registered."""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from runner.engine.events import AttemptsEnded, Events, TasksRescued
from runner.engine.executing.task_threads import ContainedCall
from runner.engine.running import Running, in_context
from runner.handlers.context import Context
from runner.handlers.hooks import HOOKS, LIFE_CYCLE, AttemptEnd, Callback, HookName, InvalidCallback
from runner.logs import log_exception
from runner.model.headers import read_headers
from runner.model.outcome import HandlerOutcome, Outcome
from runner.model.task import Claimed
from runner.own_code import is_cancelled
from runner.queries.rows import texts

log = logging.getLogger("runner")

T = TypeVar("T")


class SideThreads:
    """Threads for plain functions beside the tasks, started at the first call.

    Args:
        size: maximum number of threads.
        pool: runs the functions instead; None for threads of its own.
    """

    def __init__(self, name: str, size: int, pool: Executor | None = None) -> None:
        self._name, self._size = name, size
        self._pool = pool
        self.busy = 0
        """Calls in progress: the process cannot exit normally before they end."""

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread; its exception is raised here."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._size, thread_name_prefix=self._name)
        self.busy += 1  # a cancelled call continues and stays busy
        call = partial(contextvars.copy_context().run, _contained, function, arguments)
        value, error = (await asyncio.wrap_future(self._pool.submit(call))).take()
        self.busy -= 1
        try:
            if error is not None:
                raise error
        finally:
            del error  # it refers to this frame
        return value  # type: ignore[no-any-return] # of `function`

    def close(self) -> None:
        """Start no more calls."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _contained(function: Callable[..., Any], arguments: tuple[Any, ...]) -> ContainedCall:
    try:
        return ContainedCall(function(*arguments))
    except BaseException as error:
        return ContainedCall(None, error)


FENCED = "fenced"
"""The verb for `ctx.after_settle` if the runner had lost the task: the outcome is discarded."""

PARALLEL = 20
"""Maximum number of functions that run at the same time."""

MOST_PENDING = 10_000
"""Maximum number of calls that wait; further ones are dropped and logged."""


def attempt_end(running: Running, verb: str, outcome: Outcome, duration: float | None, runner_id: int) -> AttemptEnd:
    """Describe the end of an attempt, after it was written.

    Args:
        duration: seconds that the handler ran; None if it did not start.
    """
    task, failure, reason, error = running.task, getattr(outcome, "failure", None), None, None
    ids = (task.id, task.handler, task.queue, task.key, task.attempt, task.max_attempts, verb, duration)
    if verb != "succeed":
        reason, error = failure.reason if failure else getattr(outcome, "why", None), running.error
    wait, tags = None if duration is None else running.wait, texts(task.tags)
    return AttemptEnd(*ids, reason, error, wait, task.tenant, tags, runner_id, read_headers(task.headers))


def call_after_settle(running: Running, end: AttemptEnd) -> None:
    """Call the functions that the attempt has given to `ctx.after_settle`."""
    for function in running.after_settled:
        try:
            function(end)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            name = getattr(function, "__qualname__", function)
            place = name, end.id, end.handler
            log_exception(log, logging.ERROR, "%s failed after task %d (%s)", *place, error=error)


class Hooks:
    """Calls registered functions in the background. An exception is logged and changes nothing.

    Args:
        values: the open resources by name.
        events: has the ends of attempts.
        pool: runs plain functions; None for threads of its own.
    """

    def __init__(self, values: Mapping[str, Any], events: Events, pool: Executor | None = None) -> None:
        self._values = values
        self.threads = SideThreads("runner-hooks", PARALLEL, pool)
        self._room = asyncio.Semaphore(PARALLEL)
        self._calls: set[asyncio.Task[None]] = set()
        self._dropped = 0
        events.subscribe(AttemptsEnded, self._call_for_ends)
        events.subscribe(TasksRescued, self._call_for_rescues)

    @property
    def has_listeners(self) -> bool:
        """True if a function wants the ends of attempts."""
        return any(map(self.listens, HOOKS))

    def listens(self, verb: str) -> bool:
        """True if a function wants the ends of attempts with this move."""
        for event in HOOKS.get(verb, ()):  # noqa: SIM110 - a generator costs more than the rest of this call
            if LIFE_CYCLE.of(event):
                return True
        return False

    def _call_for_ends(self, event: AttemptsEnded) -> None:
        verb = event.verb or FENCED
        listens = self.listens(verb)
        for running, settlement in event.attempts:
            if listens or running.after_settled:
                end = attempt_end(running, verb, settlement.outcome, settlement.duration, event.runner_id)
                in_context(running, self._call_for_end, running, end)

    def _call_for_end(self, running: Running, end: AttemptEnd) -> None:
        call_after_settle(running, end)
        self.call(end)

    def _call_for_rescues(self, event: TasksRescued) -> None:
        for id, task in event.tasks.items():
            ids = (id, task.handler, task.queue, task.key, task.attempt, task.max_attempts, task.verb, None, task.text)
            own = task.tenant, texts(task.tags), task.runner_id, read_headers(task.headers)
            self.call(AttemptEnd(*ids, None, None, *own))

    def call(self, end: AttemptEnd) -> None:
        """Call the functions for the end of an attempt, without waiting for them."""
        for event in HOOKS.get(end.verb, ()):
            for callback in LIFE_CYCLE.of(event):
                if len(self._calls) >= MOST_PENDING:
                    self._drop(callback)
                    continue
                call = asyncio.ensure_future(self._call(callback, end))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    def _drop(self, callback: Callback) -> None:
        self._dropped += 1
        if self._dropped.bit_count() == 1:  # 1, 2, 4, ...: a slow hook must not fill the log
            log.error("%s is too slow: %d of its calls were dropped", callback.location, self._dropped)

    async def call_all(self, event: HookName) -> None:
        """Call the functions of a start or a stop, one after the other."""
        for callback in LIFE_CYCLE.of(event):
            await self._call(callback)

    async def _call(self, callback: Callback, *subject: AttemptEnd) -> None:
        try:
            arguments = callback.arguments(self._values, *subject)
        except KeyError as error:
            log.error("%s (%s) was not called: resource %s is not open", callback.location, callback.event, error)
            return
        try:
            async with self._room:
                if callback.is_async:
                    await callback.function(**arguments)
                else:
                    await self.threads.call(partial(callback.function, **arguments))
        except BaseException as error:
            if is_cancelled(error):
                log.error("%s (%s) did not end in time", callback.location, callback.event)
                raise
            log_exception(log, logging.ERROR, "%s (%s) failed", callback.location, callback.event, error=error)

    async def drain(self, limit: float) -> None:
        """Wait for the calls in progress.

        Args:
            limit: maximum wait in seconds; then they are cancelled.
        """
        if not self._calls:
            return
        _, late = await asyncio.wait(self._calls, timeout=limit)
        for call in late:
            call.cancel()
        if late:
            await asyncio.wait(late, timeout=limit)


Body = Callable[[], Awaitable[Any]]


class Middleware:
    """The functions of @around_execute, in the order of registration.

    Args:
        callbacks: the functions; the first is the outermost.
        values: the open resources by name.
    """

    def __init__(self, callbacks: Sequence[Callback] = (), values: Mapping[str, Any] | None = None) -> None:
        self.callbacks = callbacks
        """The functions; empty if no application registered one."""
        self._values = {} if values is None else values

    def of(self, task: Claimed) -> Sequence[Callback]:
        """Return the functions for an attempt, called in its context."""
        wanted: list[Callback] = []
        for callback in self.callbacks:
            try:
                if callback.when is None or callback.when(task):
                    wanted.append(callback)
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                place = getattr(callback.when, "__qualname__", callback.when), task.id, task.handler
                log_exception(log, logging.ERROR, "%s failed before task %d (%s)", *place, error=error)
        return wanted

    async def run(self, context: Context, body: Body, callbacks: Sequence[Callback] | None = None) -> Any:
        """Run the body of an attempt inside functions.

        Args:
            callbacks: those of the attempt; None for all.

        Returns:
            The result of the handler.

        Raises:
            BaseException: the exception of the handler, of a function before its `yield`, or the outcome that a
                function raised after it.
        """
        return await self._run(self.callbacks if callbacks is None else callbacks, context, body)

    async def _run(self, callbacks: Sequence[Callback], context: Context, body: Body) -> Any:
        if not callbacks:
            return await body()
        callback, *others = callbacks
        generator = callback.function(**callback.arguments(self._values, context))
        try:
            await _next(generator)
        except (StopIteration, StopAsyncIteration):
            raise _yields_wrong(callback) from None
        try:
            result = await self._run(others, context, body)
        except BaseException as error:
            await _end(callback, generator, context, error=error)
            raise
        await _end(callback, generator, context, result=result)
        return result


async def _next(generator: Any) -> None:
    if inspect.isasyncgen(generator):
        await anext(generator)
    else:
        next(generator)


async def _end(
    callback: Callback, generator: Any, context: Context, *, result: Any = None, error: BaseException | None = None
) -> None:
    """Run the part after `yield`, which receives the result or the exception."""
    try:
        if inspect.isasyncgen(generator):
            await (generator.asend(result) if error is None else generator.athrow(error))
        elif error is None:
            generator.send(result)
        else:
            generator.throw(error)
    except (StopIteration, StopAsyncIteration):
        return
    except HandlerOutcome as outcome:
        if outcome is not error and error is not None:
            raise outcome from error
    except BaseException as failure:
        if failure is error or _wraps(failure, error):
            return
        place = callback.location, context.id, context.handler
        log_exception(log, logging.ERROR, "%s failed after task %d (%s)", *place, error=failure)
        return
    else:
        log.error("%s", _yields_wrong(callback))


def _wraps(failure: BaseException, error: BaseException | None) -> bool:
    """True for a StopIteration of the handler, which Python wraps when a generator raises it."""
    return isinstance(failure, RuntimeError) and failure.__cause__ is error and error is not None


def _yields_wrong(callback: Callback) -> InvalidCallback:
    return InvalidCallback(event=callback.event, name=callback.location, why="it must yield once")
