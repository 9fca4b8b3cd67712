"""AsyncCoreEngine: awaitable connections of a SQLAlchemy engine, without the ORM.

`sqlalchemy.ext.asyncio` imports the ORM, whose import takes longer than a short command runs. This module awaits
SQLAlchemy Core as that package does: in a greenlet, by `sqlalchemy.util.greenlet_spawn`. A short transaction completes
before a cancellation reaches its caller.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.util import greenlet_spawn

from runner.db.dialects import Dialect
from runner.db.errors import lost_prepared
from runner.db.file_identity import OpenFiles

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

P = ParamSpec("P")
T = TypeVar("T")

DRIVERS = {"postgresql": "postgresql+runner_async", "sqlite": "sqlite+aiosqlite"}
"""SQLAlchemy's names of the drivers that can be awaited, by backend."""

sa.dialects.registry.register("postgresql.runner_async", "runner.db.server_dialect", "ServerDialect")


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end even if the caller is cancelled, then deliver the cancellation.

    A coroutine that is cancelled in the middle of a statement would leave the connection, and on SQLite the write
    lock, in an unknown state.

    Args:
        work: a short coroutine, such as one transaction.

    Returns:
        The result of `work`.

    Raises:
        asyncio.CancelledError: after the end of `work`, if the caller was cancelled.
    """
    loop = asyncio.get_running_loop()
    result = _Result(loop=loop)
    running = loop.create_task(_complete(work, result))
    running.add_done_callback(partial(_end_unstarted, work, result))
    value: T = await result
    return value


class _Result(asyncio.Future[Any]):
    """The result of a shielded coroutine. `asyncio.shield` takes one more turn of the event loop for it."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - the method of a future
        """Refuse: the waiting task is cancelled when the result is there."""
        return False


async def _complete(work: Coroutine[Any, Any, Any], result: _Result) -> None:
    try:
        value = await work
    except BaseException as error:
        result.set_exception(error)
    else:
        result.set_result(value)
    finally:
        del result  # the error refers to this frame


def _end_unstarted(work: Coroutine[Any, Any, Any], result: _Result, _: object) -> None:
    """End the wait for a coroutine whose task was cancelled before its first step."""
    if not result.done():
        work.close()
        result.set_exception(asyncio.CancelledError())


class AsyncCoreEngine:
    """The connection pool of one database, for coroutines.

    Args:
        sync_engine: an engine whose driver can be awaited; event listeners are registered on it.
    """

    __slots__ = ("dialect", "sync_engine", "url")

    def __init__(self, sync_engine: sa.Engine) -> None:
        self.sync_engine = sync_engine
        self.dialect = sync_engine.dialect
        self.url = sync_engine.url

    @classmethod
    def create(cls, url: sa.URL, **options: Any) -> Self:
        """Create an engine without connecting.

        Args:
            url: the database; the driver of the URL is replaced by the one that can be awaited.
            **options: of `sqlalchemy.create_engine`.
        """
        if url.get_backend_name() == "sqlite":
            options["connect_args"] = {**options.get("connect_args", {}), "async_creator_fn": _open_sqlite}
        return cls(sa.create_engine(url.set(drivername=DRIVERS[url.get_backend_name()]), **options))

    def execution_options(self, **options: Any) -> Self:
        """Return an engine with the same pool whose connections have these execution options."""
        return type(self)(self.sync_engine.execution_options(**options))

    async def connect(self) -> "AsyncCoreConnection":
        """Take a connection from the pool. The caller closes it, by `async with` for example."""
        return AsyncCoreConnection(await greenlet_spawn(self.sync_engine.connect))

    async def dispose(self) -> None:
        """Close the idle connections now, and each other one at the end of its use."""
        await greenlet_spawn(dispose, self.sync_engine)


async def _open_sqlite(*arguments: Any, **options: Any) -> Any:
    """Open a connection of aiosqlite as SQLAlchemy does. If that fails, wait for the end of its thread.

    The thread reports its end to the event loop. A short program has closed the loop by then, and prints a traceback.
    """
    import aiosqlite

    connection: Any = aiosqlite.connect(*arguments, **options)
    thread = connection if isinstance(connection, threading.Thread) else connection._thread  # noqa: SLF001 - since 0.22
    thread.daemon = True
    try:
        return await connection
    except Exception:
        thread.join()
        raise


