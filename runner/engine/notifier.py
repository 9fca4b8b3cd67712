"""Notifier: wakes a runner immediately after a submit. Without it, polling finds the tasks one period later."""

import asyncio
import logging
import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from runner.db.async_core import AsyncCoreEngine
from runner.db.connect import POSTGRESQL_OPTIONS
from runner.db.database import Database
from runner.db.dialects.postgresql import channel
from runner.db.schema import Tables
from runner.errors import DatabaseFileReplaced
from runner.settings import Settings

if TYPE_CHECKING:
    import psycopg  # optional, as PostgreSQL is

log = logging.getLogger("runner.notifier")

RECONNECT_DELAY = 5.0
"""Seconds until the next attempt after LISTEN failed."""


QUIET = 5
"""Checks without a change after which a file is checked less often."""
SLOW_FACTOR = 5
"""Factor for the interval between checks after that."""


async def notifications(database: Database, settings: Settings, on_submit: Callable[[], None]) -> None:
    """Call `on_submit` after each submit, until cancelled.

    Args:
        database: the database.
        settings: whether to listen, and the interval of the checks of a SQLite file. With a `poll_interval` of 0 the
            runner scans once, and nothing wakes it.
        on_submit: called in the event loop.
    """
    if not settings.poll_interval:
        return
    if (file := settings.url.file) is None:
        if settings.notify:
            await listen(database, on_submit)
    else:
        every, path = settings.sqlite_poll_interval.total_seconds(), str(file)
        if not settings.notify:
            await watch(path, database.tables, every, on_submit)
            return
        with FileChanges() as changes:
            await watch(path, database.tables, every, on_submit, changes)


async def listen(database: Database, on_submit: Callable[[], None]) -> None:
    """Call `on_submit` on each notification until cancelled, and reconnect after errors.

    LISTEN needs a connection of its own: it is session state. Behind a pooler that shares sessions no notifications
    arrive, and polling finds the tasks.
    """
    import psycopg

    while True:
        try:
            connection = await _connect(database.engine)
            async with connection:
                await connection.execute(f'LISTEN "{channel(database.tables)}"')
                on_submit()  # tasks may have been submitted before LISTEN
                await _wait_for_notifications(connection.pgconn, on_submit)
        except (psycopg.Error, OSError) as error:
            log.info("LISTEN failed, polling instead: %s", " ".join(str(error).split()))
        await asyncio.sleep(RECONNECT_DELAY)


