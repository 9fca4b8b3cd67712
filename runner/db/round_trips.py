"""RoundTrips: the statements of concurrent steps, which travel to a distant server together."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import psycopg
from sqlalchemy.exc import PendingRollbackError

from runner.db.server_watch import answer_within, limit_of_deadline

T = TypeVar("T")

Send = Callable[[], Awaitable[Any]]
"""Sends a statement: `execute` of a cursor with its arguments."""


class QueuedStatement(NamedTuple):
    """A statement that has not been sent.

    Args:
        cursor: receives the rows.
        answer: completes when the rows are at the cursor; None if no step waits for them.
    """

    send: Send
    cursor: psycopg.AsyncCursor[Any]
    answer: asyncio.Future[None] | None


class RoundTrips:
    """The statements of one reading transaction.

    A step is a coroutine that executes statements one after the other. When each step waits for a statement, all these
    statements are sent in one pipeline: the time of a transaction depends on the longest step, and not on the number of
    statements.

    Args:
        connection: executes nothing else meanwhile.
        on_answer: called after each round trip with its seconds.
    """

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], on_answer: Callable[[float], object] | None = None
    ) -> None:
        self._connection = connection
        self._on_answer = on_answer
        self._queue: list[QueuedStatement] = []
        self.deadline: float | None = None
        """Maximum seconds of a statement, which the server knows; None for no limit."""
        self.is_sending = False
        """True from the first statement of a round trip until its answer."""
        self._after = ""
        self._steps = 1
        self._waiting = 0
        self._is_cancelled = False
        self._error: Exception | None = None
        self._results: dict[object, asyncio.Future[Any]] = {}
        self._sharers: Counter[object] = Counter()

    def defer(self, sql: str) -> None:
        """Execute a statement before the next one, without a round trip of its own; its rows are dropped."""
        cursor = psycopg.AsyncCursor(self._connection)
        self._queue.append(QueuedStatement(lambda: psycopg.AsyncCursor.execute(cursor, sql.encode()), cursor, None))

    def surround(self, before: str, after: str) -> None:
        """Execute a statement before the next one, as `defer`, and another one directly after it."""
        self.defer(before)
        self._after = after

    async def execute(self, send: Send, cursor: psycopg.AsyncCursor[Any]) -> None:
        """Execute a statement, and return when its rows are at the cursor."""
        if self._error is not None:  # The server would only report that the transaction has failed.
            raise self._error
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(QueuedStatement(send, cursor, answer))
        after, self._after = self._after, ""
        if after:
            self.defer(after)
        self._waiting += 1
        await self._send_if_all_wait()
        await answer

    async def gather(self, steps: tuple[Awaitable[Any], ...]) -> list[Any]:
        """Run steps concurrently.

        Returns:
            Their results, in the order of the steps.

        Raises:
            Exception: the error of the first step that failed, after the end of all of them; not that of a step that
                found the transaction failed already.
        """
        if not steps:
            return []
        self._steps += len(steps) - 1
        left = len(steps)

        async def run(step: Awaitable[Any]) -> Any:
            nonlocal left
            try:
                return await step
            except asyncio.CancelledError:
                self._is_cancelled = True
                raise
            finally:
                left -= 1
                if left:  # The last step hands its place over to the caller, which goes on.
                    self._steps -= 1
                    await self._send_if_all_wait()

        results = await asyncio.gather(*map(run, steps), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise next((error for error in errors if not isinstance(error, PendingRollbackError)), errors[0])
        return results

    async def once(self, key: object, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step for which several others wait, and return its result to each."""
        result: asyncio.Future[T] | None = self._results.get(key)
        if result is None:
            result = self._results[key] = asyncio.get_running_loop().create_future()
            try:
                result.set_result(await step())
            except BaseException as error:
                result.set_exception(error)
                result.exception()  # retrieved, in case that no other step waits
                raise
            finally:
                self._steps += self._sharers.pop(key, 0)
        elif not result.done():
            self._steps -= 1
            self._sharers[key] += 1
            await self._send_if_all_wait()
        return await result

    async def _send_if_all_wait(self) -> None:
        if self._waiting < self._steps or not self._waiting or self._is_cancelled:
            return
        queue, self._queue, self._waiting = self._queue, [], 0
        begin = time.perf_counter()
        error = await self._send(queue)
        if error is not None and self._steps > 1:  # A single step may go on after a savepoint.
            self._error = error
        if error is None and self._on_answer is not None:
            self._on_answer(time.perf_counter() - begin)
        for each in queue:
            if each.answer is None or each.answer.done():
                continue
            if error is None or each.cursor.pgresult is not None:
                each.answer.set_result(None)
            else:
                each.answer.set_exception(error)

    async def _send(self, queue: list[QueuedStatement]) -> Exception | None:
        """Send statements in one pipeline, and wait for all answers."""
        self.is_sending = True
        awaited = sum(each.answer is not None for each in queue)
        try:
            with nullcontext() if self.deadline is None else answer_within(limit_of_deadline(self.deadline, awaited)):
                await self._pipelined(queue)
        except Exception as error:
            self.is_sending = False
            return error
        except BaseException:
            await self._connection.close()
            raise
        self.is_sending = False
        return None

    async def _pipelined(self, queue: list[QueuedStatement]) -> None:
        # Not as a context, which would wait for the answers when its task is cancelled.
        pipeline = self._connection.pipeline() if len(queue) > 1 and psycopg.Pipeline.is_supported() else nullcontext()
        await pipeline.__aenter__()
        try:
            for each in queue:
                await each.send()
        except Exception as error:
            await pipeline.__aexit__(type(error), error, error.__traceback__)
            raise
        await pipeline.__aexit__(None, None, None)
