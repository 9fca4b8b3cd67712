"""Notifier: wakes a runner immediately after a submit. Without it, polling finds the tasks one period later."""

import asyncio
import logging
import os
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Self

from runner.db.connect import POSTGRESQL_OPTIONS
from runner.db.database import Database
from runner.db.dialects.postgresql import channel, quoted
from runner.db.file_identity import FileChange, OpenFiles, save_logs
from runner.db.schema import Tables
from runner.errors import DatabaseFileReplaced
from runner.resource_limits import reached_limit
from runner.settings import Settings
from runner.text.formatting import age

if TYPE_CHECKING:
    from runner.db.server_connection import AsyncServerConnection  # imports psycopg, which is optional

log = logging.getLogger("runner.notifier")

RECONNECT_DELAY = 1.0
"""Seconds until the next attempt after LISTEN failed."""


QUIET = 5
"""Checks without a change after which a file is checked less often."""
SLOW_FACTOR = 5
"""Factor for the interval between checks after that."""


async def notifications(database: Database, settings: Settings, on_submit: Callable[[], None]) -> None:
    """Call `on_submit` after each submit, until cancelled.

    Args:
        settings: whether to listen, and the interval of the checks of a SQLite file. With a `poll_interval` of 0 the
            runner scans once, and nothing wakes it.
        on_submit: called in the event loop.
    """
    if not settings.poll_interval:
        return
    if (file := settings.url.file) is None:
        if settings.notify:
            await listen(database, on_submit, settings.lease_timeout.total_seconds() / 2)
    else:
        every, path = settings.sqlite_poll_interval.total_seconds(), str(file)
        with FileChanges() as changes:
            while True:
                try:
                    await watch(path, database.tables, every, on_submit, changes if settings.notify else None)
                except (sqlite3.Error, OSError) as error:  # e.g. no descriptor is left
                    log.warning("cannot watch %s, polling instead: %s", path, reached_limit(error) or error)
                await asyncio.sleep(RECONNECT_DELAY)


async def listen(database: Database, on_submit: Callable[[], None], every: float) -> None:
    """Call `on_submit` on each notification until cancelled, and reconnect after errors.

    LISTEN needs a connection of its own: it is session state. Behind a pooler that shares sessions no notifications
    arrive, and polling finds the tasks.

    Args:
        on_submit: called in the event loop.
        every: seconds without a notification after which the server is asked for a sign of life.
    """
    import psycopg

    failed_at: float | None = None
    while True:
        try:
            connection = await _connect(database)
            async with connection:
                await connection.execute(f"LISTEN {quoted(channel(database.tables))}")
                if failed_at is not None:
                    log.info("LISTEN works again after %s", age(time.monotonic() - failed_at))
                failed_at = None
                on_submit()  # tasks may have been submitted before LISTEN
                await _receive(connection, on_submit, every)
        except (psycopg.Error, OSError) as error:
            level = logging.INFO if failed_at is None else logging.DEBUG  # once per outage
            log.log(level, "LISTEN failed, polling instead: %s", " ".join(str(error).split()))
            failed_at = failed_at or time.monotonic()
        await asyncio.sleep(RECONNECT_DELAY)


async def _receive(connection: "AsyncServerConnection", on_submit: Callable[[], None], every: float) -> None:
    """Receive notifications. Ask a server that is silent for `every` seconds: a lost connection is silent too."""
    connection.add_notify_handler(lambda _: on_submit())  # those that arrive with the answer
    while True:
        await _wait_for_notifications(connection, on_submit, every)
        await connection.execute("SELECT 1")


async def _wait_for_notifications(
    connection: "AsyncServerConnection", on_submit: Callable[[], None], every: float
) -> None:
    """Wait on the socket until it is silent for `every` seconds. psycopg's own `notifies` wakes up ten times a second.

    Raises:
        psycopg.OperationalError: the connection is broken.
    """
    loop, arrived, server = asyncio.get_running_loop(), asyncio.Event(), connection.pgconn
    socket = server.socket  # not available once the connection is broken
    loop.add_reader(socket, arrived.set)
    try:
        while await _within(arrived, every):
            arrived.clear()
            connection.check_fault()
            server.consume_input()
            notified = False
            while server.notifies():
                notified = True
            if notified:
                on_submit()
    finally:
        loop.remove_reader(socket)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; return False if it does not happen within the seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _connect(database: Database) -> "AsyncServerConnection":
    engine = database.engine
    _, parameters = engine.dialect.create_connect_args(engine.url)
    parameters.pop("context", None)
    options: dict[str, object] = POSTGRESQL_OPTIONS | dict(parameters) | {"autocommit": True}
    return await database.connector.connect_async(options)


async def watch(
    path: str, tables: Tables, every: float, on_submit: Callable[[], None], changes: "FileChanges | None" = None
) -> None:
    """Call `on_submit` when a task was submitted, unblocked or changed in a SQLite file, until cancelled.

    Every write moves `data_version`, also the heartbeats, settles and statistics of all runners. Only submits,
    unblocked tasks and changes by operators move one of the sequences that are compared then.

    Args:
        every: seconds between two checks; the interval grows after several checks without a write.
        on_submit: called after a change.
        changes: the changes of the file, after which it is checked soon; None to check at the intervals only.

    Raises:
        DatabaseFileReplaced: the path has another file now, or none.
    """
    files = OpenFiles(path)
    names = [table.name for table in (tables.task, tables.dependency, tables.audit)]
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        last_version, last_sequences, quiet = None, None, 0
        while True:
            if (change := files.change()) is not None:
                raise await asyncio.to_thread(_replaced, change)
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


def _replaced(change: FileChange) -> DatabaseFileReplaced:
    """Copy the logs, of which the end of the runner may delete one, and return the error that ends it."""
    error = change.error
    if copies := save_logs(change):
        saved = f" This runner has copied the logs that it found to {' and '.join(copies)}."
        return DatabaseFileReplaced(**error.fields | {"saved": saved})
    return error


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