async def _wait_for_notifications(connection: "psycopg.pq.abc.PGconn", on_submit: Callable[[], None]) -> None:
    """Wait on the socket. psycopg's own `notifies` wakes up ten times a second."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    socket = connection.socket  # not available once the connection is broken
    loop.add_reader(socket, arrived.set)
    try:
        while True:
            await arrived.wait()
            arrived.clear()
            connection.consume_input()
            notified = False
            while connection.notifies():
                notified = True
            if notified:
                on_submit()
    finally:
        loop.remove_reader(socket)


async def _connect(engine: AsyncCoreEngine) -> "psycopg.AsyncConnection[tuple[object, ...]]":
    import psycopg

    args, kwargs = engine.dialect.create_connect_args(engine.url)
    kwargs.pop("context", None)
    options: dict[str, Any] = POSTGRESQL_OPTIONS | dict(kwargs) | {"autocommit": True}
    return await psycopg.AsyncConnection.connect(*args, **options)


async def watch(
    path: str, tables: Tables, every: float, on_submit: Callable[[], None], changes: "FileChanges | None" = None
) -> None:
    """Call `on_submit` when a task was submitted, unblocked or changed in a SQLite file, until cancelled.

    Every write moves `data_version`, also the heartbeats, settles and statistics of all runners. Only submits,
    unblocked tasks and changes by operators move one of the sequences that are compared then.

    Args:
        path: path of the file.
        tables: the tables of the installation.
        every: seconds between two checks; the interval grows after several checks without a write.
        on_submit: called after a change.
        changes: the changes of the file, after which it is checked soon; None to check at the intervals only.

    Raises:
        DatabaseFileReplaced: the path has another file now, or none.
    """
    opened = _file_id(path)
    names = [table.name for table in (tables.task, tables.dependency, tables.audit)]
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        last_version, last_sequences, quiet = None, None, 0
        while True:
            if _file_id(path) != opened:
                raise DatabaseFileReplaced(path=path)
            sequences = last_sequences
            with suppress(sqlite3.Error):  # another process has locked the file; the next check repeats this one
                version = connection.execute("PRAGMA data_version").fetchone()
                if version != last_version:
                    sequences = connection.execute(_SEQUENCES, names).fetchall()
                    last_version, quiet = version, -1
            quiet += 1
            if sequences != last_sequences:
                last_sequences = sequences
                on_submit()
            if changes is not None and changes.follow(path):
                await changes.pause(every * SLOW_FACTOR)
            else:
                await asyncio.sleep(every if quiet < QUIET else every * SLOW_FACTOR)


def _file_id(path: str) -> tuple[int, int] | None:
    """The device and the inode of a file; None if it is missing."""
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


_SEQUENCES = "SELECT name, seq FROM sqlite_sequence WHERE name IN (?, ?, ?) ORDER BY name"

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.008
"""Seconds from a change to the first check, and between two checks while changes go on."""

CHECKS = 9
"""Checks after a change, over 55 ms: a commit is visible only when the disk has synced the writes before it."""

IN_MODIFY, IN_IGNORED = 0x2, 0x8000
"""From inotify(7): a file was written, and a file is no longer followed because it was deleted."""

EVENT = struct.Struct("iIII")


class FileChanges:
    """The changes of a SQLite file and its write-ahead log, reported by Linux; other systems report none.

    A transaction writes each page with calls of its own. The reports are read only where a wait ends, because a busy
    runner would otherwise wake up for each page that it writes itself.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._followed: dict[int, str] = {}
        self._checks = 0
        self._pause = FIRST_PAUSE
        with suppress(OSError, AttributeError, ImportError):
            import ctypes  # only runners on SQLite need it

            self._libc = ctypes.CDLL(None, use_errno=True)
            descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            self._descriptor = descriptor if descriptor >= 0 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def follow(self, path: str) -> bool:
        """Follow the write-ahead log of a SQLite file; True if its changes are reported.

        A log is deleted with the last connection and created again, and its new file must be followed then.
        """
        log_file = f"{path}-wal"
        if self._descriptor is not None and log_file not in self._followed.values():
            watched = self._libc.inotify_add_watch(self._descriptor, os.fsencode(log_file), IN_MODIFY)
            if watched >= 0:
                self._followed[watched] = log_file
        return bool(self._followed)

    async def pause(self, longest: float) -> None:
        """Wait until the next check: briefly after a change, otherwise until the next one or `longest` seconds."""
        if not self._checks and self._read():  # changes since the first of the last checks
            self._checks = CHECKS
        if self._checks:
            self._checks -= 1
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            return
        self._pause = FIRST_PAUSE
        await self._wait(longest)
        if self._read():
            self._checks = CHECKS

    async def _wait(self, longest: float) -> None:
        """Wait until a change is reported, or `longest` seconds."""
        loop, reported = asyncio.get_running_loop(), asyncio.Event()
        timer = loop.call_later(longest, reported.set)
        if self._descriptor is not None:
            loop.add_reader(self._descriptor, reported.set)
        try:
            await reported.wait()
        finally:
            timer.cancel()
            if self._descriptor is not None:
                loop.remove_reader(self._descriptor)

    def _read(self) -> bool:
        """Read the reported changes; True if there were any."""
        changed = False
        with suppress(BlockingIOError):
            while self._descriptor is not None:
                events, position = os.read(self._descriptor, 65_536), 0
                changed = True
                while position + EVENT.size <= len(events):
                    watched, mask, _, length = EVENT.unpack_from(events, position)
                    if mask & IN_IGNORED:
                        self._followed.pop(watched, None)
                    position += EVENT.size + length
        return changed
