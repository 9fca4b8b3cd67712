"""HandlerTransaction: the transaction that `ctx.transaction()` opens. Its commit also completes the task."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event

from runner.db import async_core
from runner.db.database import Database
from runner.db.handler_transactions import Wait
from runner.db.statement import Steps
from runner.db.transaction import BlockingTransaction, Transaction
from runner.engine.slots import Running
from runner.errors import AlreadyDone, FencedOut, TransactionEnded, TransactionOpen
from runner.model.outcome import Done
from runner.store.history import FinishedTask
from runner.store.settle import complete_steps

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class HandlerTransaction:
    """A transaction that contains the writes of a handler and the success of its task, for `async with` and `with`.

    Args:
        database: the database of the task and of the handler's writes.
        runner_id: id of the runner.
        running: the task.
        done: converts a result to an outcome.
    """

    def __init__(self, database: Database, runner_id: int, running: Running, done: Callable[[Any], Done]) -> None:
        self._require_first(running)
        self.result: Any = None
        self._database = database
        self._runner_id = runner_id
        self._running = running
        self._done = done
        self._async_context: AbstractAsyncContextManager[AsyncConnection] | None = None
        self._sync_context: AbstractContextManager[Connection] | None = None

    async def __aenter__(self) -> "AsyncConnection":
        context = self._open()
        connection = await context.__aenter__()
        self._async_context = context
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._async_context is not None:
            await self._async_context.__aexit__(kind, error, trace)

    def __enter__(self) -> Connection:
        context = self._open_blocking()
        connection = context.__enter__()
        self._sync_context = context
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sync_context is not None:
            self._sync_context.__exit__(kind, error, trace)

    @asynccontextmanager
    async def _open(self) -> "AsyncIterator[AsyncConnection]":
        with self._exclusive():
            await async_core.load()  # before the transaction, whose locks others wait for
            async with self._database.for_handler(self._wait()) as tx:
                self._running.waits_for = ""
                with self._forbid_commit(tx.connection.sync_connection):
                    yield tx.connection.for_application()
                self._require_accepted(await tx.follow(self._complete(tx)))
            self._running.done_in_tx = True

    @contextmanager
    def _open_blocking(self) -> Iterator[Connection]:
        with self._exclusive():
            with self._database.for_handler_in_thread(self._wait()) as tx:
                self._running.waits_for = ""
                with self._forbid_commit(tx.connection):
                    yield tx.connection
                self._require_accepted(tx.follow(self._complete(tx)))
            self._running.done_in_tx = True

    def _wait(self) -> Wait:
        """Return the wait limit. `waits_for` remains set if the wait fails, so that no attempt is counted."""
        running = self._running
        running.waits_for = self._database.limit_reason
        seconds = None if running.deadline is None else running.deadline - time.monotonic()
        return Wait(running.task.id, seconds, lambda: running.stop is not None and running.stop.is_set())

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Refuse a second transaction in parallel to the first: on SQLite each would wait for the other."""
        self._require_first(self._running)
        self._running.in_tx = True
        try:
            yield
        finally:
            self._running.in_tx = False

    @contextmanager
    def _forbid_commit(self, connection: Connection | None) -> Iterator[None]:
        """Refuse a commit by the handler: its writes would persist, and its task would run again."""
        error = TransactionEnded(id=self._running.task.id)

        def refuse(target: Connection) -> None:
            target.connection.rollback()  # SQLAlchemy considers it ended and would pool it with its locks
            raise error

        event.listen(connection, "commit", refuse)
        try:
            yield
        finally:
            event.remove(connection, "commit", refuse)
        if connection is None or not connection.in_transaction():
            raise error

    def _complete(self, tx: Transaction | BlockingTransaction) -> Steps[bool]:
        # Two transactions that end at the same time must not wait for each other's row of the statistics.
        return complete_steps(tx, self._runner_id, self._finished_task(), part=tx.number)

    def _finished_task(self) -> FinishedTask:
        task = self._running.task
        done = self._done(self.result)
        return FinishedTask(task.id, task.fence, time.monotonic() - self._running.started, done.result, done.why)

    @staticmethod
    def _require_first(running: Running) -> None:
        if running.done_in_tx:
            raise AlreadyDone(id=running.task.id)
        if running.in_tx:
            raise TransactionOpen(id=running.task.id)

    def _require_accepted(self, accepted: bool) -> None:
        if not accepted:
            raise FencedOut(id=self._running.task.id, fence=self._running.task.fence)
