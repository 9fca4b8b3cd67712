"""Connection settings that give both databases the same guarantees."""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.util import await_only

from runner.db import server_encoding
from runner.db.connector import DEFAULT_CONNECTOR, Connector
from runner.db.dialects.sqlite import ignore_statistics
from runner.db.errors import is_locked
from runner.db.file_connection import CHECKPOINT_PAGES, KEPT_LOG, SUBMIT_CHECKPOINT_PAGES, FileConnection
from runner.db.file_identity import check_first, file_of, follow_file
from runner.db.filesystem import create_private
from runner.errors import DriverMissing, PackageMissing

T = TypeVar("T")

READING: dict[str, dict[str, Any]] = {
    "postgresql": {"postgresql_readonly": True, "isolation_level": "REPEATABLE READ"},
    "sqlite": {"begin": "BEGIN DEFERRED", "query_only": True},
}
WRITING: dict[str, dict[str, Any]] = {
    "postgresql": {"isolation_level": "READ COMMITTED"},  # independent of the server's default
    "sqlite": {"begin": "BEGIN IMMEDIATE"},
}
SINGLE: dict[str, dict[str, Any]] = {"postgresql": {"isolation_level": "AUTOCOMMIT"}, "sqlite": WRITING["sqlite"]}
"""Execution options by dialect: for a snapshot, a writing transaction, and a single statement."""

READABLE = methodcaller("decode", errors="replace")
"""Reads texts of SQLite, and of a SQL_ASCII server, which accept any bytes: one row with invalid UTF-8 must not fail
every claim and list."""

CACHE_KIB = 8 * 1024
"""Page cache of a SQLite connection. 2 MiB, the default, reads the same pages repeatedly; 32 MiB save no further reads
in a drain of 150,000 tasks, and each connection of a runner keeps its cache."""

BUSY_SECONDS = 10.0
"""Seconds that a SQLite connection waits for the write of another process; then its transaction is not retried."""

BUSY_PAUSES = ((0.02, 0.0005), (1.0, 0.002), (BUSY_SECONDS, 0.01))
"""Pauses between two attempts to begin a writing transaction: the first until 20 ms have passed; all in seconds."""

LOCK_OBSERVERS: list[Callable[[float], object]] = []
"""Called before each such pause with the seconds of the wait so far, in the thread of the connection."""

