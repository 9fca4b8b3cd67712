"""The parts of a database that migrations use, as protocols, because runner.store is a layer above."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from runner.db.async_core import AsyncCoreConnection
from runner.db.dialects import Dialect
from runner.db.schema import Tables

T = TypeVar("T")


class MigrationTransaction(Protocol):
    """An open transaction."""

    connection: AsyncCoreConnection
    tables: Tables


class Installation(Protocol):
    """A database with one set of task tables, which may have a prefix and a schema."""

    dialect: Dialect
    url: str
    """URL without a password, for messages."""
    tables: Tables

    def reading(self) -> AbstractAsyncContextManager[MigrationTransaction]:
        """Open a read-only transaction."""
        ...

    async def write(self, verb: Callable[[MigrationTransaction], Awaitable[T]]) -> T:
        """Run `verb` in a transaction, and again if it conflicts with another one."""
        ...


def version_table(prefix: str) -> str:
    """Return the name of the table that stores the revision."""
    return f"{prefix}task_schema"
