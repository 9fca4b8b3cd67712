"""External connections: connections and sessions of SQLAlchemy, with any driver of both databases."""

from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from runner.client.external.postgresql import ASYNCPG, PSYCOPG, PSYCOPG2
from runner.client.external.sqlite import SQLITE, beginning
from runner.db.dialects import DIALECTS
from runner.db.statement import Step, StepsBuilder, follow
from runner.errors import AutocommitConnection, UnknownConnection

T = TypeVar("T")

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
    return follow(verb(DRIVERS.get(dialect.driver, dialect)), partial(_execute, connection))


def _execute(connection: sa.Connection, step: Step) -> list[Any]:
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
    with suppress(NotImplementedError):  # some drivers do not report it
        if connection.dialect.detect_autocommit_setting(raw.dbapi_connection):  # type: ignore[arg-type]
            remedy = "Remove AUTOCOMMIT from the isolation_level of the connection and the engine"
            raise AutocommitConnection(kind="SQLAlchemy connection", remedy=remedy)
