"""TaskHandle, the return value of a submit: the wait for the result, the status, and operations on the task."""

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, overload

from runner.client import operations
from runner.client.client import get_client, refuse_event_loop
from runner.client.database_client import Client
from runner.client.result_poller import Ending
from runner.client.status import TaskStatus
from runner.client.task_events import TaskEvents
from runner.db.follow import follow, follow_async
from runner.errors import (
    DatabaseUnavailable,
    InvalidResult,
    InvalidTask,
    ResultEncrypted,
    ResultNotKept,
    RunnerError,
    TaskCancelled,
    TaskFailed,
    TimedOut,
)
from runner.handlers.registry import REGISTRY
from runner.model.duration import format_duration, parse_duration
from runner.model.outcome import RESULT_NOT_KEPT, Dead, Delay, Retry, Snooze
from runner.model.sealed import read_sealed, shown
from runner.model.shard import ShardId
from runner.model.task import State
from runner.model.task_event import EVENT_KINDS

if TYPE_CHECKING:
    from concurrent.futures import Future

    from runner.queries.task.results import TaskResult

    Waits: TypeAlias = Generator[
        tuple[Future[Any], float | None], Mapping[int, Ending] | None, Mapping[int, TaskResult | Exception]
    ]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
"""The return value of the handler: its result or an outcome."""

HandleOf: TypeAlias = "TaskHandle[R | Retry | Dead | Snooze]"
"""The handle of a task with a result of type R, whose handler may also return outcomes."""


