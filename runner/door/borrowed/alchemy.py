"""Connections and sessions of SQLAlchemy, with whatever driver of the two databases."""

from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa

from runner.door.borrowed.frame import Verb
from runner.door.borrowed.postgresql import ASYNCPG, PSYCOPG, PSYCOPG2
from runner.door.borrowed.sqlite import SQLITE, beginning
from runner.errors import CommitsByItself, UnknownConnection
from runner.store.dialects import DIALECTS
from runner.store.steps import Step, follow

T = TypeVar("T")

DRIVERS = {"psycopg": PSYCOPG, "psycopg2": PSYCOPG2, "asyncpg": ASYNCPG, "pysqlite": SQLITE, "aiosqlite": SQLITE}
"""Every engine has a dialect of its own: with one for all of a driver's, a statement is compiled once."""


def follow_connection(connection: sa.Connection, verb: Verb[T]) -> T:
    """Follow a verb on a Connection, which begins its transaction as with any first statement."""
    dialect = connection.dialect
    if dialect.name not in DIALECTS:
        raise UnknownConnection(kind=f"connection to {dialect.name}")
    if not connection.in_transaction():
        connection.begin()
    _hold(connection)
    return follow(verb(DRIVERS.get(dialect.driver, dialect)), lambda step: _execute(connection, step))


def _execute(connection: sa.Connection, step: Step) -> list[Any]:
    # The values are as the driver takes them: SQLAlchemy's types would convert them once more.
    result = connection.exec_driver_sql(step.prepared.sql, step.prepared.arguments(step.parameters))
    return [tuple(row) for row in result] if result.returns_rows else []


def follow_session(session: Any, verb: Verb[T]) -> T:
    """Follow a verb on the connection of a Session, without flushing what the session holds."""
    return follow_connection(session.connection(), verb)


async def follow_async_connection(connection: Any, verb: Verb[T]) -> T:
    """Follow a verb on an AsyncConnection."""
    result: T = await connection.run_sync(follow_connection, verb)
    return result


async def follow_async_session(session: Any, verb: Verb[T]) -> T:
    """Follow a verb on an AsyncSession."""
    result: T = await session.run_sync(follow_session, verb)
    return result


async def follow_async_scoped_session(session: Any, verb: Verb[T]) -> T:
    """Follow a verb on the AsyncSession that an async_scoped_session stands for."""
    return await follow_async_session(session(), verb)


def _hold(connection: sa.Connection) -> None:
    """See to it that the next statement does not commit by itself."""
    raw = connection.connection
    if connection.dialect.name == "sqlite":
        if begin := beginning(raw.driver_connection):
            connection.exec_driver_sql(begin)
        return
    with suppress(NotImplementedError):  # not every driver tells
        if connection.dialect.detect_autocommit_setting(raw.dbapi_connection):  # type: ignore[arg-type]
            remedy = "Leave AUTOCOMMIT out of the connection's and the engine's isolation_level"
            raise CommitsByItself(kind="connection of SQLAlchemy", remedy=remedy)
