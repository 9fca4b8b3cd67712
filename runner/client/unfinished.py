"""unfinished: the tasks of a handler and key that have not finished."""

from typing import TYPE_CHECKING, Any

from runner.client.client import get_client, refuse_event_loop
from runner.client.database_client import Client
from runner.client.results import TaskHandle, handles
from runner.handlers.registry import Handler
from runner.model.shard import ShardId

if TYPE_CHECKING:
    from concurrent.futures import Future

    from runner.db.transaction import Transaction


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
    return [handle for part in _find(handler, key) for handle in part.result()]


async def unfinished_async(handler: Handler | str, key: str) -> list[TaskHandle[Any]]:
    """Same as `unfinished`, on an event loop."""
    from asyncio import wrap_future

    return [handle for part in _find(handler, key) for handle in await wrap_future(part)]


def _find(handler: Handler | str, key: str) -> "list[Future[list[TaskHandle[Any]]]]":
    """Begin to read the handles of each database."""
    name = handler.name if isinstance(handler, Handler) else handler
    return [_find_in(client, name, key) for client in get_client().each()]


def _find_in(client: Client, handler: str, key: str) -> "Future[list[TaskHandle[Any]]]":
    shard = client.settings.shard
    return client.run(lambda database: database.read(_live, shard, handler, key))


async def _live(tx: "Transaction", shard: str | None, handler: str, key: str) -> list[TaskHandle[Any]]:
    import sqlalchemy as sa

    task = tx.tables.task.c
    statement = sa.select(task.id).where(task.key == key, task.handler == handler).order_by(task.id)
    ids = [row.id for row in await tx.rows(statement.limit(MOST_UNFINISHED))]
    return handles(ids if shard is None else [ShardId(shard, id) for id in ids])
