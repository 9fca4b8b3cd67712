"""Applications that submit in their own transactions, and a database to check the result."""

import json
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from runner import TaskHandler, connect, disconnect, handler
from runner.db.database import Database
from runner.handlers.registry import REGISTRY
from runner.urls import parse_url
from tests.client.external.applications import KINDS, Application

NOWHERE = parse_url("postgresql://nowhere.invalid/none?sslmode=disable")


WAYS = [
    "sqlite3",
    "aiosqlite",
    "Session over pysqlite",
    "AsyncConnection over aiosqlite",
    "psycopg",
    "psycopg, awaited",
    "psycopg2",
    "asyncpg",
    "Connection over psycopg",
    "AsyncSession over asyncpg",
    "async_scoped_session over asyncpg",
]
"""One kind of connection for each code path; the others differ only in their configuration."""


def kinds(*databases: str, only: Collection[str] = ()) -> pytest.MarkDecorator:
    """Run a test with every kind of connection to these databases, or with some kinds."""
    named = [(database, kind) for database in databases for kind in KINDS[database] if not only or kind in only]
    values = [
        pytest.param(*names, id=names[1], marks=() if names[1] in WAYS or only else pytest.mark.slow) for names in named
    ]
    return pytest.mark.parametrize(("databases", "kind"), values, indirect=["databases"])


EACH_KIND = kinds("sqlite", "postgresql")
ON_POSTGRESQL = kinds("postgresql")
EACH_WAY = kinds("sqlite", "postgresql", only=WAYS)


@pytest.fixture(autouse=True)
def client_cannot_connect(migrated_url: str) -> Iterator[None]:
    """Make the client's own connection fail, so that every submit must use the connection of the test."""
    connect(url=NOWHERE)
    yield
    disconnect()


@pytest.fixture
async def application(kind: str, migrated_url: str, books: "Books") -> AsyncIterator[Application]:
    """The application with an open transaction."""
    async with KINDS[migrated_url.partition(":")[0]][kind](migrated_url) as opened:
        yield opened


@pytest.fixture
def send() -> Iterator[TaskHandler[[int], Any, Any]]:
    @handler("test.send", queue="mail")
    def send(number: int) -> int:
        return number

    yield send
    REGISTRY._handlers.pop(send.name)


class Books:
    """The application's stored rows, and the stored tasks."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def business(self) -> list[int]:
        return await self._numbers(sa.text("SELECT number FROM business ORDER BY number"))

    async def tasks(self) -> list[int]:
        task = self.database.tables.task
        return await self._numbers(sa.select(task.c.id).order_by(task.c.id))

    async def numbers(self) -> list[int]:
        """The argument of each `test.send` task."""
        async with self.database.reading() as tx:
            return [json.loads(row[0])["number"] for row in await tx.rows(sa.select(tx.tables.task.c.payload))]

    async def _numbers(self, statement: Any) -> list[int]:
        async with self.database.reading() as tx:
            return [row[0] for row in await tx.rows(statement)]


async def make_business(database: Database) -> None:
    """Create the application's table, empty."""
    async with database.writing() as tx:
        await tx.execute(sa.text("CREATE TABLE IF NOT EXISTS business (number INTEGER PRIMARY KEY)"))
        await tx.execute(sa.text("DELETE FROM business"))


@pytest.fixture
async def books(database: Database) -> Books:
    await make_business(database)
    return Books(database)
