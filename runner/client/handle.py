"""TaskHandle: the return value of a submit, the task's id and the way to its result."""

import asyncio
import contextlib
import json
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from runner.client.client import get_client
from runner.errors import InvalidResult, ResultNotKept, TaskCancelled, TaskFailed, TimedOut, WouldBlock
from runner.handlers.registry import REGISTRY
from runner.model.duration import format_duration, parse_duration
from runner.model.outcome import RESULT_NOT_KEPT, Delay
from runner.model.task import State

if TYPE_CHECKING:
    from concurrent.futures import Future

    from runner.queries.task.results import TaskResult

R = TypeVar("R")

LAST_LOOK = 1.0
"""Seconds allowed for a final query after the timeout: the task may have finished since the last one, or before the
first if the timeout is 0."""


class TaskHandle(int, Generic[R]):
    """The id of a submitted task, which can wait for the result; it is a plain int otherwise.

    Example:
        >>> charge.submit(order=1, cents=5).result(timeout="30s")
        'charged 5 for order 1'
    """

    __slots__ = ()  # keeps large lists of handles out of the garbage collector's work

    duplicate: ClassVar[bool] = False
    """True if the task already existed and the submit added nothing."""

    def result(self, timeout: Delay | None = None) -> R:
        """Wait until the task has finished, in a thread without an event loop.

        Args:
            timeout: longest wait: text ("30s"), seconds or timedelta; None for no limit.

        Returns:
            The handler's result, as the type of its return annotation. Plain JSON without an annotation, or if this
            program does not load the handler.

        Raises:
            TaskFailed: the task is dead; has the type, message and traceback of the last exception.
            TaskCancelled: the task was cancelled.
            TimedOut: the task did not finish in time; it continues.
            TaskNotFound: the task does not exist, its transaction has not committed yet, or it was pruned.
            ResultNotKept: the task succeeded, but its result was too large or not JSON.
            InvalidResult: the result does not match the annotation.
            DatabaseUnavailable: the database has been unreachable for some time.
            WouldBlock: called on an event loop: await `wait` there.
        """
        return _result(ended(self, timeout))  # type: ignore[no-any-return] # validated by the annotation

    async def wait(self, timeout: Delay | None = None) -> R:
        """Same as `result`, on an event loop."""
        waiting, ending = get_client().waiting, None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_seconds(timeout)):
                ending = await asyncio.wrap_future(waiting.wait(self))
        if ending is None and waiting.trouble is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LOOK):
                    ending = await asyncio.wrap_future(waiting.ask(self))
        if ending is None:
            raise waiting.trouble or _timed_out(self, timeout)
        return _result(ending)  # type: ignore[no-any-return] # as above


class DuplicateHandle(TaskHandle[R]):
    """The id of an existing task that already held the unique key of a submitted one."""

    __slots__ = ()

    duplicate = True


def handles(ids: Iterable[int], duplicates: Collection[int] = ()) -> list[TaskHandle[R]]:
    """Make a handle for each id.

    Args:
        ids: task ids.
        duplicates: indexes of the duplicates.
    """
    result: list[TaskHandle[R]] = [*map(TaskHandle, ids)]
    for index in duplicates:
        result[index] = DuplicateHandle(result[index])
    return result


def ended(id: int, timeout: Delay | None) -> "TaskResult":
    """Wait until a task has finished in any final state, in a thread without an event loop.

    Raises:
        TimedOut: the task did not finish in time; see TaskHandle.result for the others.
    """
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise WouldBlock(call="result", instead="wait")
    waiting = get_client().waiting
    ending = _await_ending(waiting.wait(id), _seconds(timeout))
    if ending is None and waiting.trouble is None:
        ending = _await_ending(waiting.ask(id), LAST_LOOK)
    if ending is None:
        raise waiting.trouble or _timed_out(id, timeout)
    return ending


def _await_ending(
    future: "Future[TaskResult] | Future[TaskResult | None]", seconds: float | None
) -> "TaskResult | None":
    try:
        return future.result(seconds)
    except TimeoutError:
        future.cancel()
        return None


def kept(ending: "TaskResult") -> str | None:
    """The result of a finished task as JSON text; None if its handler returned nothing.

    Raises:
        TaskFailed: the task is dead.
        TaskCancelled: the task was cancelled.
        ResultNotKept: the task succeeded, but its result was not stored.
    """
    task = {"id": ending.id, "handler": ending.handler}
    if ending.state is State.DEAD:
        error = {"error_type": ending.error_type, "message": ending.message, "traceback": ending.traceback}
        raise TaskFailed(**task, attempts=ending.attempt, reason=ending.error or ending.error_type, **error)
    if ending.state is State.CANCELLED:
        raise TaskCancelled(**task, reason=ending.error or "no reason was recorded")
    if ending.result is None and (ending.error or "").startswith(RESULT_NOT_KEPT):
        raise ResultNotKept(**task, reason=ending.error)
    return ending.result


def _result(ending: "TaskResult") -> Any:
    """The result as the handler's return type, if this program loads the handler."""
    result, handler = kept(ending), REGISTRY.get(ending.handler)
    try:
        return handler.result_type.read(result) if handler else json.loads(result or "null")
    except ValueError as error:
        raise InvalidResult(id=ending.id, handler=ending.handler, why=str(error)) from None


def _timed_out(id: int, timeout: Delay | None) -> TimedOut:
    return TimedOut(id=int(id), waited=format_duration(timedelta(seconds=_seconds(timeout) or 0)))


def _seconds(timeout: Delay | None) -> float | None:
    return None if timeout is None else parse_duration(timeout).total_seconds()
