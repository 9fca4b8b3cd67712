"""Gathering: single submits that arrive while a transaction is under way go together in the next one."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from copy import copy
from typing import NamedTuple

from runner.errors import DatabaseRefused, InvalidInput, RunnerError
from runner.task import NewTask, Receipt

MOST = 1_000
"""Tasks in one transaction."""


class Waiting(NamedTuple):
    """A task, and who waits until it is durable."""

    task: NewTask
    told: Future[Receipt]


class Gathering:
    """Collects tasks from any threads and submits them, one transaction after the other.

    Nobody waits for company: what comes while nothing is under way is sent at once.

    Args:
        submit: submits tasks in one transaction, all of them or none.
        loop: on which it does so.
    """

    def __init__(
        self, submit: Callable[[Sequence[NewTask]], Awaitable[Receipt]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._submit = submit
        self._loop = loop
        self._lock = threading.Lock()
        self._queue: deque[Waiting] = deque()
        self._busy = False
        self._sender: asyncio.Task[None] | None = None

    def put(self, task: NewTask) -> Future[Receipt]:
        """Hand in a task from any thread; the result is there when its transaction has committed."""
        told: Future[Receipt] = Future()
        with self._lock:
            self._queue.append(Waiting(task, told))
            busy, self._busy = self._busy, True
        if not busy:
            self._loop.call_soon_threadsafe(self._begin)
        return told

    async def end(self) -> None:
        """Wait until all that was handed in has been submitted."""
        if self._sender is not None:
            await self._sender

    def _begin(self) -> None:
        self._sender = asyncio.ensure_future(self._send_all())

    async def _send_all(self) -> None:
        while batch := self._taken():
            await self._send(batch)

    def _taken(self) -> list[Waiting]:
        """Take what is to go next; when there is nothing, the next to come begins anew."""
        with self._lock:
            batch: list[Waiting] = []
            while self._queue and len(batch) < MOST:
                waiting = self._queue.popleft()
                if waiting.told.set_running_or_notify_cancel():  # else nobody wants it any more
                    batch.append(waiting)
            self._busy = bool(batch)
            return batch

    async def _send(self, batch: list[Waiting]) -> None:
        try:
            receipt = await self._submit([waiting.task for waiting in batch])
        except (DatabaseRefused, InvalidInput) as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:  # one of them is to blame, and the others are not to suffer for it
                half = len(batch) // 2
                await self._send(batch[:half])
                await self._send(batch[half:])
        except Exception as error:
            _fail(batch, error)
        except BaseException:
            for waiting in batch:
                waiting.told.set_exception(asyncio.CancelledError())
            raise
        else:
            for waiting, task_id in zip(batch, receipt.ids, strict=True):
                waiting.told.set_result(Receipt([task_id]))


def _fail(batch: list[Waiting], error: Exception) -> None:
    """Tell each an error of its own: raising one in many threads would mix up its traceback."""
    for waiting in batch:
        own = copy(error) if isinstance(error, RunnerError) else error
        own.__cause__ = error.__cause__
        waiting.told.set_exception(own)