class TaskHandle(int, Generic[R_co]):
    """The id of a submitted task, which can wait for the result; it is a plain int otherwise.

    Examples:
        >>> charge.submit(order=1, cents=5).result(timeout="30s")
        'charged 5 for order 1'
    """

    __slots__ = ()  # keeps large lists of handles out of the garbage collector's work

    duplicate: ClassVar[bool] = False
    """True if the task already existed and the submit added nothing."""

    def result(self: "HandleOf[R]", timeout: Delay | None = None) -> R:
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
        return value_of(wait_for_end(self, timeout))  # type: ignore[no-any-return] # validated by the annotation

    async def wait(self: "HandleOf[R]", timeout: Delay | None = None) -> R:
        """Same as `result`, on an event loop."""
        return value_of((await endings_async([self], timeout))[self])  # type: ignore[no-any-return] # as above

    def status(self, *, tx: object = None) -> TaskStatus:
        """Read the status of the task: state, attempt, progress, error and times. It is one read by the primary key.

        Args:
            tx: your connection or session, to read within its open transaction. See docs/transactions.md.

        Raises:
            TaskNotFound: the task does not exist, its transaction has not committed yet, or it was pruned.
            DatabaseUnavailable: the database cannot be reached.
            WouldBlock: called on an event loop: await `status_async` there.
        """
        return operations.status(self).run(tx)

    async def status_async(self, *, tx: object = None) -> TaskStatus:
        """Same as `status`, on an event loop."""
        return await operations.status(self).run_async(tx)

    def events(self, after: str | None = None, *, kinds: Iterable[str] = EVENT_KINDS) -> TaskEvents:
        """Follow the events of the task: its states, failed attempts, progress and log lines.

        The iterator works on an event loop (`async for`) and in a thread (`for`). It begins with the current state, the
        progress, and the log lines of the current or last attempt. It ends after the final state, when the runner has
        written the last lines, up to 1.5 seconds later. No event comes twice, and none is lost, except for states and
        progress that lasted for less than the interval of the queries, half a second or less.

        Args:
            after: the `cursor` of the last known event; only later ones follow. "start" for all events of the task.
            kinds: the kinds of events: "state", "attempt", "progress" and "log".

        Raises:
            InvalidTask: `after` is not a cursor, or a kind is unknown.
            TaskNotFound: while iterating: the task does not exist, its transaction has not committed yet, or it was
                pruned.
            DatabaseUnavailable: while iterating: the database has been unreachable for some time.
            WouldBlock: while iterating: `for` on an event loop; use `async for` there.

        Examples:
            >>> async for event in task.events(kinds=["state", "progress"]):
            ...     print(event)
        """
        return TaskEvents(self, after, kinds)

    def cancel(self, reason: str | None = None, *, by: str | None = None, tx: object = None) -> None:
        """Cancel the task: a waiting or blocked one immediately, a running one through its runner.

        The audit log records the change like that of an operator, and `runner undo` reverses it.

        Args:
            reason: the reason, for the audit log and for the callers that wait for the result.
            by: the user who asked for it, such as "ana@example.org"; None for the user of this process.
            tx: your connection or session; the change becomes part of its open transaction. See docs/transactions.md.

        Raises:
            TaskUnchanged: the task has finished, its cancellation is already requested, or its row is locked.
            TaskNotFound, DatabaseUnavailable, WouldBlock: see `status`.
        """
        operations.cancel(self, reason, by).run(tx)

    async def cancel_async(self, reason: str | None = None, *, by: str | None = None, tx: object = None) -> None:
        """Same as `cancel`, on an event loop."""
        await operations.cancel(self, reason, by).run_async(tx)

    def retry(self, reason: str | None = None, *, by: str | None = None, tx: object = None) -> None:
        """Run the task again: a waiting one now, a dead or cancelled one now and with all its attempts.

        Args:
            reason: see `cancel`.
            by: see `cancel`.
            tx: see `cancel`.

        Raises:
            TaskUnchanged: the task is running, blocked or has succeeded, or another task holds its unique key.
            TaskNotFound, DatabaseUnavailable, WouldBlock: see `status`.
        """
        operations.retry(self, reason, by).run(tx)

    async def retry_async(self, reason: str | None = None, *, by: str | None = None, tx: object = None) -> None:
        """Same as `retry`, on an event loop."""
        await operations.retry(self, reason, by).run_async(tx)

    def signal(self, name: str, payload: object = None, *, by: str | None = None, tx: object = None) -> None:
        """Send a signal to the task, which receives it with `ctx.wait_for(name)`, now or later.

        Args:
            name: name of the signal.
            payload: anything that JSON can hold.
            by: see `cancel`.
            tx: see `cancel`.

        Raises:
            InvalidInput: the name is not valid, or the payload is not JSON.
            TaskUnchanged: the task has finished, or its row is locked.
            TaskNotFound, DatabaseUnavailable, WouldBlock: see `status`.
        """
        operations.signal(self, name, payload, by).run(tx)

    async def signal_async(
        self, name: str, payload: object = None, *, by: str | None = None, tx: object = None
    ) -> None:
        """Same as `signal`, on an event loop."""
        await operations.signal(self, name, payload, by).run_async(tx)

    def reschedule(
        self, when: datetime | Delay, reason: str | None = None, *, by: str | None = None, tx: object = None
    ) -> None:
        """Set the time before which the task does not start.

        Args:
            when: a time with a zone; or a delay from now: text ("10m"), seconds or timedelta.
            reason: see `cancel`.
            by: see `cancel`.
            tx: see `cancel`.

        Raises:
            InvalidEdit: the time has no zone, or no column can hold it.
            TaskUnchanged: the task has finished, or it is due at that time already.
            TaskNotFound, DatabaseUnavailable, WouldBlock: see `status`.
        """
        operations.reschedule(self, when, reason, by).run(tx)

    async def reschedule_async(
        self, when: datetime | Delay, reason: str | None = None, *, by: str | None = None, tx: object = None
    ) -> None:
        """Same as `reschedule`, on an event loop."""
        await operations.reschedule(self, when, reason, by).run_async(tx)


class ShardHandle(ShardId, TaskHandle[R_co]):
    """The id of a task with its shard, as `eu:17`."""


class DuplicateShardHandle(ShardHandle[R_co]):
    """The id of an existing task of a shard that already held the unique key of a submitted one."""

    duplicate = True


class DuplicateHandle(TaskHandle[R_co]):
    """The id of an existing task that already held the unique key of a submitted one."""

    __slots__ = ()

    duplicate = True


def handle(id: int | str) -> TaskHandle[Any]:
    """Return the handle of an existing task. The `task_handle` of its handler knows the type of the result as well.

    Args:
        id: the id; with shards, the shard and the id, such as "eu:17".

    Raises:
        InvalidTask: `id` is not a whole number.
    """
    shard, colon, number = str(id).rpartition(":")
    try:
        return ShardHandle(shard, int(number)) if colon else TaskHandle(id)
    except (TypeError, ValueError):
        raise InvalidTask(field="id", value=id, why="a task id is a whole number") from None


