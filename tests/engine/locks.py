"""Locks that keep other connections from writing, like an open transaction of another program."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked_by_program(url: str) -> Iterator[str]:
    """Lock a SQLite file from another program during the block; the fact in messages."""
    words = [sys.executable, "-c", HOLD, urlsplit(url).path]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"locked\n"
        yield f"database is locked, held by process {program.pid} ({sys.executable}"
        assert program.stdin is not None
        program.stdin.close()


class Lock:
    """A lock that blocks every writer from `take` to `release`.

    Args:
        url: URL of the database.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._release: Callable[[], None] | None = None

    async def take(self) -> None:
        """Wait in a thread: the owner of the lock may need the event loop to release it."""
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
