"""What migrating asks of a database: the little of runner.store that is needed here, one layer below it."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from runner.schema import Tables

T = TypeVar("T")


class Transaction(Protocol):
    """An open transaction."""

    connection: AsyncConnection
    tables: Tables


class Installation(Protocol):
    """A database with one set of our tables, which may have a prefix and a schema."""

    engine: AsyncEngine
    url: str
    """As people may see it, without a password."""
    tables: Tables

    def reading(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction that can change nothing."""
        ...

    async def write(self, verb: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `verb` in a transaction of its own, again when it lost against another one."""
        ...


def version_table(prefix: str) -> str:
    """The name of the table that holds the revision, with the prefix of its installation."""
    return f"{prefix}task_schema"