def handles(ids: Iterable[int], duplicates: Collection[int] = ()) -> list[TaskHandle[R]]:
    """Make a handle for each id.

    Args:
        ids: task ids.
        duplicates: indexes of the duplicates.
    """
    ids = [*ids]
    result: list[TaskHandle[R]]
    if ids and isinstance(ids[0], ShardId):
        result = [ShardHandle(id.shard, id) for id in ids if isinstance(id, ShardId)]
    else:
        result = [*map(TaskHandle, ids)]
    for index in duplicates:
        own = result[index]
        result[index] = DuplicateShardHandle(own.shard, own) if isinstance(own, ShardHandle) else DuplicateHandle(own)
    return result


OPENING = 30.0
"""Seconds allowed for opening the database, which the timeout of the caller does not include."""

LAST_LOOK = 10.0
"""Seconds allowed for a final query after the timeout: the tasks may have finished since the last one, or before the
first if the timeout is 0."""


@overload
def results(
    handles: "Iterable[HandleOf[R]]", timeout: Delay | None = None, *, return_exceptions: Literal[False] = False
) -> list[R]: ...


@overload
def results(
    handles: "Iterable[HandleOf[R]]", timeout: Delay | None = None, *, return_exceptions: Literal[True]
) -> list[R | RunnerError]: ...


def results(
    handles: "Iterable[TaskHandle[Any]]", timeout: Delay | None = None, *, return_exceptions: bool = False
) -> list[Any]:
    """Wait until many tasks have finished, in a thread without an event loop. One query reads up to 5,000 of them.

    Args:
        handles: task handles.
        timeout: longest wait for all of them: text ("30s"), seconds or timedelta; None for no limit.
        return_exceptions: True to return errors in the place of results, as asyncio.gather does.

    Returns:
        The results in the order of the handles, each as TaskHandle.result returns it.

    Raises:
        InvalidTask: it is not a list of task handles.
        RunnerError: the first error by the order of the handles, once all tasks have finished or the timeout has
            expired; see TaskHandle.result.

    Examples:
        >>> results(charge.submit_many({"order": n} for n in orders), timeout="5m")
    """
    ids = _ids(handles)
    endings = _endings(ids, timeout, "results")
    return _values(ids, endings, return_exceptions)


@overload
async def results_async(
    handles: "Iterable[HandleOf[R]]", timeout: Delay | None = None, *, return_exceptions: Literal[False] = False
) -> list[R]: ...


@overload
async def results_async(
    handles: "Iterable[HandleOf[R]]", timeout: Delay | None = None, *, return_exceptions: Literal[True]
) -> list[R | RunnerError]: ...


async def results_async(
    handles: "Iterable[TaskHandle[Any]]", timeout: Delay | None = None, *, return_exceptions: bool = False
) -> list[Any]:
    """Same as `results`, on an event loop."""
    ids = _ids(handles)
    endings = await endings_async(ids, timeout)
    return _values(ids, endings, return_exceptions)


def _ids(handles: Iterable[int]) -> list[int]:
    if isinstance(handles, int):
        why = "pass a list of task handles; result and wait of a handle wait for one task"
        raise InvalidTask(field="handles", value=int(handles), why=why)
    ids = [*handles]
    for id in ids:
        if not isinstance(id, int):
            raise InvalidTask(field="handles", value=id, why="submit, handle and task_handle return task handles")
    return ids


def _values(ids: Sequence[int], endings: "Mapping[int, TaskResult | Exception]", return_exceptions: bool) -> list[Any]:
    values: list[Any] = []
    for id in ids:
        try:
            values.append(value_of(endings[id]))
        except RunnerError as error:
            if not return_exceptions:
                raise
            values.append(error)
    return values


def wait_for_end(id: int, timeout: Delay | None) -> "TaskResult":
    """Wait until a task has finished in any final state, in a thread without an event loop.

    Raises:
        TimedOut: the task did not finish in time; see TaskHandle.result for the others.
    """
    ending = _endings([id], timeout, "result")[id]
    if isinstance(ending, Exception):
        raise ending
    return ending


def _endings(ids: Sequence[int], timeout: Delay | None, call: str) -> "Mapping[int, TaskResult | Exception]":
    if call == "result":
        refuse_event_loop("result()", "await wait(...)")
    refuse_event_loop(call)
    return follow(_waits(get_client(), ids, _seconds(timeout)), lambda wait: _await(*wait))


