"""External connections to SQLite: sqlite3 and aiosqlite."""

from functools import partial
from typing import Any, TypeVar

from sqlalchemy.dialects.sqlite import pysqlite

from runner.db.statement import Step, StepsBuilder, follow
from runner.errors import AutocommitConnection

T = TypeVar("T")

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
        return follow(verb(SQLITE), partial(_execute, cursor))
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


def _execute(cursor: Any, step: Step) -> list[Any]:
    cursor.execute(step.prepared.sql, step.prepared.arguments(step.parameters))
    rows: list[Any] = cursor.fetchall()
    return rows
