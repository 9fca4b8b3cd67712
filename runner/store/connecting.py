"""How connections are set up, so that both databases keep the same promises."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.store.filesystem import identity

READING: dict[str, dict[str, Any]] = {
    "postgresql": {"postgresql_readonly": True, "isolation_level": "REPEATABLE READ"},
    "sqlite": {"begin": "BEGIN DEFERRED", "query_only": True},
}
WRITING: dict[str, dict[str, Any]] = {
    "postgresql": {"isolation_level": "READ COMMITTED"},  # whatever the server's default is
    "sqlite": {"begin": "BEGIN IMMEDIATE"},
}
SINGLE: dict[str, dict[str, Any]] = {"postgresql": {"isolation_level": "AUTOCOMMIT"}, "sqlite": WRITING["sqlite"]}
"""Execution options by dialect: for a snapshot, for a transaction, for one statement."""

CACHE_KIB = 32 * 1024
"""What a SQLite connection keeps of the file in memory; the default of 2 MiB reads the same pages again and again."""

CHECKPOINT_PAGES = 4_000
"""So long SQLite's write-ahead log grows before its pages are carried over into the file."""

BUSY_SECONDS = 10.0
"""How long a SQLite connection waits for another process's write."""

POSTGRESQL_OPTIONS: dict[str, Any] = {
    "connect_timeout": 5,
    "application_name": "runner",
    # What we write is not bound to what a database or a login is set to; psycopg would take bytes for text in some.
    "client_encoding": "utf8",
    # Server-side prepared statements are session state, which transaction poolers break, and switch to generic plans,
    # which claim several times slower.
    "prepare_threshold": None,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


def options(url: sa.URL) -> dict[str, Any]:
    """What an engine for this URL is created with."""
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": BUSY_SECONDS}, "pool_size": 4, "max_overflow": 8}
    given = {name: value for name, value in POSTGRESQL_OPTIONS.items() if name not in url.query}
    return {"connect_args": given, "pool_size": 4, "max_overflow": 8, "pool_use_lifo": True}


def read_only(url: sa.URL) -> sa.URL:
    """The same SQLite file, opened without the right to write; a server is told anew with each transaction.

    A setting of the session would do on a server too, but not behind a pooler that shares sessions.
    """
    if url.get_backend_name() != "sqlite":
        return url
    return url.set(database=f"file:{quote(url.database or '')}", query={**url.query, "mode": "ro", "uri": "true"})


def prepare(engine: sa.Engine, synchronous: str) -> None:
    """Hook the set-up of each connection and of each transaction into an engine."""
    if engine.dialect.name == "sqlite":
        writes = "mode" not in engine.url.query
        sa.event.listen(engine, "connect", lambda connection, _: _prepare_sqlite(connection, synchronous, writes))
        sa.event.listen(engine, "begin", _begin_sqlite)
        _follow_file(engine)
    else:
        sa.event.listen(engine, "connect", _prepare_postgresql)


def _follow_file(engine: sa.Engine) -> None:
    """Let no connection outlive its file: one that was deleted can be read and written as if it were still there."""
    path = Path(unquote((engine.url.database or "").removeprefix("file:"))).absolute()  # wherever one goes later

    def opened(_: Any, record: sa.pool.ConnectionPoolEntry) -> None:
        record.info["file"] = identity(path)

    def taken(_: Any, record: sa.pool.ConnectionPoolEntry, __: Any) -> None:
        if record.info["file"] != identity(path):
            raise sa.exc.DisconnectionError("there is another file now")  # and so the pool opens that one

    sa.event.listen(engine, "connect", opened)
    sa.event.listen(engine, "checkout", taken)


def _prepare_sqlite(connection: Any, synchronous: str, writes: bool) -> None:
    connection.isolation_level = None  # the driver would begin its transactions late, and lose updates
    # SQLite holds whatever bytes a foreign client wrote: one row that is no UTF-8 must not fail every claim and list.
    getattr(connection, "driver_connection", connection).text_factory = methodcaller("decode", errors="replace")
    try:
        _set_sqlite(connection.cursor(), synchronous, writes)
    except Exception:
        connection.close()  # or its thread and its file would stay open, at each try while a disk is away
        raise


def _set_sqlite(cursor: Any, synchronous: str, writes: bool) -> None:
    if writes:
        cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute(f"PRAGMA synchronous = {'NORMAL' if synchronous == 'NORMAL' else 'FULL'}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    cursor.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    chosen = connection.get_execution_options()
    protect = chosen.get("query_only", False)
    if connection.info.get("query_only", False) is not protect:
        connection.exec_driver_sql(f"PRAGMA query_only = {'ON' if protect else 'OFF'}")
        connection.info["query_only"] = protect
    connection.exec_driver_sql(chosen.get("begin", "BEGIN IMMEDIATE"))


def _prepare_postgresql(connection: Any, _: Any) -> None:
    from runner.store.dialects.loaders import Forgiving, TextLoader  # with the driver, where there is a connection

    driver = getattr(connection, "driver_connection", connection)
    driver.adapters.register_loader("json", TextLoader)  # payloads are passed on to the letter, not parsed here
    if driver.info.parameter_status("server_encoding") == "SQL_ASCII":
        for kind in ("json", "text", "varchar", "bpchar", "name"):
            driver.adapters.register_loader(kind, Forgiving)
        # Or the server would refuse to send what is no UTF-8.
        _set_postgresql(connection, "client_encoding TO SQL_ASCII")
    if not (driver.info.parameter_status("DateStyle") or "").startswith("ISO"):
        # The driver reads no other times. Whether a day or a month comes first in what is typed stays as it is set.
        _set_postgresql(connection, "datestyle TO ISO")


def _set_postgresql(connection: Any, what: str) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET {what}")
    cursor.close()
    connection.commit()


@asynccontextmanager
async def deadline(connection: AsyncConnection, seconds: float | None) -> AsyncIterator[None]:
    """Let the database break off statements that take longer than so many seconds."""
    if seconds is None:
        yield
    elif connection.dialect.name == "postgresql":
        limit = sa.func.set_config("statement_timeout", str(int(seconds * 1000)), True)
        await connection.execute(sa.select(limit))
        yield
    else:
        raw: Any = (await connection.get_raw_connection()).driver_connection
        timer = asyncio.get_running_loop().call_later(seconds, raw._conn.interrupt)  # noqa: SLF001 - the thread is busy
        try:
            yield
        finally:
            timer.cancel()
