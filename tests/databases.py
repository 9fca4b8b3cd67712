"""A database that is open during one call."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from runner.db.database import Database

T = TypeVar("T")


def use(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """Open a database, and run a coroutine with it on an event loop of its own."""

    async def once() -> T:
        database = Database.open(url)
        try:
            return await work(database)
        finally:
            await database.dispose()

    return asyncio.run(once())


def migrate(url: str) -> None:
    """Create our tables in a database."""
    use(url, lambda database: database.migrate())
