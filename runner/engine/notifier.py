"""Notifier: wakes a runner immediately after a submit. Without it, polling finds the tasks one period later."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from runner.db.async_core import AsyncCoreEngine
from runner.db.connect import POSTGRESQL_OPTIONS
from runner.db.database import Database
from runner.db.dialects.postgresql import channel
from runner.db.schema import Tables
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
    """Call `on_submit` after submits, in the way of the database and the settings, until cancelled.

    Args:
        database: the database.
        settings: whether to listen, and the interval of the checks of a SQLite file. With a `poll_interval` of 0 the
            runner scans once, and nothing wakes it.
        on_submit: called after each.
    """
    if not settings.poll_interval:
        return
    if database.dialect.isolates_rows:
        if settings.notify:
            await listen(database, on_submit)
    else:
        every = settings.sqlite_poll_interval.total_seconds()
        await watch(database.engine.url.database or "", database.tables, every, on_submit)


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


async def watch(path: str, tables: Tables, every: float, on_submit: Callable[[], None]) -> None:
    """Call `on_submit` when a task was submitted, unblocked or changed in a SQLite file, until cancelled.

    Every write moves `data_version`, also the heartbeats, settles and statistics of all runners. Only submits,
    unblocked tasks and changes by operators move one of the sequences that are compared then.

    Args:
        path: path of the file.
        tables: the tables of the installation.
        every: seconds between two checks; the interval grows after several checks without a write.
        on_submit: called after a change.
    """
    names = [table.name for table in (tables.task, tables.dependency, tables.audit)]
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        last_version, last_sequences, quiet = None, None, 0
        while True:
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
            await asyncio.sleep(every if quiet < QUIET else every * SLOW_FACTOR)


_SEQUENCES = "SELECT name, seq FROM sqlite_sequence WHERE name IN (?, ?, ?) ORDER BY name"
