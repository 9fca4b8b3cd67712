"""A database that is open during one call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from runner.db.database import Database

T = TypeVar("T")


def use(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """Open a database, and run a coroutine with it on an event loop of its own."""

    async def once() -> T:
        async with database_at(url) as database:
            return await work(database)

    return asyncio.run(once())


def migrate(url: str) -> None:
    """Create our tables in a database."""
    use(url, lambda database: database.migrate())


@asynccontextmanager
async def database_at(url: str, **options: Any) -> AsyncIterator[Database]:
    """Open a database during a block."""
    database = Database.open(url, **options)
    try:
        yield database
    finally:
        await database.dispose()
