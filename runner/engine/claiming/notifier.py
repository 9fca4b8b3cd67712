"""Notifier: wakes a runner immediately after a submit. Without it, polling finds the tasks one period later."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress

from runner.db.database import Database
from runner.db.dialects.postgresql import channel
from runner.db.file_changes import FileChanges
from runner.db.file_identity import FileChange, OpenFiles, save_logs
from runner.db.listener import Listener
from runner.db.schema import Tables
from runner.db.watch_request import request_channel, start_channel
from runner.engine.settling.watched_tasks import WatchedTasks
from runner.errors import DatabaseFileReplaced
from runner.resource_limits import reached_limit
from runner.settings import Settings

log = logging.getLogger("runner.notifier")

RETRY_DELAY = 1.0
"""Seconds until the next attempt to watch a file."""

QUIET = 5
"""Checks without a change after which a file is checked less often."""
SLOW_FACTOR = 5
"""Factor for the interval between checks after that."""


async def notifications(
    database: Database, settings: Settings, on_submit: Callable[[], None], watched: WatchedTasks
) -> None:
    """Call `on_submit` after each submit, and receive the requests of clients that watch tasks, until cancelled.

    Args:
        settings: whether to listen, and the interval of the checks of a SQLite file. With a `poll_interval` of 0 the
            runner scans once, and nothing wakes it.
        on_submit: called in the event loop.
        watched: sends the notices to clients.
    """
    if not settings.poll_interval:
        return
    if (file := settings.url.file) is None:
        if settings.notify:
            await listen(database, on_submit, settings.lease_timeout.total_seconds() / 2, watched)
    else:
        every, path = settings.sqlite_poll_interval.total_seconds(), str(file)
        with FileChanges() as changes:
            while True:
                try:
                    await watch(path, database.tables, every, on_submit, changes if settings.notify else None)
                except (sqlite3.Error, OSError) as error:  # e.g. no descriptor is left
                    log.warning("cannot watch %s, polling instead: %s", path, reached_limit(error) or error)
                await asyncio.sleep(RETRY_DELAY)


async def listen(database: Database, on_submit: Callable[[], None], every: float, watched: WatchedTasks) -> None:
    """Call `on_submit` on each notification until cancelled, and after LISTEN: tasks may have been submitted before.

    Args:
        on_submit: called in the event loop.
        every: seconds without a notification after which the server is asked for an answer.
        watched: receives the requests of clients, and sends its notices through the same connection.
    """
    channels = {channel(database.tables): lambda _: on_submit(), request_channel(database.tables): watched.receive}

    def on_connect() -> None:
        on_submit()
        listener.send(start_channel(database.tables), "")

    listener = Listener(database, channels, on_connect, every, log)
    with watched.sending(listener.send):
        await listener.run()


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
