"""Connections that stay open: for frequent single statements, and for short blocking transactions of any thread."""

import asyncio
import select
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import sqlalchemy as sa

from runner.db import connect
from runner.db.async_core import AsyncCoreConnection, AsyncCoreEngine
from runner.db.dialects import DIALECTS, Dialect
from runner.db.errors import lost_prepared, raise_translated, retries, retry_pause
from runner.db.filesystem import identity
from runner.db.schema import Tables
from runner.db.semaphore import FairSemaphore, granted_in_thread
from runner.db.statement import StatementFrame, Step, Steps, VerbRun, compiled_for

MOST = 6
"""Maximum number of connections for single statements. The engine keeps the others for transactions."""


class PooledConnection:
    """A connection of the pool, and the driver's own connection beneath it.

    Args:
        connection: checked out of SQLAlchemy's pool until it is closed.
        driver: the driver's connection.
    """

    __slots__ = ("connection", "driver")

    def __init__(self, connection: AsyncCoreConnection, driver: Any) -> None:
        self.connection = connection
        self.driver = driver


class StatementPool:
    """The connections for single statements of one engine.

    A checkout from SQLAlchemy's own pool, with its begin, commit and return, costs more than a statement for a hundred
    tasks.

    Args:
        engine: with the execution options of a single statement.
        dialect: the dialect of the database.
        prepares: True to prepare the statements where the session allows it.
    """

    def __init__(self, engine: AsyncCoreEngine, dialect: Dialect, *, prepares: bool) -> None:
        self._engine = engine
        self._dialect = dialect
        self._commits = not dialect.isolates_rows
        """True if statements need BEGIN and COMMIT; False if each commits by itself."""
        self._prepares = prepares
        self._idle: list[PooledConnection] = []
        self._limit = asyncio.Semaphore(MOST)
        self._closed = False

    @asynccontextmanager
    async def checkout(self, writes: bool = True) -> AsyncIterator[PooledConnection]:
        """Lend a connection for one transaction. A connection on which something failed is closed.

        Args:
            writes: False for a single statement that only reads and needs no BEGIN.
        """
        async with self._limit:
            pooled = self._idle.pop() if self._idle else await self._open()
            begins = writes and self._commits
            try:
                if begins:
                    await pooled.driver.execute("BEGIN IMMEDIATE")
                yield pooled
                if begins:
                    await pooled.driver.commit()
            except BaseException as error:
                if lost_prepared(error):  # a pooler that passed for a server
                    self._prepares = False
                    await self._close_idle()
                await self._discard(pooled)
                raise
            if self._closed:
                await _close(pooled)
            else:
                self._idle.append(pooled)

    async def close(self) -> None:
        """Close the idle connections now, and each other one when its transaction ends."""
        self._closed = True
        await self._close_idle()

    async def _discard(self, pooled: PooledConnection) -> None:
        try:
            if getattr(pooled.driver, "closed", False):
                await self._close_idle()  # the server closed this connection, so it has closed the others as well
        finally:
            await _close(pooled)

    async def _close_idle(self) -> None:
        while self._idle:
            await _close(self._idle.pop())

    async def _open(self) -> PooledConnection:
        connection = await self._engine.connect()
        try:
            raw = await connection.get_raw_connection()
            driver: Any = raw.driver_connection
            if self._commits and raw.info.pop("query_only", False):
                await driver.execute("PRAGMA query_only = OFF")  # set by an earlier reader
            if self._prepares:
                self._prepares = await self._dialect.keep_plans(driver)
        except BaseException:
            await connection.close()
            raise
        return PooledConnection(connection, driver)


async def _close(pooled: PooledConnection) -> None:
    # The engine may have a new pool by now, and a connection that returns to the old one would never be closed.
    try:
        await pooled.connection.invalidate()
    finally:
        await pooled.connection.close()


T = TypeVar("T")


class ThreadConnection(NamedTuple):
    """A connection of the driver.

    Args:
        driver: a `psycopg.Connection` or `sqlite3.Connection`, in autocommit mode.
        cursor: its cursor for all statements; a new one for each would cost a third of the CPU of a single submit.
        file: identity of the SQLite file; None for a server.
    """

    driver: Any
    cursor: Any
    file: tuple[int, int] | None

    def works(self, file: tuple[int, int] | None) -> bool:
        """Return False if the server has closed the connection, or if another file has taken the place of its file.

        Args:
            file: identity of the SQLite file now.
        """
        if self.file is not None:
            return self.file == file
        if self.driver.closed:
            return False
        # An idle server sends nothing until it closes the connection.
        readable = select.poll()
        readable.register(self.driver.fileno(), select.POLLIN)
        return not readable.poll(0)

    def close(self) -> None:
        """Close the connection in any state."""
        with suppress(Exception):
            self.driver.close()


