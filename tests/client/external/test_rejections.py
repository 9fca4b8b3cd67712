"""A connection that cannot guarantee the transaction is rejected before any statement, with the next step."""

import sqlite3
import sys
from contextlib import closing
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from runner import TaskHandler, connect
from runner.client.client import get_client
from runner.errors import (
    AutocommitConnection,
    InvalidPayload,
    InvalidRetryPlan,
    InvalidTask,
    RunnerError,
    SyncAsyncMismatch,
    UnknownConnection,
)
from runner.model.task import NewTask
from runner.urls import parse_url, sync_url
from tests.client.external.applications import Application, path, with_driver
from tests.client.external.conftest import EACH_KIND, EACH_WAY, NOWHERE, Books
from tests.store.test_submit import UNSTORABLE

Send = TaskHandler[[int], Any, Any]

on_sqlite = pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)


@on_postgresql
async def test_psycopg_with_autocommit_is_rejected_outside_a_block(migrated_url: str, books: Books, send: Send) -> None:
    with closing(psycopg.connect(migrated_url, autocommit=True)) as connection:
        with pytest.raises(AutocommitConnection, match=r"Open a transaction: with connection.transaction\(\)"):
            send.options(tx=connection).submit(1)
        with connection.transaction():
            send.options(tx=connection).submit(1)
    assert len(await books.tasks()) == 1


@on_postgresql
async def test_async_connections_with_autocommit_are_rejected_outside_a_block(
    migrated_url: str, books: Books, send: Send
) -> None:
    modern = await psycopg.AsyncConnection.connect(migrated_url, autocommit=True)
    fast = await asyncpg.connect(migrated_url)
    for connection in (modern, fast):
        with pytest.raises(AutocommitConnection, match=r"async with connection.transaction\(\)"):
            await send.options(tx=connection).submit_async(1)
        with pytest.raises(AutocommitConnection):
            await send.options(tx=connection).submit_many_async([{"number": 1}])
        await connection.close()
    assert await books.tasks() == []


@on_postgresql
async def test_psycopg2_with_autocommit_is_rejected(migrated_url: str, books: Books, send: Send) -> None:
    with closing(psycopg2.connect(migrated_url)) as connection:
        connection.autocommit = True
        with pytest.raises(AutocommitConnection, match="autocommit to False"):
            send.options(tx=connection).submit(1)
    assert await books.tasks() == []


@on_sqlite
async def test_sqlite3_without_transactions_is_rejected_before_begin(
    migrated_url: str, books: Books, send: Send
) -> None:
    with closing(sqlite3.connect(path(migrated_url), isolation_level=None)) as connection:
        with pytest.raises(AutocommitConnection, match="Execute BEGIN first"):
            send.options(tx=connection).submit(1)
        connection.execute("BEGIN")
        send.options(tx=connection).submit(1)
        connection.commit()
    assert len(await books.tasks()) == 1


@on_sqlite
@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no `autocommit` before Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
async def test_sqlite3_with_autocommit_is_rejected_before_begin(
    migrated_url: str, books: Books, send: Send, autocommit: bool
) -> None:
    options: dict[str, Any] = {"autocommit": autocommit}
    with closing(sqlite3.connect(path(migrated_url), **options)) as connection:
        if autocommit:
            with pytest.raises(AutocommitConnection):
                send.options(tx=connection).submit(1)
            connection.execute("BEGIN")
        send.options(tx=connection).submit(1)
        connection.rollback()
    assert await books.tasks() == []


@on_sqlite
async def test_aiosqlite_without_transactions_is_rejected_before_begin(
    migrated_url: str, books: Books, send: Send
) -> None:
    async with aiosqlite.connect(path(migrated_url), isolation_level=None) as connection:
        with pytest.raises(AutocommitConnection):
            await send.options(tx=connection).submit_async(1)
        await connection.execute("BEGIN")
        await send.options(tx=connection).submit_async(1)
        await connection.commit()
    assert len(await books.tasks()) == 1