class AsyncCoreConnection:
    """A connection, for coroutines; `async with` closes it.

    Args:
        sync_connection: the connection, whose methods only `run_sync` may call.
    """

    __slots__ = ("dialect", "sync_connection")

    def __init__(self, sync_connection: sa.Connection) -> None:
        self.sync_connection = sync_connection
        self.dialect = sync_connection.dialect

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await shielded(self.close())

    def begin(self) -> "AsyncCoreTransaction":
        """Make a transaction; `async with` begins it."""
        return AsyncCoreTransaction(self.sync_connection.begin)

    def begin_nested(self) -> "AsyncCoreTransaction":
        """Make a savepoint; `async with` sets it."""
        return AsyncCoreTransaction(self.sync_connection.begin_nested)

    async def execute(self, statement: sa.Executable, parameters: Any = None) -> sa.CursorResult[*tuple[Any, ...]]:
        """Execute a statement and buffer its rows."""
        return await greenlet_spawn(self.sync_connection.execute, statement, parameters)

    async def scalar(self, statement: sa.Executable, parameters: Any = None) -> Any:
        """Execute a statement and return the first column of its first row, or None."""
        return (await self.execute(statement, parameters)).scalar()

    async def run_sync(
        self, function: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function with the connection; it may block on the database without blocking the event loop."""
        return await greenlet_spawn(partial(function, self.sync_connection, *args, **kwargs))

    async def get_raw_connection(self) -> sa.PoolProxiedConnection:
        """Return the pool's connection, whose `driver_connection` is the driver's."""
        return await greenlet_spawn(getattr, self.sync_connection, "connection")

    async def invalidate(self) -> None:
        """Discard the driver's connection, which failed."""
        await greenlet_spawn(self.sync_connection.invalidate)

    async def close(self) -> None:
        """Roll back an open transaction and return the connection to the pool, or discard a closed one."""
        await greenlet_spawn(close_connection, self.sync_connection)

    def for_application(self) -> "AsyncConnection":
        """Return the same connection as SQLAlchemy's AsyncConnection, which handlers know; call `load` before."""
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

        return AsyncConnection(AsyncEngine(self.sync_connection.engine), self.sync_connection)


async def load() -> None:
    """Import SQLAlchemy's AsyncConnection with the ORM, in a thread: that takes 0.1 s, and would stop the event loop.

    A call returns immediately after the first one has ended.
    """
    global _loaded  # noqa: PLW0603 - sys.modules contains a module before its import has ended
    if not _loaded:
        await asyncio.to_thread(import_module, "sqlalchemy.ext.asyncio")
        _loaded = True


_loaded = False


def close_connection(connection: sa.Connection) -> None:
    """Return a connection to its pool.

    SQLAlchemy resets the isolation level first. On a connection that the server closed that raises an error, and the
    pool never gets its place back.
    """
    invalidate_closed(connection)
    connection.close()


def dispose(engine: sa.Engine) -> None:
    """Close the idle connections of an engine now, and each other one when it returns to its pool.

    The engine has another pool then, so nothing would close those that return to the old one later.
    """
    sa.event.listen(engine.pool, "checkin", lambda _, record: record.invalidate())
    engine.dispose()


def invalidate_closed(connection: sa.Connection) -> None:
    """Discard a connection that was closed beneath SQLAlchemy, whose rollback would hide the first error."""
    if not (connection.closed or connection.invalidated):
        driver = connection.connection.driver_connection
        if driver is not None and getattr(driver, "closed", False):
            connection.invalidate()


class AsyncCoreTransaction:
    """A transaction or a savepoint, for `async with`: it commits, and rolls back on an exception."""

    __slots__ = ("_begin", "_transaction")

    def __init__(self, begin: Callable[[], sa.Transaction]) -> None:
        self._begin = begin

    async def __aenter__(self) -> Self:
        self._transaction = await greenlet_spawn(self._begin)
        self._transaction.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await greenlet_spawn(invalidate_closed, self._transaction.connection)
        await greenlet_spawn(self._transaction.__exit__, kind, error, trace)

    async def rollback(self) -> None:
        """Roll back before the end of the block."""
        await greenlet_spawn(self._transaction.rollback)


MOST = 6
"""Maximum number of connections for single statements. The engine keeps the others for transactions."""


class PooledConnection:
    """A connection of the pool, and the driver's own connection beneath it.

    Args:
        connection: checked out of SQLAlchemy's pool until it is closed.
        files: the SQLite files that it has open; None for a server.
    """

    __slots__ = ("connection", "driver", "files", "verb")

    def __init__(self, connection: AsyncCoreConnection, driver: Any, files: OpenFiles | None) -> None:
        self.connection = connection
        self.driver = driver
        self.files = files
        self.verb: object = None

    def in_thread(self, transaction: Callable[[Any], T]) -> Awaitable[T]:
        """Call a function with the `sqlite3.Connection`, in the thread of the connection."""
        call: Awaitable[T] = self.driver._execute(lambda: transaction(self.driver._conn))  # noqa: SLF001 - it has no public form
        return call


class StatementPool:
    """The connections for single statements of one engine.

    A checkout from SQLAlchemy's own pool, with its begin, commit and return, costs more than a statement for a hundred
    tasks. One from psycopg_pool 3.3 costs 52 Python calls instead of 20, about 4 % of a statement, and reports a
    refused connection as a PoolTimeout without its cause, after the whole timeout.

    Args:
        engine: with the execution options of a single statement.
        prepares: True to prepare the statements where the session allows it.
        limit: maximum seconds of a statement on a server; None for that of the connection.
    """

    def __init__(
        self, engine: AsyncCoreEngine, dialect: Dialect, *, prepares: bool, limit: float | None = None
    ) -> None:
        self._engine, self._answer_limit = engine, limit
        self._dialect = dialect
        self._prepares = prepares
        self._idle: list[PooledConnection] = []
        self._limit = asyncio.Semaphore(MOST)
        self._shared: PooledConnection | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def run(self, verb: object, work: Callable[[PooledConnection], Awaitable[T]]) -> T:
        """Lend a connection whose statements commit by themselves. One on which something failed is closed.

        A context manager in place of `work` costs a small batch as much as its parameters.

        Args:
            verb: its use. It gets the connection that it had last, if that is idle: a server process that repeats one
                statement keeps its plan in the caches of the processor.
            work: uses the connection.
        """
        async with self._limit:
            pooled = self._last_used_by(verb)
            if pooled is None or pooled.files is not None:
                pooled = await self._current(pooled) or await self._open()
            pooled.verb = verb
            try:
                result = await work(pooled)
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
            return result

    def _last_used_by(self, verb: object) -> PooledConnection | None:
        idle = self._idle
        for number, pooled in enumerate(idle):
            if pooled.verb is verb:
                return idle.pop(number)
        return idle.pop() if idle else None

    async def _current(self, pooled: PooledConnection | None) -> PooledConnection | None:
        """Close a connection whose file was replaced: SQLite can still read and write a deleted file."""
        if pooled is None or pooled.files is None or pooled.files.are_current():
            return pooled
        try:
            pooled.files.refuse_deleted()
        finally:
            await _close(pooled)
        return None

    @asynccontextmanager
    async def in_turn(self) -> AsyncIterator[PooledConnection]:
        """Lend the connection whose thread makes all calls in turn, with a valid page cache; replace it on an error."""
        async with self._opening:
            shared, self._shared = self._shared, None
            pooled = self._shared = await self._current(shared) or await self._open()
        replace = True
        try:
            yield pooled
            replace = self._closed
        finally:
            if replace and self._shared is pooled:
                self._shared = None
                await _close(pooled)  # after the calls that wait for its thread

    async def close(self) -> None:
        """Close the idle connections now, and each other one when its transaction ends."""
        self._closed = True
        await self._close_idle()
        shared, self._shared = self._shared, None
        if shared is not None:
            await _close(shared)

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
            if raw.info.pop("query_only", False):
                await driver.execute("PRAGMA query_only = OFF")  # set by an earlier reader
            if self._dialect.is_server:
                driver.own_limit = self._answer_limit
            if self._prepares:
                self._prepares = await self._dialect.keep_plans(driver)
        except BaseException:
            await connection.close()
            raise
        return PooledConnection(connection, driver, raw.info.get("files"))


async def _close(pooled: PooledConnection) -> None:
    # The engine may have a new pool by now, and a connection that returns to the old one would never be closed.
    try:
        await pooled.connection.invalidate()
    finally:
        await pooled.connection.close()
