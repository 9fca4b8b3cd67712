"""Keeping a database from being written to, as another program's open transaction does."""

import asyncio
import sqlite3
from collections.abc import Callable
from urllib.parse import urlsplit

import psycopg


class Lock:
    """Holds what every writer needs, from `take` to `release`.

    Args:
        url: of the database.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._release: Callable[[], None] | None = None

    async def take(self) -> None:
        """Wait in a thread: whoever has the lock may need the event loop to let go of it."""
        lock = self._lock_file if self._url.startswith("sqlite") else self._lock_table
        self._release = await asyncio.to_thread(lock)

    def release(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    def _lock_file(self) -> Callable[[], None]:
        connection = sqlite3.connect(urlsplit(self._url).path, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN IMMEDIATE")
        return connection.close

    def _lock_table(self) -> Callable[[], None]:
        connection = psycopg.connect(self._url)
        connection.execute("LOCK TABLE task IN SHARE ROW EXCLUSIVE MODE")
        return connection.close
