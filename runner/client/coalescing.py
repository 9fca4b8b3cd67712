"""Coalescing: single submits that arrive during a transaction share the next one."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from copy import copy
from typing import NamedTuple

from runner.client.commit import uncertain
from runner.errors import DatabaseRefused, InvalidInput, RunnerError, SubmitUncertain
from runner.model.task import NewTask, SubmitResult

MOST = 1_000
"""Maximum number of tasks per transaction."""


def shares_commits(tasks: Sequence[NewTask]) -> bool:
    """Return True for a single task that depends on no other row."""
    return len(tasks) == 1 and tasks[0].independent


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
        self._lock = threading.Lock()
        self._queue: deque[PendingSubmit] = deque()
        self._busy = False
        self._sender: asyncio.Task[None] | None = None

    def put(self, task: NewTask) -> Future[SubmitResult]:
        """Queue a task from any thread; the future resolves when its transaction has committed."""
        future: Future[SubmitResult] = Future()
        with self._lock:
            self._queue.append(PendingSubmit(task, future))
            busy, self._busy = self._busy, True
        if not busy:
            self._loop.call_soon_threadsafe(self._begin)
        return future

    async def end(self) -> None:
        """Wait until all queued tasks are submitted."""
        if self._sender is not None:
            await self._sender

    def _begin(self) -> None:
        self._sender = asyncio.ensure_future(self._send_all())

    async def _send_all(self) -> None:
        while chunk := self._next_chunk():
            await self._send(chunk)

    def _next_chunk(self) -> list[PendingSubmit]:
        """Take the next tasks off the queue. An empty queue ends the sender; the next task starts it again."""
        with self._lock:
            chunk: list[PendingSubmit] = []
            while self._queue and len(chunk) < MOST:
                pending = self._queue.popleft()
                if pending.future.set_running_or_notify_cancel():
                    chunk.append(pending)
            self._busy = bool(chunk)
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
    """Give each caller its own error, because raising one error in several threads mixes up its traceback."""
    for pending in chunk:
        own = copy(error) if isinstance(error, RunnerError) else error
        if isinstance(error, SubmitUncertain):
            own = uncertain(error, [pending.task])
        own.__cause__ = error.__cause__
        pending.future.set_exception(own)
