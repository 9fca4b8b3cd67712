"""External connections to PostgreSQL: psycopg, psycopg2 and asyncpg."""

from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from runner.db.statement import Step, StepsBuilder, follow, follow_async
from runner.errors import AutocommitConnection

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

    def arrive() -> None:
        if connection.pgconn.pipeline_status:  # results arrive only on request
            with connection.pipeline() as pipeline:
                pipeline.sync()

    def execute(step: Step) -> list[Any]:
        _send(cursor, step)
        arrive()
        return cursor.fetchall() if cursor.description else []

    arrive()
    _reject_autocommit(connection, "Open one: with connection.transaction()")

    # The application's cursor factory may return other row types and use other parameter markers.
    cursor: Any
    with Cursor(connection, row_factory=tuple_row) as cursor:
        return follow(verb(PSYCOPG), execute)


async def follow_psycopg_async(connection: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on a `psycopg.AsyncConnection`."""
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    async def arrive() -> None:
        if connection.pgconn.pipeline_status:
            async with connection.pipeline() as pipeline:
                await pipeline.sync()

    async def execute(step: Step) -> list[Any]:
        await _send(cursor, step)
        await arrive()
        return await cursor.fetchall() if cursor.description else []

    await arrive()
    _reject_autocommit(connection, "Open one: async with connection.transaction()")

    cursor: Any
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        return await follow_async(verb(PSYCOPG), execute)


def _send(cursor: Any, step: Step) -> Any:
    # A prepared statement would stay in a session that a pooler passes to another client.
    return cursor.execute(step.prepared.sql, step.prepared.arguments(step.parameters), prepare=False)


def follow_psycopg2(connection: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on a psycopg2 connection."""
    from psycopg2.extensions import cursor as plain

    _reject_autocommit(connection, "Set connection.autocommit to False")

    def execute(step: Step) -> list[Any]:
        cursor.execute(step.prepared.sql, step.prepared.arguments(step.parameters))
        return cursor.fetchall() if cursor.description else []

    cursor: Any
    with connection.cursor(cursor_factory=plain) as cursor:
        return follow(verb(PSYCOPG2), execute)


async def follow_asyncpg(connection: Any, verb: StepsBuilder[T]) -> T:
    """Run a verb on an asyncpg connection, plain or from a pool."""
    if not connection.is_in_transaction():
        raise AutocommitConnection(kind="asyncpg connection", remedy="Open one: async with connection.transaction()")

    async def execute(step: Step) -> list[Any]:
        # An unnamed statement leaves nothing in the session, for any size of the statement cache.
        statement = await connection.prepare(step.prepared.sql, name="")
        rows = await statement.fetch(*step.prepared.arguments(step.parameters))
        return [tuple(row) for row in rows]

    return await follow_async(verb(ASYNCPG), execute)


def _reject_autocommit(connection: Any, remedy: str) -> None:
    if connection.autocommit and connection.info.transaction_status == IDLE:
        raise AutocommitConnection(kind="connection with autocommit", remedy=remedy)
