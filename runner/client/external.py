"""External connections: run the statements of a store verb inside a transaction that the application ends.

Nothing here commits, rolls back, retries, changes session settings or opens a second connection, and the driver's
exceptions pass through. Libraries are recognized by their class names, so that none is imported for this.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.sqlite import pysqlite

from runner.db.dialects import DIALECTS
from runner.db.follow import follow, follow_async
from runner.db.statement import Step, StepsBuilder
from runner.errors import AutocommitConnection, SyncAsyncMismatch, UnknownConnection

T = TypeVar("T")

_untyped: Any = postgresql
PSYCOPG: sa.Dialect = _untyped.psycopg.dialect()
PSYCOPG2: sa.Dialect = _untyped.psycopg2.dialect()
ASYNCPG: sa.Dialect = _untyped.asyncpg.dialect()

IDLE = 0
"""libpq's status of a connection without a transaction."""


def follow_psycopg(connection: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on a `psycopg.Connection`."""
    from psycopg import Cursor
    from psycopg.rows import tuple_row
    from psycopg.types.string import TextLoader

    def arrive() -> None:
        if connection.pgconn.pipeline_status:  # results arrive only on request
            with connection.pipeline() as pipeline:
                pipeline.sync()

    def execute(step: Step) -> list[Any]:
        _send(cursor, step)
        arrive()
        return cursor.fetchall() if cursor.description else []

    arrive()
    _reject_autocommit(connection, "Open a transaction: with connection.transaction()")

    # The application's cursor factory may return other row types and use other parameter markers.
    cursor: Any
    with Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_loader("json", TextLoader)
        return follow(verb(PSYCOPG), execute)


async def follow_psycopg_async(connection: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on a `psycopg.AsyncConnection`."""
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row
    from psycopg.types.string import TextLoader

    async def arrive() -> None:
        if connection.pgconn.pipeline_status:
            async with connection.pipeline() as pipeline:
                await pipeline.sync()

    async def execute(step: Step) -> list[Any]:
        await _send(cursor, step)
        await arrive()
        return await cursor.fetchall() if cursor.description else []

    await arrive()
    _reject_autocommit(connection, "Open a transaction: async with connection.transaction()")

    cursor: Any
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_loader("json", TextLoader)
        return await follow_async(verb(PSYCOPG), execute)


def _send(cursor: Any, step: Step) -> Any:
    # A prepared statement would stay in a session that a pooler passes to another client.
    return cursor.execute(step.prepared.sql, step.prepared.arguments(step.parameters), prepare=False)


def follow_psycopg2(connection: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on a psycopg2 connection."""
    from psycopg2.extensions import cursor as plain
    from psycopg2.extras import register_default_json

    _reject_autocommit(connection, "Set connection.autocommit to False")

    def execute(step: Step) -> list[Any]:
        cursor.execute(step.prepared.sql, step.prepared.arguments(step.parameters))
        return cursor.fetchall() if cursor.description else []

    cursor: Any
    with connection.cursor(cursor_factory=plain) as cursor:
        register_default_json(cursor, loads=str)  # payloads stay text, as on our own connections
        return follow(verb(PSYCOPG2), execute)


async def follow_asyncpg(connection: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on an asyncpg connection, plain or from a pool."""
    if not connection.is_in_transaction():
        raise AutocommitConnection(
            kind="asyncpg connection", remedy="Open a transaction: async with connection.transaction()"
        )

    async def execute(step: Step) -> list[Any]:
        # An unnamed statement leaves nothing in the session, for any size of the statement cache.
        statement = await connection.prepare(step.prepared.sql, name="")
        rows = await statement.fetch(*step.prepared.arguments(step.parameters))
        return [tuple(row) for row in rows]

    return await follow_async(verb(ASYNCPG), execute)


def _reject_autocommit(connection: Any, remedy: str) -> None:
    if connection.autocommit and connection.info.transaction_status == IDLE:
        raise AutocommitConnection(kind="connection with autocommit", remedy=remedy)


SQLITE = pysqlite.dialect()

LEGACY = -1
"""Value of `autocommit` in Python 3.12 and later if `isolation_level` decides, as it always does before."""


def follow_sqlite3(connection: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on a `sqlite3.Connection`."""
    cursor = connection.cursor()
    cursor.row_factory = None  # the application may have set another
    texts, connection.text_factory = connection.text_factory, str  # a setting of the connection, not of the cursor
    try:
        if begin := beginning(connection):
            cursor.execute(begin)
        return follow(verb(SQLITE), partial(_execute_sqlite, cursor))
    finally:
        connection.text_factory = texts
        cursor.close()


async def follow_aiosqlite(connection: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on an `aiosqlite.Connection`, in its thread, with a single round trip."""
    result: T = await connection._execute(follow_sqlite3, connection._conn, verb)  # noqa: SLF001 - no public way
    return result


def beginning(connection: Any) -> str | None:
    """Return the statement that begins a transaction if none is open, as sqlite3 itself does before an INSERT.

    Raises:
        AutocommitConnection: an INSERT would be a transaction of its own.
    """
    control, level = getattr(connection, "autocommit", LEGACY), connection.isolation_level
    if connection.in_transaction or control is False:
        return None
    if control is True or level is None:
        raise AutocommitConnection(kind="SQLite connection", remedy="Execute BEGIN first")
    return f"BEGIN {level}"


def _execute_sqlite(cursor: Any, step: Step) -> list[Any]:
    cursor.execute(step.prepared.sql, step.prepared.arguments(step.parameters))
    rows: list[Any] = cursor.fetchall()
    return rows


DRIVERS = {"psycopg": PSYCOPG, "psycopg2": PSYCOPG2, "asyncpg": ASYNCPG, "pysqlite": SQLITE, "aiosqlite": SQLITE}
"""Dialects by driver. Each engine has its own dialect; sharing one per driver compiles each statement once."""


def follow_connection(connection: sa.Connection, verb: StepsBuilder[T]) -> T:
    """Run a verb on a Connection, which begins its transaction as for any first statement."""
    dialect = connection.dialect
    if dialect.name not in DIALECTS:
        raise UnknownConnection(kind=f"connection to {dialect.name}")
    if not connection.in_transaction():
        connection.begin()
    _ensure_transaction(connection)
    return follow(verb(DRIVERS.get(dialect.driver, dialect)), partial(_execute_sqlalchemy, connection))


def _execute_sqlalchemy(connection: sa.Connection, step: Step) -> list[Any]:
    # The values are already in the driver's form; SQLAlchemy's types would convert them again.
    result = connection.exec_driver_sql(step.prepared.sql, step.prepared.arguments(step.parameters))
    return [tuple(row) for row in result] if result.returns_rows else []


def follow_session(session: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on the connection of a Session, without flushing the session."""
    return follow_connection(session.connection(), verb)


async def follow_async_connection(connection: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on an AsyncConnection."""
    result: T = await connection.run_sync(follow_connection, verb)
    return result


async def follow_async_session(session: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on an AsyncSession."""
    result: T = await session.run_sync(follow_session, verb)
    return result


async def follow_async_scoped_session(session: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on the current AsyncSession of an async_scoped_session."""
    return await follow_async_session(session(), verb)


def _ensure_transaction(connection: sa.Connection) -> None:
    """Make sure that the next statement does not commit by itself."""
    raw = connection.connection
    if connection.dialect.name == "sqlite":
        if begin := beginning(raw.driver_connection):
            connection.exec_driver_sql(begin)
        return
    if getattr(raw.dbapi_connection, "autocommit", False):  # SQLAlchemy reads it for us only since 2.0.43
        remedy = "Remove AUTOCOMMIT from the isolation_level of the connection and the engine"
        raise AutocommitConnection(kind="SQLAlchemy connection", remedy=remedy)


Name = tuple[str, str]
"""Library and class name; subclasses match too."""

PLAIN: dict[Name, Callable[[Any, StepsBuilder[Any]], Any]] = {
    ("sqlalchemy", "Connection"): follow_connection,
    ("sqlalchemy", "Session"): follow_session,
    ("sqlalchemy", "scoped_session"): follow_session,
    ("psycopg", "Connection"): follow_psycopg,
    ("psycopg2", "connection"): follow_psycopg2,
    ("sqlite3", "Connection"): follow_sqlite3,
}

AWAITED: dict[Name, Callable[[Any, StepsBuilder[Any]], Awaitable[Any]]] = {
    ("sqlalchemy", "AsyncConnection"): follow_async_connection,
    ("sqlalchemy", "AsyncSession"): follow_async_session,
    ("sqlalchemy", "async_scoped_session"): follow_async_scoped_session,
    ("psycopg", "AsyncConnection"): follow_psycopg_async,
    ("asyncpg", "Connection"): follow_asyncpg,
    ("asyncpg", "PoolConnectionProxy"): follow_asyncpg,
    ("aiosqlite", "Connection"): follow_aiosqlite,
}


SUBMIT, SUBMIT_ASYNC = "submit or submit_many", "submit_async or submit_many_async"


def follower(tx: object, form: str = SUBMIT_ASYNC) -> Callable[[Any, StepsBuilder[Any]], Any]:
    """Return the function that runs a verb inside the transaction of an application's connection.

    Args:
        tx: connection or session.
        form: the call for an async connection.

    Raises:
        UnknownConnection: the kind of connection is not supported.
        SyncAsyncMismatch: the connection is async.
    """
    name = _name_of(tx)
    if name in AWAITED:
        raise SyncAsyncMismatch(kind=_label(name), why="is async", form=form)
    return PLAIN[name]


def follower_async(tx: object, form: str = SUBMIT) -> Callable[[Any, StepsBuilder[Any]], Awaitable[Any]]:
    """Same as `follower`, for an async connection."""
    name = _name_of(tx)
    if name in PLAIN:
        raise SyncAsyncMismatch(kind=_label(name), why="is not async", form=form)
    return AWAITED[name]


def _name_of(tx: object) -> Name:
    for kind in type(tx).__mro__:
        name = (kind.__module__.partition(".")[0], kind.__name__)
        if name in PLAIN or name in AWAITED:
            return name
    raise UnknownConnection(kind=f"{type(tx).__module__}.{type(tx).__qualname__}")


def _label(name: Name) -> str:
    return f"{name[1]} of {name[0]}"


NOT_OURS = ("no such table", "has no column named", "UndefinedTable", "UndefinedColumn", 'task" does not exist')
"""Words in a driver's error about a table that is missing, or that is not ours."""


@contextmanager
def explained() -> Iterator[None]:
    """Add the next step to a driver's error about tables that are not ours."""
    try:
        yield
    except Exception as error:
        if any(words in str(error) for words in NOT_OURS):
            error.add_note(
                "The database of tx has no task tables, or they have another table_prefix or table_schema than the"
                " settings have. Create them there with: runner migrate, or with Django: manage.py migrate. If the"
                " application has a table of this name, set table_prefix first"
            )
        raise