class ThreadConnections:
    """Runs the steps of a verb in the thread of the caller, on a connection of the driver.

    An event loop and its asyncio driver cost a single submit three times the CPU of a blocking driver. The connections
    belong to no pool of SQLAlchemy, which would close the connections of the parent in a forked child.

    Args:
        url: URL for blocking connections.
        name: the URL without its password, for messages.
        synchronous: SQLite's durability, see Database.open.
        tables: tables of the installation.
        writer_lock: serializes the writers of this process; None if the database allows concurrent writers.
        prepares: prepare frequent statements, unless a pooler is in between.
    """

    def __init__(
        self,
        url: sa.URL,
        name: str,
        synchronous: str,
        tables: Tables,
        writer_lock: FairSemaphore | None,
        *,
        prepares: bool,
    ) -> None:
        self._url, self._name, self._synchronous, self._tables = url, name, synchronous, tables
        self._dialect = DIALECTS[url.get_backend_name()]
        self._path = Path(url.database or "").absolute() if writer_lock is not None else None
        self._readers = FairSemaphore(connect.THREAD_CONNECTIONS)
        self._semaphore = writer_lock or self._readers
        self._prepares = prepares
        self._creation = threading.Lock()
        self._engine: sa.Engine | None = None
        self._idle: list[ThreadConnection] = []  # appending and removing are safe in threads
        self._closed = False

    def run(self, verb: Callable[[StatementFrame], Steps[T]], *, single: bool = False, writes: bool = True) -> T:
        """Run the steps of a verb in a transaction; retry if a concurrent one made it fail.

        Args:
            verb: returns the steps.
            single: True for one statement, which commits by itself where the database allows that.
            writes: False for statements that read, each a snapshot of its own, and do not wait for writers.

        Raises:
            StoreError: an error of the database.
        """
        commits = not writes or (single and self._dialect.isolates_rows)
        options = {} if commits or single else self._dialect.unprepared
        attempt, end = 1, time.monotonic() + connect.BUSY_SECONDS
        while True:
            stage: Literal["connect", "statement", "commit"] = "connect"
            try:
                with self._checkout(writes) as cursor:
                    stage = "statement"
                    if not commits:
                        cursor.execute(self._dialect.begin, **options)
                    run = VerbRun(verb(self._frame()))
                    for step in run:
                        run.rows = _execute(cursor, options, step)
                    stage = "commit"
                    if not commits:
                        cursor.execute("COMMIT", **options)
            except Exception as error:
                if not retries(error, attempt, end):
                    raise_translated(error, self._name, stage)
            else:
                return run.result
            time.sleep(retry_pause(attempt))
            attempt += 1

    def inspect(self, function: Callable[[sa.Connection, Tables], T]) -> T:
        """Call a function with a connection that is opened for it.

        Raises:
            StoreError: an error of the database.
        """
        try:
            with self._get_engine().connect() as connection:
                return function(connection, self._tables)
        except Exception as error:
            raise_translated(error, self._name, "connect")

    def _frame(self) -> StatementFrame:
        return StatementFrame(self._tables, self._dialect, compiled_for(self._get_engine().dialect))

    def close(self) -> None:
        """Close the idle connections now, and each other one when its transaction ends."""
        self._closed = True
        self._close_idle()

    @contextmanager
    def _checkout(self, writes: bool) -> Iterator[Any]:
        """Lend a connection for one transaction. A connection on which something failed is closed."""
        semaphore = self._semaphore if writes else self._readers
        request = semaphore.request()
        try:
            granted_in_thread(request)
            connection = self._take() or self._open()
            try:
                yield connection.cursor
            except BaseException as error:
                if lost_prepared(error):  # a pooler that passed for a server
                    self._prepares = False
                    self._close_idle()
                connection.close()
                raise
            if self._closed:
                connection.close()
            else:
                self._idle.append(connection)
        finally:
            semaphore.release(request)

    def _take(self) -> ThreadConnection | None:
        """Take an idle connection that works."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.works(self._identity()):
                    return connection
                connection.close()
        return None

    def _open(self) -> ThreadConnection:
        pooled = self._get_engine().raw_connection()
        driver: Any = pooled.driver_connection
        pooled.detach()
        try:
            if self._prepares:
                self._prepares = self._dialect.keep_plans_in_thread(driver)
            return ThreadConnection(driver, driver.cursor(), self._identity())
        except BaseException:
            driver.close()
            raise

    def _identity(self) -> tuple[int, int] | None:
        return identity(self._path) if self._path is not None else None

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _get_engine(self) -> sa.Engine:
        with self._creation:
            if self._engine is None:
                arguments = connect.options(self._url)["connect_args"]
                options = {"connect_args": arguments, "poolclass": sa.NullPool, "isolation_level": "AUTOCOMMIT"}
                engine = sa.create_engine(self._url, hide_parameters=True, **options)
                connect.prepare(engine, self._synchronous)
                self._engine = engine
            return self._engine


def _execute(cursor: Any, options: Mapping[str, Any], step: Step) -> list[Any]:
    cursor.execute(step.prepared.sql, step.prepared.arguments(step.parameters), **options)
    return list(cursor.fetchall()) if cursor.description else []
