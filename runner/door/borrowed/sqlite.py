"""Connections to SQLite: of Python's own sqlite3, and of aiosqlite."""

from typing import Any, TypeVar

from sqlalchemy.dialects.sqlite import pysqlite

from runner.door.borrowed.frame import Verb
from runner.errors import CommitsByItself
from runner.store.steps import Step, follow

T = TypeVar("T")

SQLITE = pysqlite.dialect()

LEGACY = -1
"""What `autocommit` is from Python 3.12 on when `isolation_level` decides, as it always does before."""


def follow_sqlite3(connection: Any, verb: Verb[T]) -> T:
    """Follow a verb on a `sqlite3.Connection`."""
    cursor = connection.cursor()
    cursor.row_factory = None  # the application's is not ours
    texts, connection.text_factory = connection.text_factory, str  # of this, cursors have none of their own
    try:
        if begin := beginning(connection):
            cursor.execute(begin)
        return follow(verb(SQLITE), lambda step: _execute(cursor, step))
    finally:
        connection.text_factory = texts
        cursor.close()


async def follow_aiosqlite(connection: Any, verb: Verb[T]) -> T:
    """Follow a verb on an `aiosqlite.Connection`: in its thread, with one way there and back."""
    result: T = await connection._execute(follow_sqlite3, connection._conn, verb)  # noqa: SLF001 - it shows no other way
    return result


def beginning(connection: Any) -> str | None:
    """What begins the transaction, if none is open: what sqlite3 itself executes before an INSERT.

    Raises:
        CommitsByItself: when an INSERT would be a transaction of its own.
    """
    control, level = getattr(connection, "autocommit", LEGACY), connection.isolation_level
    if connection.in_transaction or control is False:
        return None
    if control is True or level is None:
        raise CommitsByItself(kind="SQLite connection", remedy="Execute BEGIN first")
    return f"BEGIN {level}"


def _execute(cursor: Any, step: Step) -> list[Any]:
    cursor.execute(step.prepared.sql, step.prepared.arguments(step.parameters))
    rows: list[Any] = cursor.fetchall()
    return rows
