"""The connections for single statements."""

import asyncio

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction


async def test_a_statement_that_outlives_the_database_closes_its_connection(migrated_url: str) -> None:
    database = Database.open(migrated_url)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(tx: Transaction) -> None:
        begun.set()
        await go_on.wait()

    closed: list[object] = []
    sa.event.listen(database.engine.sync_engine, "close", lambda connection, _: closed.append(connection))
    statement = asyncio.ensure_future(database.read_single(wait))
    await begun.wait()
    await database.dispose()
    assert not closed
    go_on.set()
    await statement
    assert len(closed) == 1


async def test_a_connection_serves_the_next_statement(migrated_url: str) -> None:
    database = Database.open(migrated_url)
    opened: list[object] = []
    sa.event.listen(database.engine.sync_engine, "connect", lambda connection, _: opened.append(connection))

    async def nothing(tx: Transaction) -> None:
        return None

    for _ in range(3):
        await database.write_single(nothing)
    assert len(opened) == 1
    await database.dispose()
