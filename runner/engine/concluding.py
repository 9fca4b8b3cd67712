"""Concluding: what `ctx.transaction()` opens. The task is done when it commits, and not otherwise."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.engine.slots import Running
from runner.errors import AlreadyDone, FencedOut, TransactionEnded, TransactionOpen
from runner.outcome import Done
from runner.store.conclude import conclude
from runner.store.database import Database
from runner.store.move import Ending


class Concluding:
    """One transaction in which a handler writes and its task ends, for `async with` and for `with`.

    Args:
        database: that holds the tasks, and what the handler writes.
        holder: the runner's id.
        running: the task in hand.
        done: writes a result as JSON text, or says why it cannot be kept.
    """

    def __init__(self, database: Database, holder: int, running: Running, done: Callable[[Any], Done]) -> None:
        self._require_first(running)
        self.result: Any = None
        self._database = database
        self._holder = holder
        self._running = running
        self._done = done
        self._awaited: AbstractAsyncContextManager[AsyncConnection] | None = None
        self._blocking: AbstractContextManager[Connection] | None = None

    async def __aenter__(self) -> AsyncConnection:
        lent = self._lent()
        connection = await lent.__aenter__()
        self._awaited = lent
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._awaited is not None:
            await self._awaited.__aexit__(kind, error, trace)

    def __enter__(self) -> Connection:
        lent = self._lent_in_thread()
        connection = lent.__enter__()
        self._blocking = lent
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._blocking is not None:
            self._blocking.__exit__(kind, error, trace)

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[AsyncConnection]:
        with self._alone():
            async with self._database.lending() as tx:
                with self._kept_open(tx.connection.sync_connection):
                    yield tx.connection
                self._require(await tx.follow(conclude(tx, self._holder, self._ending())))
            self._running.concluded = True

    @contextmanager
    def _lent_in_thread(self) -> Iterator[Connection]:
        with self._alone():
            with self._database.lending_in_thread() as tx:
                with self._kept_open(tx.connection):
                    yield tx.connection
                self._require(tx.follow(conclude(tx, self._holder, self._ending())))
            self._running.concluded = True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second transaction beside the first: on SQLite each would wait for the other for ever."""
        self._require_first(self._running)
        self._running.concluding = True
        try:
            yield
        finally:
            self._running.concluding = False

    @contextmanager
    def _kept_open(self, connection: Connection | None) -> Iterator[None]:
        """Refuse that the handler ends the transaction: what it wrote would stand, and its task would run again."""
        ended = TransactionEnded(id=self._running.task.id)

        def refuse(asked: Connection) -> None:
            asked.connection.rollback()  # SQLAlchemy takes it for ended now, and would return it with its locks
            raise ended

        event.listen(connection, "commit", refuse)
        try:
            yield
        finally:
            event.remove(connection, "commit", refuse)
        if connection is None or not connection.in_transaction():
            raise ended

    def _ending(self) -> Ending:
        task = self._running.task
        done = self._done(self.result)
        return Ending(task.id, task.fence, time.monotonic() - self._running.started, done.result, done.why)

    @staticmethod
    def _require_first(running: Running) -> None:
        if running.concluded:
            raise AlreadyDone(id=running.task.id)
        if running.concluding:
            raise TransactionOpen(id=running.task.id)

    def _require(self, concluded: bool) -> None:
        if not concluded:
            raise FencedOut(id=self._running.task.id, fence=self._running.task.fence)