POSTGRESQL_OPTIONS: dict[str, Any] = {
    "application_name": "runner",
    # Independent of the database and login settings: with some encodings psycopg would return bytes for text.
    "client_encoding": "utf8",
    # Server-side prepared statements are session state, which transaction poolers break. The dialect's `keep_plans`
    # turns them on for single statements, where the session belongs to one connection.
    "prepare_threshold": None,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


POOL_SIZE, POOL_OVERFLOW = 4, 8
"""Permanent connections of an engine, and additional ones under load."""


THREAD_CONNECTIONS = 6
"""Blocking connections for submits, and so submits at the same time in one process."""


LOOP_CONNECTIONS = 6
"""Connections to PostgreSQL for submits of coroutines, per event loop."""


def options(url: sa.URL) -> dict[str, Any]:
    """Return the engine options for a URL."""
    # The connection that was used last comes first: each has caches and buffers that grow with its use.
    pool = {"pool_size": POOL_SIZE, "max_overflow": POOL_OVERFLOW, "pool_use_lifo": True}
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": BUSY_SECONDS, "factory": FileConnection}, **pool}
    connect_args = {name: value for name, value in POSTGRESQL_OPTIONS.items() if name not in url.query}
    # No column is an hstore: without the option, the first connection looks up the type in three statements.
    return {"connect_args": connect_args, **pool, "use_native_hstore": False}


def require_driver(kind: str) -> None:
    """Import the driver of a database, which is an optional package for PostgreSQL.

    Raises:
        DriverMissing: psycopg is not installed, or it finds no libpq.
    """
    if kind == "postgresql":
        try:
            import psycopg  # noqa: F401 - SQLAlchemy would report a traceback
        except ImportError as error:
            raise DriverMissing(why=" ".join(str(error).split())) from None


@contextmanager
def requires_packages() -> Iterator[None]:
    """Explain a failed import of a package that an installation only for submits may lack.

    Raises:
        PackageMissing: a package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise PackageMissing(package=package, use="this call", extra="runner", instead="") from None


def most_connections(transactions: int, *, notify: bool) -> int:
    """Return the maximum number of PostgreSQL connections of one runner.

    Args:
        notify: True if the runner listens.
    """
    pool = POOL_SIZE + POOL_OVERFLOW  # one pool for the runner, one for results that its handlers read
    watchdog = 2  # renews the lease while the event loop is blocked; the lease keeper
    return 2 * pool + THREAD_CONNECTIONS + LOOP_CONNECTIONS + 2 * transactions + int(notify) + watchdog


def read_only(url: sa.URL) -> sa.URL:
    """Return the URL of the same SQLite file in read-only mode. Servers get a read-only option per transaction.

    A session setting would not work behind a pooler that shares sessions.
    """
    if url.get_backend_name() != "sqlite":
        return url
    return url.set(database=f"file:{quote(url.database or '')}", query={**url.query, "mode": "ro", "uri": "true"})


def prepare(engine: sa.Engine, synchronous: str, connector: Connector = DEFAULT_CONNECTOR) -> None:
    """Register the set-up of connections and transactions on an engine.

    Args:
        synchronous: SQLite's durability, see Database.open.
    """
    if engine.dialect.name == "sqlite":
        writes = "mode" not in engine.url.query
        if writes:
            sa.event.listen(engine, "do_connect", lambda _dialect, _record, args, _options: create_private(args[0]))
        check_first(engine)
        log = f"{os.path.realpath(file_of(engine))}-wal"
        sa.event.listen(engine, "connect", lambda connection, _: _prepare_sqlite(connection, log, synchronous, writes))
        follow_file(engine)  # after the first statement, which opens the log
        sa.event.listen(engine, "begin", _begin_sqlite)
    else:
        connector.prepare(engine)
        sa.event.listen(engine, "connect", _prepare_postgresql)


def _prepare_sqlite(connection: Any, log: str, synchronous: str, writes: bool) -> None:
    connection.isolation_level = None  # the driver would begin transactions late and lose updates
    raw = getattr(connection, "driver_connection", connection)
    raw.text_factory = READABLE
    try:
        # The first look at the file: waits if another program has locked all of it.
        _in_thread(raw, execute_unlocked, "PRAGMA journal_mode = WAL" if writes else "PRAGMA schema_version")
        _in_thread(raw, ignore_statistics)
        if writes:
            _in_thread(raw, _limit_log, log)
        _set_sqlite(connection.cursor(), synchronous)
    except Exception:
        connection.close()  # otherwise each attempt during an outage would leak a thread and a file
        raise


def _set_sqlite(cursor: Any, synchronous: str) -> None:
    cursor.execute(f"PRAGMA synchronous = {'NORMAL' if synchronous == 'NORMAL' else 'FULL'}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    # Some builds overwrite each page that is freed, and so write a payload once more when its row is moved.
    cursor.execute("PRAGMA secure_delete = FAST")
    cursor.close()


def _limit_log(connection: FileConnection, log: str) -> None:
    connection.log, connection.checkpoint_pages = log, CHECKPOINT_PAGES
    connection.limit_checkpoints()
    connection.execute(f"PRAGMA journal_size_limit = {KEPT_LOG}")


def _begin_sqlite(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    protect = options.get("query_only", False)
    if connection.info.get("query_only", False) is not protect:
        connection.exec_driver_sql(f"PRAGMA query_only = {'ON' if protect else 'OFF'}")
        connection.info["query_only"] = protect
    begin, seconds = options.get("begin", "BEGIN IMMEDIATE"), options.get("busy_seconds", BUSY_SECONDS)
    if begin != "BEGIN IMMEDIATE":
        connection.exec_driver_sql(begin)
    else:
        _in_thread(connection.connection.driver_connection, begin_writing, seconds)


def _in_thread(raw: Any, work: Callable[..., object], *arguments: Any) -> None:
    """Call a function with a `sqlite3.Connection`, in the thread of its driver if it has one."""
    if isinstance(raw, sqlite3.Connection):
        work(raw, *arguments)
    else:
        await_only(raw._execute(work, raw._conn, *arguments))  # noqa: SLF001 - in the driver's thread


def begin_writing(connection: FileConnection, seconds: float | None = None) -> bool:
    """Begin a writing transaction of SQLite, after the writers of other processes.

    SQLite's own wait looks after 1, 2, 5, 10 and up to 100 ms, and a writer rarely holds the lock for so long: two
    runners would spend most of the time asleep.

    Args:
        connection: in autocommit mode; the call blocks.
        seconds: maximum wait; None for BUSY_SECONDS.

    Returns:
        True if another process held the lock.

    Raises:
        sqlite3.OperationalError: the file was locked for the whole time.
    """
    connection.limit_checkpoints()
    return execute_unlocked(connection, "BEGIN IMMEDIATE", seconds)


def execute_unlocked(connection: Any, sql: str, seconds: float | None = None) -> bool:
    """Execute a statement of SQLite as `begin_writing` does."""
    most = BUSY_SECONDS if seconds is None else seconds
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        return when_unlocked(lambda: connection.execute(sql).fetchall(), most)[1]
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(most * 1000)}")


def when_unlocked(statement: Callable[[], T], seconds: float | None = None) -> tuple[T, bool]:
    """Execute a statement of SQLite as soon as no other writer holds the lock that it needs.

    Args:
        statement: executes it on a connection whose busy_timeout is 0; the call blocks.
        seconds: maximum wait; None for BUSY_SECONDS.

    Returns:
        Its result, and True if another writer held the lock.

    Raises:
        sqlite3.OperationalError: the file was locked for the whole time, or the statement failed.
    """
    start, waited, most = time.monotonic(), 0.0, BUSY_SECONDS if seconds is None else seconds
    while True:
        try:
            return statement(), waited > 0
        except sqlite3.OperationalError as error:
            waited = time.monotonic() - start
            if not is_locked(error) or waited > most:
                raise
        for observe in LOCK_OBSERVERS:
            observe(waited)
        time.sleep(next((pause for limit, pause in BUSY_PAUSES if waited < limit), BUSY_PAUSES[-1][1]))


def prepare_submits(cursor: Any) -> None:
    """Prepare a SQLite connection for single submits, which `when_unlocked` executes.

    runner.store.validation has checked each value. The CHECKs of the table are for other programs, and take a third of
    the CPU of an INSERT.
    """
    cursor.execute("PRAGMA busy_timeout = 0")
    cursor.execute("PRAGMA ignore_check_constraints = ON")
    cursor.connection.checkpoint_pages = SUBMIT_CHECKPOINT_PAGES
    cursor.connection.limit_checkpoints()


def _prepare_postgresql(connection: Any, _: Any) -> None:
    from psycopg.adapt import Loader  # slow to import
    from psycopg.types.string import TextLoader

    driver = getattr(connection, "driver_connection", connection)
    driver.adapters.register_loader("json", TextLoader)  # payloads stay text and are not parsed here
    server_encoding.adapt(driver)
    if driver.info.parameter_status("server_encoding") == "SQL_ASCII":
        tolerant = type("TolerantTextLoader", (Loader,), {"load": lambda _, data: READABLE(bytes(data))})
        for kind in ("json", "text", "varchar", "bpchar", "name"):
            driver.adapters.register_loader(kind, tolerant)
        # Otherwise the server would refuse to send invalid UTF-8.
        _set_postgresql(connection, "client_encoding TO SQL_ASCII")
    if not (driver.info.parameter_status("DateStyle") or "").startswith("ISO"):
        # The driver parses only ISO times. The order of day and month for input stays as configured.
        _set_postgresql(connection, "datestyle TO ISO")


def _set_postgresql(connection: Any, assignment: str) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET {assignment}")
    cursor.close()
    connection.commit()


DRIVER_THREAD = "_connection_worker_thread"

THREAD_TIMEOUT = 0.5
"""Maximum wait for a thread of the driver in seconds."""


async def driver_threads_ended() -> None:
    """Wait for threads of the SQLite driver before the event loop is closed.

    After a failed connection such a thread still calls the loop; on a closed loop this prints an error.
    """
    for thread in threading.enumerate():
        if DRIVER_THREAD in thread.name and thread.is_alive():  # another event loop may be starting one
            await asyncio.to_thread(thread.join, THREAD_TIMEOUT)