@pytest.mark.parametrize(
    ("databases", "driver"),
    [("sqlite", "pysqlite"), ("postgresql", "psycopg"), ("postgresql", "psycopg2")],
    indirect=["databases"],
)
async def test_sqlalchemy_with_autocommit_is_rejected(migrated_url: str, books: Books, send: Send, driver: str) -> None:
    engine = sa.create_engine(with_driver(migrated_url, driver), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(AutocommitConnection):
        send.options(tx=connection).submit(1)
    engine.dispose()
    assert await books.tasks() == []


@pytest.mark.parametrize(
    ("databases", "driver"), [("sqlite", "aiosqlite"), ("postgresql", "asyncpg")], indirect=["databases"]
)
async def test_async_sqlalchemy_with_autocommit_is_rejected(
    migrated_url: str, books: Books, send: Send, driver: str
) -> None:
    engine = create_async_engine(with_driver(migrated_url, driver))
    async with engine.connect() as connection:
        alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(AutocommitConnection):
            await send.options(tx=alone).submit_async(1)
    await engine.dispose()
    assert await books.tasks() == []


@on_sqlite
async def test_sqlalchemy_with_an_explicit_begin_is_accepted(migrated_url: str, books: Books, send: Send) -> None:
    engine = sa.create_engine(with_driver(migrated_url, "pysqlite"))
    sa.event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.connect() as connection:
        send.options(tx=connection).submit(1)
        connection.rollback()
    engine.dispose()
    assert await books.tasks() == []


@EACH_KIND
async def test_sync_and_async_submits_must_match_the_connection(application: Application, send: Send) -> None:
    call = send.options(tx=application.tx)
    if application.awaited:
        with pytest.raises(SyncAsyncMismatch, match=r"is async\. Use submit_async or submit_many_async"):
            call.submit(1)
        with pytest.raises(SyncAsyncMismatch):
            call.submit_many([{"number": 1}])
    else:
        with pytest.raises(SyncAsyncMismatch, match=r"is not async\. Use submit or submit_many"):
            await call.submit_async(1)
        with pytest.raises(SyncAsyncMismatch):
            await call.submit_many_async([{"number": 1}])


@pytest.mark.parametrize("tx", [object(), "postgresql://db/app", sqlite3.Connection, 7], ids=range(4))
@on_sqlite
def test_an_object_that_is_not_a_connection_is_rejected(send: Send, tx: Any) -> None:
    with pytest.raises(UnknownConnection, match=r"^The type \S+ cannot be used as tx\."):
        send.options(tx=tx).submit(1)


@on_sqlite
def test_a_connection_to_an_unsupported_database_is_rejected(send: Send) -> None:
    engine = sa.create_engine("sqlite://")
    engine.dialect.name = "mysql"
    with engine.connect() as connection, pytest.raises(UnknownConnection, match="connection to mysql"):
        send.options(tx=connection).submit(1)
    engine.dispose()


@EACH_WAY
async def test_the_drivers_error_about_missing_tables_names_the_migrate_command(
    application: Application, send: Send
) -> None:
    connect(url=NOWHERE, table_prefix="elsewhere_")
    with pytest.raises(Exception, match="elsewhere_task") as refused:
        await application.submit(send, 1)
    assert not isinstance(refused.value, RunnerError)
    assert "runner migrate" in "".join(refused.value.__notes__)


@pytest.mark.both_databases
def test_a_table_of_the_application_with_our_name_names_the_prefix(send: Send, database_url: str) -> None:
    connect(url=parse_url(database_url), table_prefix="own_")
    engine = sa.create_engine(sync_url(database_url))
    with engine.connect() as connection:
        connection.execute(sa.text("CREATE TABLE own_task (id INTEGER PRIMARY KEY, title TEXT)"))
        with pytest.raises(sa.exc.DBAPIError, match="handler") as refused:
            send.options(tx=connection).submit(1)
    engine.dispose()
    assert "set table_prefix first" in "".join(refused.value.__notes__)


@EACH_WAY
async def test_a_value_that_cannot_be_stored_leaves_the_transaction_intact(
    application: Application, books: Books
) -> None:
    await application.execute("INSERT INTO business VALUES (1)")
    # A call always produces a JSON object, so these two cases cannot occur.
    for options in (UNSTORABLE[name] for name in UNSTORABLE.keys() - {"no JSON", "a payload that is no object"}):
        with pytest.raises((InvalidTask, InvalidRetryPlan)):
            await within(application, [NewTask("work"), NewTask(**{"handler": "work"} | options)])
    await application.commit()
    assert (await books.business(), await books.tasks()) == ([1], [])


@EACH_WAY
async def test_an_invalid_call_leaves_the_transaction_intact(
    application: Application, books: Books, send: Send
) -> None:
    await application.execute("INSERT INTO business VALUES (1)")
    with pytest.raises(InvalidPayload):
        await application.submit(send, "seven")
    await application.commit()
    assert (await books.business(), await books.tasks()) == ([1], [])


async def within(application: Application, tasks: list[NewTask]) -> None:
    if application.awaited:
        await get_client().submit_within_async(application.tx, tasks)
    else:
        get_client().submit_within(application.tx, tasks)
