"""Which connections can be borrowed, and how each is followed."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from runner.door.borrowed import alchemy, postgresql, sqlite
from runner.door.borrowed.frame import Verb
from runner.errors import UnknownConnection, WrongForm

T = TypeVar("T")
Name = tuple[str, str]
"""A library and the name of a class of it, which may be derived from."""

PLAIN: dict[Name, Callable[[Any, Verb[Any]], Any]] = {
    ("sqlalchemy", "Connection"): alchemy.follow_connection,
    ("sqlalchemy", "Session"): alchemy.follow_session,
    ("sqlalchemy", "scoped_session"): alchemy.follow_session,
    ("psycopg", "Connection"): postgresql.follow_psycopg,
    ("psycopg2", "connection"): postgresql.follow_psycopg2,
    ("sqlite3", "Connection"): sqlite.follow_sqlite3,
}

AWAITED: dict[Name, Callable[[Any, Verb[Any]], Awaitable[Any]]] = {
    ("sqlalchemy", "AsyncConnection"): alchemy.follow_async_connection,
    ("sqlalchemy", "AsyncSession"): alchemy.follow_async_session,
    ("sqlalchemy", "async_scoped_session"): alchemy.follow_async_scoped_session,
    ("psycopg", "AsyncConnection"): postgresql.follow_psycopg_async,
    ("asyncpg", "Connection"): postgresql.follow_asyncpg,
    ("asyncpg", "PoolConnectionProxy"): postgresql.follow_asyncpg,
    ("aiosqlite", "Connection"): sqlite.follow_aiosqlite,
}


def follow(tx: object, verb: Verb[T]) -> T:
    """Follow a verb inside the transaction of an application's connection.

    Args:
        tx: the connection, or the session.
        verb: gives the steps.

    Returns:
        What the verb returns; it holds when the application commits.

    Raises:
        UnknownConnection: when it is none of those listed above.
        CommitsByItself: when each statement would commit by itself.
        WrongForm: when it has to be awaited.
    """
    name = _known(tx)
    if name in AWAITED:
        raise WrongForm(kind=_shown(name), why="is awaited", form="submit_async or submit_many_async")
    try:
        result: T = PLAIN[name](tx, verb)
    except Exception as error:
        _explain(error)
        raise
    return result


async def follow_async(tx: object, verb: Verb[T]) -> T:
    """Do what `follow` does with a connection that is awaited."""
    name = _known(tx)
    if name in PLAIN:
        raise WrongForm(kind=_shown(name), why="is not awaited", form="submit or submit_many")
    try:
        result: T = await AWAITED[name](tx, verb)
    except Exception as error:
        _explain(error)
        raise
    return result


def _known(tx: object) -> Name:
    for kind in type(tx).__mro__:
        name = (kind.__module__.partition(".")[0], kind.__name__)
        if name in PLAIN or name in AWAITED:
            return name
    raise UnknownConnection(kind=f"{type(tx).__module__}.{type(tx).__qualname__}")


def _shown(name: Name) -> str:
    return f"{name[1]} of {name[0]}"


def _explain(error: Exception) -> None:
    """Say what to do where the driver only says that there is no such table."""
    if any(words in str(error) for words in ("no such table", "UndefinedTable", 'task" does not exist')):
        error.add_note(
            "The tables of tasks are not in the database that tx is connected to, or have another prefix or schema than"
            " the settings say. Make them there with: runner migrate"
        )
