"""The search for the tasks of a handler and a business key."""

from asyncio import gather, wrap_future
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from runner.client.client import get_client, refuse_event_loop
from runner.client.handler import TaskHandler
from runner.client.results import TaskHandle, handles
from runner.handlers.registry import Handler
from runner.model.shard import ShardId
from runner.model.text_limits import require_text

R = TypeVar("R")
"""Type of the tasks' results, if their handler is given, and not only its name."""
T = TypeVar("T")

if TYPE_CHECKING:
    from runner.client.database_client import Client
    from runner.db.transaction import Transaction

    Verb: TypeAlias = Callable[[Transaction, str | None, str, str], Awaitable[T]]
    Read: TypeAlias = tuple[Verb[T], str | None, str, str]

MOST_UNFINISHED = 1_000
"""Maximum number of handles that `unfinished` returns."""


@overload
def unfinished(handler: TaskHandler[..., Any, R], key: str) -> list[TaskHandle[R]]: ...


@overload
def unfinished(handler: str, key: str) -> list[TaskHandle[Any]]: ...


def unfinished(handler: Handler | str, key: str) -> list[TaskHandle[Any]]:
    """Find the unfinished tasks of a handler with a business key: waiting, blocked or running.

    Args:
        handler: the handler or its name.
        key: the business key, as in `options(key=...)`.

    Returns:
        Handles of the oldest 1,000 tasks of each database, in the order of submission; empty if none is unfinished.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
        WouldBlock: called on an event loop: await `unfinished_async` there.
    """
    refuse_event_loop("unfinished")
    parts = [client.begin(*of, reads=True) for client, of in _reads(_live, handler, key)]
    return [handle for part in parts for handle in part.result()]


@overload
async def unfinished_async(handler: TaskHandler[..., Any, R], key: str) -> list[TaskHandle[R]]: ...


@overload
async def unfinished_async(handler: str, key: str) -> list[TaskHandle[Any]]: ...


async def unfinished_async(handler: Handler | str, key: str) -> list[TaskHandle[Any]]:
    """Same as `unfinished`, on an event loop."""
    parts = [wrap_future(client.begin(*of, reads=True)) for client, of in _reads(_live, handler, key)]
    return [handle for part in await gather(*parts) for handle in part]


@overload
def find(handler: TaskHandler[..., Any, R], key: str) -> TaskHandle[R] | None: ...


@overload
def find(handler: str, key: str) -> TaskHandle[Any] | None: ...


def find(handler: Handler | str, key: str) -> TaskHandle[Any] | None:
    """Find the newest task of a handler with a business key, live or finished.

    Args:
        handler: the handler or its name.
        key: the business key, as in `options(key=...)`.

    Returns:
        Its handle; None if there is none, or if it was pruned.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
        WouldBlock: called on an event loop: await `find_async` there.
    """
    refuse_event_loop("find")
    parts = [client.begin(*of, reads=True) for client, of in _reads(_newest, handler, key)]
    return _latest(part.result() for part in parts)


@overload
async def find_async(handler: TaskHandler[..., Any, R], key: str) -> TaskHandle[R] | None: ...


@overload
async def find_async(handler: str, key: str) -> TaskHandle[Any] | None: ...


async def find_async(handler: Handler | str, key: str) -> TaskHandle[Any] | None:
    """Same as `find`, on an event loop."""
    parts = [wrap_future(client.begin(*of, reads=True)) for client, of in _reads(_newest, handler, key)]
    return _latest(await gather(*parts))


Found: TypeAlias = "tuple[datetime, TaskHandle[Any]] | None"
"""A task with the time of its submit, by which the newest of several databases is chosen."""


def _latest(found: Iterable[Found]) -> TaskHandle[Any] | None:
    tasks = [each for each in found if each is not None]
    return max(tasks, key=lambda each: each[0])[1] if tasks else None


def _reads(verb: "Verb[T]", handler: Handler | str, key: str) -> "list[tuple[Client, Read[T]]]":
    """The client of each database, with the verb and its arguments."""
    name = handler.name if isinstance(handler, Handler) else handler
    require_text("key", key)
    return [(client, (verb, client.settings.shard, name, key)) for client in get_client().each()]


async def _newest(tx: "Transaction", shard: str | None, handler: str, key: str) -> Found:
    import sqlalchemy as sa

    from runner.queries.rows import moment, readable

    found: list[tuple[int, Any]] = []
    for table in (tx.tables.history, tx.tables.task):
        columns = readable(tx, [table.c.id, table.c.submitted_at])
        newest = sa.select(*columns).where(table.c.key == key, table.c.handler == handler)
        found += [tuple(row) for row in await tx.rows(newest.order_by(table.c.id.desc()).limit(1))]
    if not found:
        return None
    id, submitted_at = max(found, key=lambda row: row[0])
    return moment(submitted_at) or datetime.min.replace(tzinfo=UTC), handles([_whole(shard, id)])[0]


async def _live(tx: "Transaction", shard: str | None, handler: str, key: str) -> list[TaskHandle[Any]]:
    import sqlalchemy as sa

    task = tx.tables.task.c
    statement = sa.select(task.id).where(task.key == key, task.handler == handler).order_by(task.id)
    ids = [row.id for row in await tx.rows(statement.limit(MOST_UNFINISHED))]
    return handles(_whole(shard, id) for id in ids)


def _whole(shard: str | None, id: int) -> int:
    """The id with its shard, if there are several."""
    return id if shard is None else ShardId(shard, id)