def _await(future: "Future[Any]", seconds: float | None) -> Mapping[int, Ending] | None:
    try:
        answer: Mapping[int, Ending] | None = future.result(seconds)
    except TimeoutError:
        future.cancel()
        return None
    return answer


async def endings_async(ids: Sequence[int], timeout: Delay | None) -> "Mapping[int, TaskResult | Exception]":
    """Wait until tasks have finished in any final state, on an event loop.

    Returns:
        The result of each task, or the error in its place.
    """
    return await follow_async(_waits(get_client(), ids, _seconds(timeout)), lambda wait: _await_async(*wait))


async def _await_async(future: "Future[Any]", seconds: float | None) -> Mapping[int, Ending] | None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            answer: Mapping[int, Ending] | None = await asyncio.wrap_future(future)
            return answer
    return None


def _waits(clients: Client, ids: Sequence[int], seconds: float | None) -> "Waits":
    """Yield each future to wait for, with the longest wait in seconds; receive its result, or None if it was late."""
    parts, began = defaultdict[Client, list[int]](list), time.monotonic()
    for id in ids:
        parts[clients.client_of(id)].append(id)
    endings: dict[int, TaskResult | Exception] = {}
    for client, part in parts.items():
        left = seconds if not endings or seconds is None else max(0.0, began + seconds - time.monotonic())
        endings |= yield from _waits_of(client, part, left)
    return endings


def _waits_of(client: Client, ids: Sequence[int], seconds: float | None) -> "Waits":
    yield client.opening(), OPENING
    endings = None
    if seconds != 0:
        endings = yield client.waiting.wait(ids), seconds
    if endings is None and (seconds == 0 or client.waiting.trouble is None):
        endings = yield client.waiting.wait(ids, until_finished=False), LAST_LOOK
    return _complete(client, ids, endings, seconds)


def _complete(
    client: Client, ids: Sequence[int], endings: Mapping[int, Ending] | None, seconds: float | None
) -> "Mapping[int, TaskResult | Exception]":
    """Replace missing endings by errors."""
    if endings is None:
        silent = DatabaseUnavailable(url=client.settings.url, why=f"it did not answer within {LAST_LOOK:g} seconds")
        raise client.waiting.trouble or silent
    waited = format_duration(timedelta(seconds=seconds or 0))
    return {id: endings[id] or TimedOut(id=int(id), waited=waited) for id in ids}


def kept(ending: "TaskResult") -> str | None:
    """The result of a finished task as JSON text; None if its handler returned nothing.

    Raises:
        TaskFailed: the task is dead.
        TaskCancelled: the task was cancelled.
        ResultNotKept: the task succeeded, but its result was not stored.
        ResultEncrypted: this process cannot decrypt the result.
    """
    task = {"id": ending.id, "handler": ending.handler}
    if ending.state is State.DEAD:
        error = {"error_type": ending.error_type, "message": ending.message, "traceback": ending.traceback}
        raise TaskFailed(**task, attempts=ending.attempt, reason=ending.error or ending.error_type, **error)
    if ending.state is State.CANCELLED:
        raise TaskCancelled(**task, reason=ending.error or "no reason was recorded")
    if ending.result is None and (ending.error or "").startswith(RESULT_NOT_KEPT):
        raise ResultNotKept(**task, reason=ending.error)
    if (sealed := read_sealed(ending.result)) is not None:
        raise ResultEncrypted(**task, shown=shown(sealed.codec, sealed.key))
    return ending.result


def value_of(ending: "TaskResult | Exception") -> Any:
    """Return the result as the handler's return type, if this program loads the handler.

    Raises:
        InvalidResult: the result does not match the annotation; see `kept` for the others.
    """
    if isinstance(ending, Exception):
        raise ending
    result, handler = kept(ending), REGISTRY.get(ending.handler)
    try:
        return handler.result_type.read(result) if handler else json.loads(result or "null")
    except ValueError as error:
        raise InvalidResult(id=ending.id, handler=ending.handler, why=str(error)) from None


def _seconds(timeout: Delay | None) -> float | None:
    return None if timeout is None else parse_duration(timeout).total_seconds()
