"""Grouped submits: single submits of coroutines to a file, where those that wait together share one commit."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.client.commit import MOST, SubmitThreads, own_error
from runner.db.semaphore import InterruptibleLock
from runner.errors import DatabaseRefused, InvalidInput

if TYPE_CHECKING:
    from runner.db.statement import SingleInsert


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
