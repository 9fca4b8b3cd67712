"""Notifier: wakes a runner immediately after a submit. Without it, polling finds the tasks one period later."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

from runner.db.async_core import AsyncCoreEngine
from runner.db.connect import POSTGRESQL_OPTIONS
from runner.db.database import Database
from runner.db.dialects.postgresql import channel

log = logging.getLogger("runner.notifier")

RECONNECT_DELAY = 5.0
"""Seconds until the next attempt after LISTEN failed."""


QUIET = 5
"""Checks without a change after which a file is checked less often."""
SLOW_FACTOR = 5
"""Factor for the interval between checks after that."""


async def listen(database: Database, on_submit: Callable[[], None]) -> None:
    """Call `on_submit` on each notification until cancelled, and reconnect after errors.

    LISTEN needs a connection of its own: it is session state. Behind a pooler that shares sessions no notifications
    arrive, and polling finds the tasks.
    """
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


async def _wait_for_notifications(connection: psycopg.pq.abc.PGconn, on_submit: Callable[[], None]) -> None:
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


async def _connect(engine: AsyncCoreEngine) -> psycopg.AsyncConnection[tuple[object, ...]]:
    args, kwargs = engine.dialect.create_connect_args(engine.url)
    kwargs.pop("context", None)
    options: dict[str, Any] = POSTGRESQL_OPTIONS | dict(kwargs) | {"autocommit": True}
    return await psycopg.AsyncConnection.connect(*args, **options)


async def watch(path: str, every: float, on_submit: Callable[[], None]) -> None:
    """Call `on_submit` when another connection has written to a SQLite file, until cancelled.

    Args:
        path: path of the file.
        every: seconds between two checks; the interval grows after several checks without a change.
        on_submit: called after a change.
    """
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        last_version, quiet = None, 0
        while True:
            try:
                version = connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:
                version = last_version  # another process is changing the journal mode
            if version != last_version:
                last_version, quiet = version, 0
                on_submit()
            else:
                quiet += 1
            await asyncio.sleep(every if quiet < QUIET else every * SLOW_FACTOR)
