"""HandlerTransactions: the transactions of `ctx.transaction()`, on connections of their own."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa

from runner.db import connect
from runner.db.async_core import AsyncCoreConnection, AsyncCoreEngine, close_connection, dispose, shielded
from runner.db.connector import DEFAULT_CONNECTOR, Connector
from runner.db.errors import is_transient, outage_of_statement, translate
from runner.db.semaphore import FairSemaphore, InterruptibleLock, SemaphoreRequest, granted, granted_in_thread
from runner.errors import DatabaseUnavailable, TransactionUnavailable
from runner.model.duration import format_duration

log = logging.getLogger("runner.task")

SETTING = "transaction_connections"
"""The setting that limits concurrent transactions."""

MAX_WAIT = 60.0
"""Maximum seconds that a handler waits for a transaction; then its task returns to the queue."""

LOG_AFTER = 3.0
"""Seconds of waiting after which the log names the limit."""

LOG_INTERVAL = 30.0
"""Minimum seconds between two such log lines."""

STOP_CHECK_INTERVAL = 0.5
"""Seconds between two checks of a waiting thread whether its task must end."""

WAIT = "runner_wait"
"""The execution option of a connection with the wait that it ended."""

CONNECT_PAUSE = 0.25
"""Seconds between two attempts to connect."""

BUSY_SECONDS = 1.0
"""Maximum seconds that BEGIN waits for another process on SQLite; then other writers of this process go first."""


class Wait:
    """The wait of one handler for its transaction.

    Args:
        seconds: seconds until the task times out; None without a timeout.
        stopped: returns True once the task must end.
        on_outage: called with each error of the connection, and with its translation, before the handler receives it.
    """

    def __init__(
        self,
        task: int,
        seconds: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
        on_outage: Callable[[BaseException, DatabaseUnavailable], None] = lambda _error, _outage: None,
    ) -> None:
        self.task, self.on_outage = task, on_outage
        self.started = time.monotonic()
        self.end = self.started + (MAX_WAIT if seconds is None else min(MAX_WAIT, seconds))
        self.stopped = stopped
        self.logged = False

    @property
    def remaining(self) -> float:
        """Seconds until the wait ends."""
        return max(0.0, self.end - time.monotonic())

    @property
    def is_over(self) -> bool:
        """True if the handler must not wait any longer."""
        return not self.remaining or self.stopped()

    @property
    def until_log(self) -> float:
        """Seconds until the log mentions this wait, or until it ends."""
        seconds = self.remaining if self.logged else self.started + LOG_AFTER - time.monotonic()
        return max(0.0, min(seconds, self.remaining))


class HandlerTransactions:
    """Opens the transactions of handlers; coroutines and threads share one limit.

    On SQLite the limit is 1, because a file has one writer, and a transaction queues behind the runner's own writers.

    Args:
        url: URL for asyncio connections.
        sync_url: URL for blocking connections.
        synchronous: SQLite's durability, see Database.open.
        limit: maximum number of concurrent transactions.
        writer_lock: serializes the writers of this process; None if the database allows concurrent writers.
        name: the URL without its password, for messages.
        connector: connects to a server. The statements are those of users, and may take any time.
    """

    def __init__(
        self,
        url: sa.URL,
        sync_url: sa.URL,
        synchronous: str,
        limit: int,
        writer_lock: FairSemaphore | None,
        name: str,
        connector: Connector = DEFAULT_CONNECTOR,
    ) -> None:
        self._connector = connector._replace(limits=connector.limits._replace(transaction=None))
        self._url, self._sync_url, self._name = url, sync_url, name
        self._synchronous = synchronous
        self._writer_lock = writer_lock
        self._semaphore = FairSemaphore(limit if writer_lock is None else 1)
        self._numbers = list(range(self._semaphore.size, 0, -1))
        self._creation = InterruptibleLock()
        self._async_engine: AsyncCoreEngine | None = None
        self._sync_engine: sa.Engine | None = None
        self._next_log = 0.0

    @property
    def limit_reason(self) -> str:
        """The limit that makes handlers wait, as text."""
        if self._writer_lock is not None:
            return "SQLite allows one writing transaction at a time"
        return f"all {self._semaphore.size} connections for transactions of handlers are in use ({SETTING})"

    @asynccontextmanager
    async def opened(self, wait: Wait) -> AsyncIterator[tuple[AsyncCoreConnection, int]]:
        """Open a transaction; it commits unless the block raises.

        Yields:
            Its connection, and a number from 1 that no other open transaction of this process has.

        Raises:
            TransactionUnavailable: none became available before the end of `wait`.
        """
        request = SemaphoreRequest()
        try:
            self._semaphore.enter(request)
            while not await granted(request, wait.until_log):
                self._check_wait(wait)
            async with AsyncExitStack() as stack:
                yield await self._begin(stack, wait), stack.enter_context(self._number())
        finally:
            self._semaphore.release(request)

    @contextmanager
    def opened_in_thread(self, wait: Wait) -> Iterator[tuple[sa.Connection, int]]:
        """The blocking form of `opened`."""
        request = SemaphoreRequest()
        try:
            self._semaphore.enter(request)
            while not granted_in_thread(request, min(wait.until_log, STOP_CHECK_INTERVAL)):
                self._check_wait(wait)
            with ExitStack() as stack:
                yield self._begin_in_thread(stack, wait), stack.enter_context(self._number())
        finally:
            self._semaphore.release(request)

    @contextmanager
    def _number(self) -> Iterator[int]:
        """Take a number during a transaction; appending and removing are safe in threads."""
        number = self._numbers.pop()
        try:
            yield number
        finally:
            self._numbers.append(number)

    async def dispose(self) -> None:
        """Close the idle connections now, and each other one at the end of its transaction."""
        if self._async_engine is not None:
            await self._async_engine.dispose()
        if self._sync_engine is not None:
            dispose(self._sync_engine)

    async def _begin(self, stack: AsyncExitStack, wait: Wait) -> AsyncCoreConnection:
        """Connect and begin, shielded: a cancellation would leave SQLite's write lock on an abandoned connection."""
        while True:
            request = self._request_writer_lock(stack)
            while not await granted(request, wait.until_log):
                self._check_wait(wait)
            try:
                return await shielded(self._connect(stack, wait))
            except Exception as error:
                await stack.aclose()
                self._require_retry(error, wait)
            await asyncio.sleep(CONNECT_PAUSE)

    async def _connect(self, stack: AsyncExitStack, wait: Wait) -> AsyncCoreConnection:
        connection = await stack.enter_async_context(await self._asyncio_engine().connect())
        await stack.enter_async_context(connection.begin())
        connection.sync_connection.execution_options(**{WAIT: wait})
        return connection

    def _begin_in_thread(self, stack: ExitStack, wait: Wait) -> sa.Connection:
        while True:
            request = self._request_writer_lock(stack)
            while not granted_in_thread(request, min(wait.until_log, STOP_CHECK_INTERVAL)):
                self._check_wait(wait)
            try:
                connection = self._blocking_engine().connect()
                stack.callback(close_connection, connection)
                stack.enter_context(connection.begin())
                connection.execution_options(**{WAIT: wait})
            except Exception as error:
                stack.close()
                self._require_retry(error, wait)
            else:
                return connection
            time.sleep(CONNECT_PAUSE)

    def _request_writer_lock(self, stack: AsyncExitStack | ExitStack) -> SemaphoreRequest:
        request = SemaphoreRequest()
        if self._writer_lock is not None:
            stack.callback(partial(self._writer_lock.release, request))
            self._writer_lock.enter(request)
        return request

    def _check_wait(self, wait: Wait) -> None:
        if wait.is_over:
            raise self._unavailable(wait, self.limit_reason)
        now = time.monotonic()
        if wait.logged or now < wait.started + LOG_AFTER:
            return
        wait.logged = True
        if now >= self._next_log:
            self._next_log = now + LOG_INTERVAL
            waited = _duration(now - wait.started)
            log.warning("task %d has waited %s for its transaction: %s", wait.task, waited, self.limit_reason)

    def _require_retry(self, error: Exception, wait: Wait) -> None:
        """Raise unless another attempt may succeed and the wait is not over."""
        translated = translate(error, self._name)
        if not (is_transient(error) or isinstance(translated, DatabaseUnavailable)):
            raise error
        if wait.is_over:
            raise self._unavailable(wait, str(translated or error).rstrip(".")) from error

    def _unavailable(self, wait: Wait, why: str) -> TransactionUnavailable:
        waited = _duration(time.monotonic() - wait.started)
        return TransactionUnavailable(id=wait.task, waited=waited, why=why)

    def _asyncio_engine(self) -> AsyncCoreEngine:
        return self._async_engine or self._creation.call(self._create_asyncio_engine)

    def _create_asyncio_engine(self) -> AsyncCoreEngine:
        if self._async_engine is None:
            engine = AsyncCoreEngine.create(self._url, hide_parameters=True, **self._options(self._url))
            self._async_engine = engine.execution_options(**self._prepare(engine.sync_engine))
        return self._async_engine

    def _blocking_engine(self) -> sa.Engine:
        return self._sync_engine or self._creation.call(self._create_blocking_engine)

    def _create_blocking_engine(self) -> sa.Engine:
        if self._sync_engine is None:
            engine = sa.create_engine(self._sync_url, hide_parameters=True, **self._options(self._sync_url))
            self._sync_engine = engine.execution_options(**self._prepare(engine))
        return self._sync_engine

    def _report_outage(self, context: sa.engine.ExceptionContext) -> None:
        """Report an error of the connection in a transaction to its handler's attempt."""
        wait = None if context.connection is None else context.connection.get_execution_options().get(WAIT)
        if wait is not None:
            error = context.original_exception
            outage = outage_of_statement(error, self._name, is_broken=context.is_disconnect)
            if outage is not None:
                wait.on_outage(error, outage)

    def _options(self, url: sa.URL) -> dict[str, object]:
        return connect.options(url) | {"pool_size": self._semaphore.size, "max_overflow": 0}

    def _prepare(self, engine: sa.Engine) -> dict[str, Any]:
        """Prepare an engine, and return the options of its executions."""
        connect.prepare(engine, self._synchronous, self._connector)
        sa.event.listen(engine, "handle_error", self._report_outage)
        return connect.WRITING[engine.dialect.name] | {"busy_seconds": BUSY_SECONDS}  # PostgreSQL ignores it


def _duration(seconds: float) -> str:
    return format_duration(timedelta(seconds=round(seconds, 1)))
