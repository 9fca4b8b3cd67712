"""The connections for single statements."""

import asyncio
import sqlite3
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from runner.db import connect
from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import DatabaseLocked
from runner.model.task import NewTask
from runner.store.submit import submit
from tests.conftest import on_sqlite


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


async def tasks(database: Database) -> int:
    async with database.reading() as tx:
        return int(await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.task)))


@on_sqlite
async def test_a_transaction_begins_when_another_program_ends_its_own(database: Database) -> None:
    rival = sqlite3.connect(urlsplit(database.url).path, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    writing = asyncio.ensure_future(database.write_single(submit, NewTask("work")))
    done, _ = await asyncio.wait([writing], timeout=0.05)
    assert not done
    rival.execute("COMMIT")
    assert await writing
    rival.close()


@on_sqlite
async def test_a_transaction_that_cannot_begin_in_time_is_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.01)
    rival = sqlite3.connect(urlsplit(database.url).path, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseLocked):
        await database.write_single(submit, NewTask("work"))
    rival.execute("ROLLBACK")
    assert await database.write_single(submit, NewTask("work"))
    rival.close()


@on_sqlite
async def test_a_failed_transaction_of_one_call_leaves_nothing(database: Database) -> None:
    async def fail(tx: Transaction) -> None:
        await submit(tx, NewTask("work"))
        raise ValueError("no")

    async def suspend(tx: Transaction) -> None:
        await submit(tx, NewTask("work"))
        await asyncio.sleep(0)

    with pytest.raises(ValueError, match="no"):
        await database.write_single(fail)
    with pytest.raises(RuntimeError, match="prepared statements only"):
        await database.write_single(suspend)
    assert await tasks(database) == 0
