"""HandlerTransactions: the connections of `ctx.transaction()`, apart from the pool of the runner itself."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import sqlalchemy as sa

from runner.db import connect
from runner.db.async_core import AsyncCoreConnection, AsyncCoreEngine
from runner.db.errors import is_transient, translate
from runner.db.gate import Gate, admission, admission_in_thread
from runner.db.shield import shielded
from runner.errors import DatabaseUnavailable, TransactionUnavailable
from runner.model.duration import format_duration

if TYPE_CHECKING:
    from concurrent.futures import Future

log = logging.getLogger("runner.task")

SETTING = "transaction_connections"

LONGEST_WAIT = 60.0
"""Seconds that a handler waits for a transaction before its task returns to the queue."""

NOTICE_AFTER = 3.0
"""Seconds of waiting after which the log names the limit."""

NOTICE_EVERY = 30.0
"""Seconds between two such lines."""

STOP_CHECK = 0.5
"""Seconds between two looks of a waiting thread at its task's stop event."""

CONNECT_PAUSE = 0.25
"""Seconds between two attempts to connect."""

BUSY_SECONDS = 1.0
"""How long one attempt to begin on SQLite waits for another process; then the other writers here have their turn."""


class Wait:
    """The patience of one handler that waits for its transaction.

    Args:
        task: the task's id.
        seconds: until the task's time is up; None when it has no time-out.
        stopped: returns True once the task must end.
    """

    def __init__(self, task: int, seconds: float | None = None, stopped: Callable[[], bool] = lambda: False) -> None:
        self.task = task
        self.started = time.monotonic()
        self.end = self.started + (LONGEST_WAIT if seconds is None else min(LONGEST_WAIT, seconds))
        self.stopped = stopped
        self.noticed = False

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.end - time.monotonic())

    @property
    def over(self) -> bool:
        """True when the handler gets no transaction any more."""
        return not self.left or self.stopped()

    @property
    def until_notice(self) -> float:
        """Seconds until the log mentions this wait, or until it is over."""
        notice = self.left if self.noticed else self.started + NOTICE_AFTER - time.monotonic()
        return max(0.0, min(notice, self.left))


