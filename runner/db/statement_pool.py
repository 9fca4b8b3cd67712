"""StatementPool: connections that stay open for frequent single statements."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from runner.db.async_core import AsyncCoreConnection, AsyncCoreEngine
from runner.db.dialects import Dialect
from runner.db.errors import lost_prepared

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
