"""Lines: connections that stay open for the statements that run often, used without ceremony."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

MOST = 6
"""Connections for single statements. The engine keeps the others for transactions."""


class PooledConnection:
    """A connection, and the driver's own beneath it.

    Args:
        connection: checked out for good.
        driver: the driver's connection.
        commits: False when each statement commits by itself.
    """

    __slots__ = ("commits", "connection", "driver")

    def __init__(self, connection: AsyncConnection, driver: Any, commits: bool) -> None:
        self.connection = connection
        self.driver = driver
        self.commits = commits


class StatementPool:
    """The open lines of one engine: taken, used for one transaction, and laid back.

    Taking a connection from SQLAlchemy's pool, beginning and ending a transaction on it and laying it back costs more
    than a statement for a hundred tasks.

    Args:
        engine: with the execution options of a single statement.
        commits: True when a transaction must be begun and ended: where statements do not commit by themselves.
    """

    def __init__(self, engine: AsyncEngine, commits: bool) -> None:
        self._engine = engine
        self._commits = commits
        self._idle: list[PooledConnection] = []
        self._room = asyncio.Semaphore(MOST)

    @asynccontextmanager
    async def taken(self, writes: bool = True) -> AsyncIterator[PooledConnection]:
        """Take a line for one transaction; one on which something failed is not laid back.

        Args:
            writes: False for a single statement that only reads: no transaction need be begun for it.
        """
        async with self._room:
            line = self._idle.pop() if self._idle else await self._open()
            begins = writes and line.commits
            try:
                if begins:
                    await line.driver.execute("BEGIN IMMEDIATE")
                yield line
                if begins:
                    await line.driver.commit()
            except BaseException:
                if getattr(line.driver, "closed", False):
                    await self.close()  # the server went away, and with it the others
                await line.connection.invalidate()
                await line.connection.close()
                raise
            self._idle.append(line)

    async def close(self) -> None:
        """Close the lines that are not in use."""
        while self._idle:
            await self._idle.pop().connection.close()

    async def _open(self) -> PooledConnection:
        connection = await self._engine.connect()
        raw = await connection.get_raw_connection()
        driver: Any = raw.driver_connection
        if self._commits and raw.info.pop("query_only", False):
            await driver.execute("PRAGMA query_only = OFF")  # it served a reader before
        return PooledConnection(connection, driver, self._commits)
