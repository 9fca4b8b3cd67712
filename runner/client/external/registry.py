"""The supported kinds of external connections, and how to run a verb on each."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from runner.client.external import postgresql, sqlalchemy, sqlite
from runner.db.statement import StepsBuilder
from runner.errors import SyncAsyncMismatch, UnknownConnection

Name = tuple[str, str]
"""Library and class name; subclasses match too."""

PLAIN: dict[Name, Callable[[Any, StepsBuilder[Any]], Any]] = {
    ("sqlalchemy", "Connection"): sqlalchemy.follow_connection,
    ("sqlalchemy", "Session"): sqlalchemy.follow_session,
    ("sqlalchemy", "scoped_session"): sqlalchemy.follow_session,
    ("psycopg", "Connection"): postgresql.follow_psycopg,
    ("psycopg2", "connection"): postgresql.follow_psycopg2,
    ("sqlite3", "Connection"): sqlite.follow_sqlite3,
}

AWAITED: dict[Name, Callable[[Any, StepsBuilder[Any]], Awaitable[Any]]] = {
    ("sqlalchemy", "AsyncConnection"): sqlalchemy.follow_async_connection,
    ("sqlalchemy", "AsyncSession"): sqlalchemy.follow_async_session,
    ("sqlalchemy", "async_scoped_session"): sqlalchemy.follow_async_scoped_session,
    ("psycopg", "AsyncConnection"): postgresql.follow_psycopg_async,
    ("asyncpg", "Connection"): postgresql.follow_asyncpg,
    ("asyncpg", "PoolConnectionProxy"): postgresql.follow_asyncpg,
    ("aiosqlite", "Connection"): sqlite.follow_aiosqlite,
}


def follower(tx: object) -> Callable[[Any, StepsBuilder[Any]], Any]:
    """Return the function that runs a verb inside the transaction of an application's connection.

    Args:
        tx: connection or session.

    Raises:
        UnknownConnection: the kind of connection is not supported.
        SyncAsyncMismatch: the connection is async.
    """
    name = _name_of(tx)
    if name in AWAITED:
        raise SyncAsyncMismatch(kind=_label(name), why="is async", form="submit_async or submit_many_async")
    return PLAIN[name]


def follower_async(tx: object) -> Callable[[Any, StepsBuilder[Any]], Awaitable[Any]]:
    """Same as `follower`, for an async connection."""
    name = _name_of(tx)
    if name in PLAIN:
        raise SyncAsyncMismatch(kind=_label(name), why="is not async", form="submit or submit_many")
    return AWAITED[name]


def _name_of(tx: object) -> Name:
    for kind in type(tx).__mro__:
        name = (kind.__module__.partition(".")[0], kind.__name__)
        if name in PLAIN or name in AWAITED:
            return name
    raise UnknownConnection(kind=f"{type(tx).__module__}.{type(tx).__qualname__}")


def _label(name: Name) -> str:
    return f"{name[1]} of {name[0]}"


@contextmanager
def explained() -> Iterator[None]:
    """Add the next step to a driver's error about missing tables."""
    try:
        yield
    except Exception as error:
        if any(words in str(error) for words in ("no such table", "UndefinedTable", 'task" does not exist')):
            error.add_note(
                "The database of tx has no task tables, or they have another table_prefix or table_schema than the"
                " settings have. Create them there with: runner migrate, or with Django: manage.py migrate"
            )
        raise