class HandlerTransactions:
    """Opens the transactions of handlers; coroutines and threads share one limit.

    On SQLite the limit is one, since a file has one writer, and each transaction takes its turn among the runner's own.

    Args:
        url: for connections that are awaited.
        sync_url: for connections that block.
        synchronous: SQLite's durability, see Database.open.
        limit: transactions that are open at the same time.
        turn: of the writers of this process; None where writers do not exclude each other.
        name: the database without its password, for messages.
    """

    def __init__(
        self, url: sa.URL, sync_url: sa.URL, synchronous: str, limit: int, turn: Gate | None, name: str
    ) -> None:
        self._url, self._sync_url, self._name = url, sync_url, name
        self._synchronous = synchronous
        self._turn = turn
        self._gate = Gate(limit if turn is None else 1)
        self._creation = threading.Lock()
        self._async_engine: AsyncCoreEngine | None = None
        self._sync_engine: sa.Engine | None = None
        self._next_notice = 0.0

    @property
    def obstacle(self) -> str:
        """Why a handler has to wait, for people."""
        if self._turn is not None:
            return "one transaction at a time can write to a SQLite file"
        return f"all {self._gate.size} connections for transactions of handlers are in use ({SETTING})"

    @asynccontextmanager
    async def opened(self, wait: Wait) -> AsyncIterator[AsyncCoreConnection]:
        """Open a transaction; it commits unless an exception leaves the block.

        Raises:
            TransactionUnavailable: when there is none before `wait` is over.
        """
        place = self._gate.join()
        try:
            while not await admission(place, wait.until_notice):
                self._still_waiting(wait)
            async with AsyncExitStack() as stack:
                yield await self._begun(stack, wait)
        finally:
            self._gate.leave(place)

    @contextmanager
    def opened_in_thread(self, wait: Wait) -> Iterator[sa.Connection]:
        """Do as `opened` in a thread that may block."""
        place = self._gate.join()
        try:
            while not admission_in_thread(place, min(wait.until_notice, STOP_CHECK)):
                self._still_waiting(wait)
            with ExitStack() as stack:
                yield self._begun_in_thread(stack, wait)
        finally:
            self._gate.leave(place)

    async def dispose(self) -> None:
        """Close all connections that are not in use."""
        if self._async_engine is not None:
            await self._async_engine.dispose()
        if self._sync_engine is not None:
            self._sync_engine.dispose()

    async def _begun(self, stack: AsyncExitStack, wait: Wait) -> AsyncCoreConnection:
        """Connect and begin; a cancel in the middle would leave SQLite's write lock with an abandoned connection."""
        while True:
            place = self._take_place(stack)
            while place is not None and not await admission(place, wait.until_notice):
                self._still_waiting(wait)
            try:
                return await shielded(self._connected(stack))
            except Exception as error:
                await stack.aclose()
                self._require_patience(error, wait)
            await asyncio.sleep(CONNECT_PAUSE)

    async def _connected(self, stack: AsyncExitStack) -> AsyncCoreConnection:
        connection = await stack.enter_async_context(await self._awaited().connect())
        await stack.enter_async_context(connection.begin())
        return connection

    def _begun_in_thread(self, stack: ExitStack, wait: Wait) -> sa.Connection:
        while True:
            place = self._take_place(stack)
            while place is not None and not admission_in_thread(place, min(wait.until_notice, STOP_CHECK)):
                self._still_waiting(wait)
            try:
                connection = stack.enter_context(self._blocking().connect())
                stack.enter_context(connection.begin())
            except Exception as error:
                stack.close()
                self._require_patience(error, wait)
            else:
                return connection
            time.sleep(CONNECT_PAUSE)

    def _take_place(self, stack: AsyncExitStack | ExitStack) -> "Future[None] | None":
        if self._turn is None:
            return None
        place = self._turn.join()
        stack.callback(partial(self._turn.leave, place))
        return place

    def _still_waiting(self, wait: Wait) -> None:
        if wait.over:
            raise self._unavailable(wait, self.obstacle)
        now = time.monotonic()
        if wait.noticed or now < wait.started + NOTICE_AFTER:
            return
        wait.noticed = True
        if now >= self._next_notice:
            self._next_notice = now + NOTICE_EVERY
            waited = _duration(now - wait.started)
            log.warning("task %d has waited %s for its transaction: %s", wait.task, waited, self.obstacle)

    def _require_patience(self, error: Exception, wait: Wait) -> None:
        """Raise the error, unless another attempt to connect or to begin may help and there is time for it."""
        known = translate(error, self._name)
        if not (is_transient(error) or isinstance(known, DatabaseUnavailable)):
            raise error
        if wait.over:
            raise self._unavailable(wait, str(known or error).rstrip(".")) from error

    def _unavailable(self, wait: Wait, why: str) -> TransactionUnavailable:
        waited = _duration(time.monotonic() - wait.started)
        return TransactionUnavailable(id=wait.task, waited=waited, why=why)

    def _awaited(self) -> AsyncCoreEngine:
        with self._creation:
            if self._async_engine is None:
                engine = AsyncCoreEngine.create(self._url, hide_parameters=True, **self._options(self._url))
                connect.prepare(engine.sync_engine, self._synchronous)
                self._async_engine = engine.execution_options(**connect.WRITING[engine.dialect.name])
            return self._async_engine

    def _blocking(self) -> sa.Engine:
        with self._creation:
            if self._sync_engine is None:
                engine = sa.create_engine(self._sync_url, hide_parameters=True, **self._options(self._sync_url))
                connect.prepare(engine, self._synchronous)
                self._sync_engine = engine.execution_options(**connect.WRITING[engine.dialect.name])
            return self._sync_engine

    def _options(self, url: sa.URL) -> dict[str, object]:
        chosen = connect.options(url) | {"pool_size": self._gate.size, "max_overflow": 0}
        return chosen if self._turn is None else chosen | {"connect_args": {"timeout": BUSY_SECONDS}}


def _duration(seconds: float) -> str:
    return format_duration(timedelta(seconds=round(seconds, 1)))
