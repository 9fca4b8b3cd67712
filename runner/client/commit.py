"""Commits: submits in transactions of their own, which single submits can share."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from queue import SimpleQueue
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from runner.db.semaphore import InterruptibleLock
from runner.errors import DatabaseRefused, DatabaseUnavailable, InvalidInput, RunnerError, SubmitUncertain
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import NewTask, SubmitResult
from runner.text.sanitize import count_noun

if TYPE_CHECKING:
    from runner.db.database import Database
    from runner.db.statement import SingleInsert


T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

MOST_NAMED = 3
"""Maximum number of handlers in the filter of an error message."""


class Template:
    """A task whose submits differ only in their payload.

    Args:
        task: the task without its payload.
    """

    __slots__ = ("entry", "task")

    def __init__(self, task: NewTask) -> None:
        self.task = task
        self.entry: tuple[object, SingleInsert | None] = (None, None)
        """A client, and its statement for the task; one tuple, because several threads may replace it."""


async def submit_alone(database: "Database", tasks: Sequence[NewTask], *, notify: bool) -> SubmitResult:
    """Submit tasks in a transaction of their own.

    Args:
        notify: wake listening runners.

    Returns:
        The ids and the duplicates; the tasks are durable.

    Raises:
        SubmitUncertain: the connection broke during the commit; the tasks may exist.
        DatabaseUnavailable: the database cannot be reached; the tasks do not exist.
    """
    from runner.store.submit import submit_with_result  # importing SQLAlchemy takes 0.25 s

    try:
        return await database.write(submit_with_result, tasks, notify=notify)
    except DatabaseUnavailable as error:
        raise_explained(error, tasks)


def raise_explained(error: DatabaseUnavailable, tasks: Sequence[NewTask]) -> NoReturn:
    """Raise SubmitUncertain for a connection that broke during the commit, and any other error as it is."""
    from runner.db.errors import is_answered

    if error.stage != "commit" or is_answered(error.__cause__):
        raise error
    raise uncertain(error, tasks) from error.__cause__


def uncertain(error: DatabaseUnavailable, tasks: Sequence[NewTask]) -> SubmitUncertain:
    """Return the error of a submit that may have been committed.

    Args:
        error: the error of the connection, or an error for more tasks than these.
    """
    subject = "The task" if len(tasks) == 1 else f"All {count_noun(len(tasks), 'task')}, or none of them,"
    url, why = error.fields["url"], error.fields["why"]
    return SubmitUncertain(url=url, why=why, tasks=subject, search=_command(tasks), remedy=_remedy(tasks))


def _command(tasks: Sequence[NewTask]) -> str:
    """The shell command that lists the tasks if they exist."""
    handlers = list(dict.fromkeys(task.handler for task in tasks))
    terms = [Term("handler", Operator.EQ, handlers[0])] if len(handlers) == 1 else []
    if 1 < len(handlers) <= MOST_NAMED:
        terms = [Term("handler", Operator.IN, tuple(handlers))]
    if len(tasks) == 1 and tasks[0].unique_key is not None:
        terms.append(Term("unique", Operator.EQ, tasks[0].unique_key.text))
    elif len(tasks) == 1 and tasks[0].key is not None:
        terms.append(Term("key", Operator.EQ, tasks[0].key))
    return f"runner tasks {quote(str(Filter(tuple(terms))))}"


def _remedy(tasks: Sequence[NewTask]) -> str:
    if all(task.unique_key is not None for task in tasks):
        return "Or submit again: the unique key prevents a second task while the first one holds it"
    return "Submit again only if it is not there; with a unique key you could submit again without a search"


MOST = 1_000
"""Maximum number of tasks per transaction."""


def shares_commits(tasks: Sequence[NewTask]) -> bool:
    """Return True for a single task whose submit never waits for another transaction."""
    from runner.store.submit import takes_one_statement

    return len(tasks) == 1 and takes_one_statement(tasks)


class PendingSubmit(NamedTuple):
    """A task, and the future that resolves when the task is durable."""

    task: NewTask
    future: Future[SubmitResult]


class Coalescer:
    """Collects tasks from any threads and submits them, one transaction after the other.

    A task never waits for others: if no transaction is running, it is sent immediately.

    Args:
        submit: submits tasks in one transaction, all or none.
        loop: event loop on which to submit.
    """

    def __init__(
        self, submit: Callable[[Sequence[NewTask]], Awaitable[SubmitResult]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._submit = submit
        self._loop = loop
        self._queue: deque[PendingSubmit] = deque()
        self._busy = False  # set on the event loop alone
        self._sender: asyncio.Task[None] | None = None

    def put(self, task: NewTask) -> Future[SubmitResult]:
        """Queue a task from any thread; the future resolves when its transaction has committed."""
        future: Future[SubmitResult] = Future()
        self._queue.append(PendingSubmit(task, future))
        if not self._busy:
            self._loop.call_soon_threadsafe(self._begin)
        return future

    async def end(self) -> None:
        """Wait until all queued tasks are submitted."""
        self._begin()
        if self._sender is not None:
            await self._sender

    def _begin(self) -> None:
        if not self._busy:
            self._busy = True
            self._sender = asyncio.ensure_future(self._send_all())

    async def _send_all(self) -> None:
        while self._busy:
            while chunk := self._next_chunk():
                await self._send(chunk)
            self._busy = False
            self._busy = bool(self._queue)  # a thread may have queued a task before it could see that this sender ends

    def _next_chunk(self) -> list[PendingSubmit]:
        """Take the next tasks off the queue."""
        chunk: list[PendingSubmit] = []
        while self._queue and len(chunk) < MOST:
            pending = self._queue.popleft()
            if pending.future.set_running_or_notify_cancel():
                chunk.append(pending)
        return chunk

    async def _send(self, chunk: list[PendingSubmit]) -> None:
        try:
            result = await self._submit([pending.task for pending in chunk])
        except (DatabaseRefused, InvalidInput) as error:
            if len(chunk) == 1:
                _fail(chunk, error)
            else:  # one task is invalid; the others must not fail because of it
                half = len(chunk) // 2
                await self._send(chunk[:half])
                await self._send(chunk[half:])
        except Exception as error:
            _fail(chunk, error)
        except BaseException:
            for pending in chunk:
                pending.future.set_exception(asyncio.CancelledError())
            raise
        else:
            for pending, task_id in zip(chunk, result.ids, strict=True):
                pending.future.set_result(SubmitResult([task_id]))


def _fail(chunk: list[PendingSubmit], error: Exception) -> None:
    for pending in chunk:
        pending.future.set_exception(own_error(error, pending.task))


def own_error(error: E, task: NewTask) -> E:
    """Return an error for one of several callers: one error raised in several threads mixes up its traceback."""
    own: Any = copy(error) if isinstance(error, RunnerError) else error
    if isinstance(error, SubmitUncertain):
        own = uncertain(error, [task])
    own.__cause__ = error.__cause__
    result: E = own
    return result


class SubmitThreads:
    """Threads that submit for event loops, which a commit would block.

    A pool of the standard library takes twice the CPU, with its two futures per call.
    """

    MOST = 6
    """Threads: one per connection of runner.db.thread_connections."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = InterruptibleLock()
        self._unfinished = 0
        """Calls that wait or run."""

    def run(self, function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """Call a function in a thread.

        Returns:
            Its result on the running event loop. Cancelling the caller does not stop a call.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._lock.call(self._begin)
        self._calls.put((future, function, arguments))
        return future

    def _begin(self) -> None:
        self._unfinished += 1
        if self._unfinished > len(self._threads) < self.MOST:
            name = f"runner-submit-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()

    def _end(self) -> None:
        self._unfinished -= 1

    def close(self, seconds: float) -> None:
        """End the threads after the calls of before, and wait for them."""
        end = time.monotonic() + seconds
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            settle: Callable[[asyncio.Future[Any], Any], None] = _succeed
            try:
                value = function(*arguments)
            except BaseException as error:  # for the caller, who waits on its event loop
                settle, value = _reject, error
            self._lock.call(self._end)
            with suppress(RuntimeError):  # the event loop has ended
                future.get_loop().call_soon_threadsafe(settle, future, value)
            del call, future, arguments, value  # this thread may wait for long


def _succeed(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class GroupedSubmit(NamedTuple):
    """A submit that waits, and the future of its caller, with the id when the task is durable."""

    insert: "SingleInsert"
    payload: str
    future: "asyncio.Future[int]"


class GroupedSubmits:
    """Submits tasks of coroutines in a thread, one transaction after the other.

    A file syncs one commit at a time, so the submits that wait for it take part in the next one. A task never waits for
    others: if no transaction is running, it is sent immediately, by itself.

    Args:
        threads: has the thread.
        submit: submits tasks in one transaction, all or none, and returns their ids.
    """

    def __init__(
        self, threads: SubmitThreads, submit: "Callable[[Sequence[tuple[SingleInsert, str]]], list[int]]"
    ) -> None:
        self._threads, self._submit = threads, submit
        self._waiting: deque[GroupedSubmit] = deque()
        self._lock = InterruptibleLock()
        self._runs = False

    def put(self, insert: "SingleInsert", payload: str) -> "asyncio.Future[int]":
        """Submit a task of a coroutine. Cancelling the caller does not stop the submit."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._lock.call(self._add, GroupedSubmit(insert, payload, future)):
            self._threads.run(self._send_all)
        return future

    def _add(self, pending: GroupedSubmit) -> bool:
        """Add a submit; return True if no thread sends them."""
        self._waiting.append(pending)
        begins, self._runs = not self._runs, True
        return begins

    def _next(self) -> list[GroupedSubmit]:
        """Take the next submits; none ends the sending."""
        group = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
        self._runs = bool(group)
        return group

    def _send_all(self) -> None:
        while group := self._lock.call(self._next):
            self._send(group)

    def _send(self, group: list[GroupedSubmit]) -> None:
        results: list[int | BaseException]
        try:
            results = [*self._submit([(pending.insert, pending.payload) for pending in group])]
        except (DatabaseRefused, InvalidInput) as error:
            if len(group) > 1:  # nothing was written, and the others must not fail because of one
                for pending in group:
                    self._send([pending])
                return
            results = [error]
        except BaseException as error:  # for the callers, who wait on their event loops
            results = [own_error(error, pending.insert.task) for pending in group]
        _report(group, results)


def _report(group: Sequence[GroupedSubmit], results: Sequence[int | BaseException]) -> None:
    """Wake the callers, with one call for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[int], Any]]] = {}
    for pending, result in zip(group, results, strict=True):
        by_loop.setdefault(pending.future.get_loop(), []).append((pending.future, result))
    for loop, pairs in by_loop.items():
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(_resolve, pairs)


def _resolve(pairs: "Sequence[tuple[asyncio.Future[int], Any]]") -> None:
    for future, result in pairs:
        if not future.done():
            future.set_exception(result) if isinstance(result, BaseException) else future.set_result(result)
