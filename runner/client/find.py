"""The search for the tasks of a handler and a business key."""

from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from runner.client.client import get_client, refuse_event_loop
from runner.client.database_client import Client
from runner.client.results import TaskHandle, handles
from runner.handlers.registry import Handler
from runner.model.shard import ShardId

if TYPE_CHECKING:
    from runner.db.transaction import Transaction

T = TypeVar("T")

MOST_UNFINISHED = 1_000
"""Maximum number of handles that `unfinished` returns."""


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
    return [handle for part in _begin(_live, handler, key) for handle in part.result()]


async def unfinished_async(handler: Handler | str, key: str) -> list[TaskHandle[Any]]:
    """Same as `unfinished`, on an event loop."""
    return [handle for part in _begin(_live, handler, key) for handle in await wrap_future(part)]


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
    return _latest(part.result() for part in _begin(_newest, handler, key))


async def find_async(handler: Handler | str, key: str) -> TaskHandle[Any] | None:
    """Same as `find`, on an event loop."""
    return _latest([await wrap_future(part) for part in _begin(_newest, handler, key)])


Found: TypeAlias = "tuple[datetime, TaskHandle[Any]] | None"
"""A task with the time of its submit, by which the newest of several databases is chosen."""


def _latest(found: Iterable[Found]) -> TaskHandle[Any] | None:
    tasks = [each for each in found if each is not None]
    return max(tasks, key=lambda each: each[0])[1] if tasks else None


def _begin(
    verb: "Callable[[Transaction, str | None, str, str], Awaitable[T]]", handler: Handler | str, key: str
) -> list[Future[T]]:
    """Begin to read from each database."""
    name = handler.name if isinstance(handler, Handler) else handler

    def begin(client: Client) -> Future[T]:
        return client.run(lambda database: database.read(verb, client.settings.shard, name, key))

    return [begin(client) for client in get_client().each()]


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
