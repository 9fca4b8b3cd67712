"""News: how a runner hears at once that tasks were submitted. Its scans find them without it, a period later."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine

from runner.store.connecting import POSTGRESQL_OPTIONS
from runner.store.database import Database
from runner.store.dialects.postgresql import channel

log = logging.getLogger("runner.news")

LISTEN_AGAIN = 5.0
"""Seconds until a broken LISTEN is tried again."""


QUIET = 5
"""Looks at a file that find nothing new, until it is looked at less often."""
LULL = 5
"""How many times longer the pauses between these looks are then."""


async def listen(database: Database, heard: Callable[[], None]) -> None:
    """Call `heard` on each notification, for ever; a connection that breaks is made anew.

    It is a connection of its own, since LISTEN is state of a session. Behind a pooler that shares sessions nothing is
    heard, and polling does the work.
    """
    while True:
        try:
            connection = await _connect(database.engine)
            async with connection:
                await connection.execute(f'LISTEN "{channel(database.tables)}"')
                heard()  # what was submitted while nobody listened
                await _hear(connection.pgconn, heard)
        except (psycopg.Error, OSError) as error:
            log.info("not listening, tasks are found by polling: %s", " ".join(str(error).split()))
        await asyncio.sleep(LISTEN_AGAIN)


async def _hear(connection: psycopg.pq.abc.PGconn, heard: Callable[[], None]) -> None:
    """Wait on the socket itself: psycopg's own `notifies` wakes up ten times a second to see whether it is to end."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    socket = connection.socket  # not to be asked for once the connection is broken
    loop.add_reader(socket, arrived.set)
    try:
        while True:
            await arrived.wait()
            arrived.clear()
            connection.consume_input()
            told = False
            while connection.notifies():
                told = True
            if told:
                heard()
    finally:
        loop.remove_reader(socket)


async def _connect(engine: AsyncEngine) -> psycopg.AsyncConnection[tuple[object, ...]]:
    args, given = engine.dialect.create_connect_args(engine.url)
    given.pop("context", None)
    options: dict[str, Any] = POSTGRESQL_OPTIONS | dict(given) | {"autocommit": True}
    return await psycopg.AsyncConnection.connect(*args, **options)


async def watch(path: str, every: float, heard: Callable[[], None]) -> None:
    """Call `heard` whenever any connection has written to a SQLite file, for ever.

    Args:
        path: of the file.
        every: seconds between two looks; longer once several have found nothing, because it is waking up that costs.
        heard: called after a change.
    """
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        seen, quiet = None, 0
        while True:
            try:
                version = connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:
                version = seen  # another process changes the file's form just now
            if version != seen:
                seen, quiet = version, 0
                heard()
            else:
                quiet += 1
            await asyncio.sleep(every if quiet < QUIET else every * LULL)
