"""unfinished: the tasks of a handler and key that have not finished."""

from typing import TYPE_CHECKING, Any

from runner.client.client import get_client, refuse_event_loop
from runner.client.results import TaskHandle
from runner.handlers.registry import Handler

if TYPE_CHECKING:
    import asyncio

    from runner.db.transaction import Transaction


MOST_UNFINISHED = 1_000
"""Maximum number of handles that `unfinished` returns."""


def unfinished(handler: Handler | str, key: str) -> list[TaskHandle[Any]]:
    """Find the unfinished tasks of a handler with a business key: waiting, blocked or running.

    Args:
        handler: the handler or its name.
        key: the business key, as in `options(key=...)`.

    Returns:
        Handles of the oldest 1,000 tasks, in the order of submission; empty if none is unfinished.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
        WouldBlock: called on an event loop: await `unfinished_async` there.
    """
    refuse_event_loop("unfinished")
    handles: list[TaskHandle[Any]] = _find(handler, key).result()
    return handles


async def unfinished_async(handler: Handler | str, key: str) -> list[TaskHandle[Any]]:
    """Same as `unfinished`, on an event loop."""
    from asyncio import wrap_future

    handles: asyncio.Future[list[TaskHandle[Any]]] = wrap_future(_find(handler, key))
    return await handles


def _find(handler: Handler | str, key: str) -> Any:
    name = handler.name if isinstance(handler, Handler) else handler
    return get_client().run(lambda database: database.read(_live, name, key))


async def _live(tx: "Transaction", handler: str, key: str) -> list[TaskHandle[Any]]:
    import sqlalchemy as sa

    task = tx.tables.task.c
    statement = sa.select(task.id).where(task.key == key, task.handler == handler).order_by(task.id)
    return [TaskHandle(row.id) for row in await tx.rows(statement.limit(MOST_UNFINISHED))]
