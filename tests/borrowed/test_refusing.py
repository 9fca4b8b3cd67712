"""A connection that could not keep the promise is refused, before a statement is sent and with what to do instead."""

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
from runner.door.door import door
from runner.errors import (
    CommitsByItself,
    InvalidPayload,
    InvalidRetryPlan,
    InvalidTask,
    RunnerError,
    UnknownConnection,
    WrongForm,
)
from runner.task import NewTask
from tests.borrowed.applications import Application, path, with_driver
from tests.borrowed.conftest import EACH_KIND, EACH_WAY, NOWHERE, Books
from tests.store.test_submit import UNSTORABLE

Send = TaskHandler[[int], Any, Any]

on_sqlite = pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)


@on_postgresql
async def test_psycopg_with_autocommit_is_refused_outside_of_a_block(
    migrated_url: str, books: Books, send: Send
) -> None:
    with closing(psycopg.connect(migrated_url, autocommit=True)) as connection:
        with pytest.raises(CommitsByItself, match=r"with connection.transaction\(\)"):
            send.options(tx=connection).submit(1)
        with connection.transaction():
            send.options(tx=connection).submit(1)
    assert len(await books.tasks()) == 1


@on_postgresql
async def test_awaited_connections_with_autocommit_are_refused_outside_of_a_block(
    migrated_url: str, books: Books, send: Send
) -> None:
    modern = await psycopg.AsyncConnection.connect(migrated_url, autocommit=True)
    fast = await asyncpg.connect(migrated_url)
    for connection in (modern, fast):
        with pytest.raises(CommitsByItself, match=r"async with connection.transaction\(\)"):
            await send.options(tx=connection).submit_async(1)
        with pytest.raises(CommitsByItself):
            await send.options(tx=connection).submit_many_async([{"number": 1}])
        await connection.close()
    assert await books.tasks() == []


@on_postgresql
async def test_psycopg2_with_autocommit_is_refused(migrated_url: str, books: Books, send: Send) -> None:
    with closing(psycopg2.connect(migrated_url)) as connection:
        connection.autocommit = True
        with pytest.raises(CommitsByItself, match="autocommit to False"):
            send.options(tx=connection).submit(1)
    assert await books.tasks() == []


@on_sqlite
async def test_sqlite3_without_transactions_is_refused_before_begin(
    migrated_url: str, books: Books, send: Send
) -> None:
    with closing(sqlite3.connect(path(migrated_url), isolation_level=None)) as connection:
        with pytest.raises(CommitsByItself, match="Execute BEGIN first"):
            send.options(tx=connection).submit(1)
        connection.execute("BEGIN")
        send.options(tx=connection).submit(1)
        connection.commit()
    assert len(await books.tasks()) == 1


@on_sqlite
@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no `autocommit` before Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
async def test_sqlite3_with_autocommit_is_refused_before_begin(
    migrated_url: str, books: Books, send: Send, autocommit: bool
) -> None:
    options: dict[str, Any] = {"autocommit": autocommit}
    with closing(sqlite3.connect(path(migrated_url), **options)) as connection:
        if autocommit:
            with pytest.raises(CommitsByItself):
                send.options(tx=connection).submit(1)
            connection.execute("BEGIN")
        send.options(tx=connection).submit(1)
        connection.rollback()
    assert await books.tasks() == []


@on_sqlite
async def test_aiosqlite_without_transactions_is_refused_before_begin(
    migrated_url: str, books: Books, send: Send
) -> None:
    async with aiosqlite.connect(path(migrated_url), isolation_level=None) as connection:
        with pytest.raises(CommitsByItself):
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
async def test_sqlalchemy_with_autocommit_is_refused(migrated_url: str, books: Books, send: Send, driver: str) -> None:
    engine = sa.create_engine(with_driver(migrated_url, driver), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(CommitsByItself):
        send.options(tx=connection).submit(1)
    engine.dispose()
    assert await books.tasks() == []


@pytest.mark.parametrize(
    ("databases", "driver"), [("sqlite", "aiosqlite"), ("postgresql", "asyncpg")], indirect=["databases"]
)
async def test_awaited_sqlalchemy_with_autocommit_is_refused(
    migrated_url: str, books: Books, send: Send, driver: str
) -> None:
    engine = create_async_engine(with_driver(migrated_url, driver))
    async with engine.connect() as connection:
        alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(CommitsByItself):
            await send.options(tx=alone).submit_async(1)
    await engine.dispose()
    assert await books.tasks() == []


@on_sqlite
async def test_sqlalchemy_that_begins_by_its_own_rule_is_taken(migrated_url: str, books: Books, send: Send) -> None:
    engine = sa.create_engine(with_driver(migrated_url, "pysqlite"))
    sa.event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.connect() as connection:
        send.options(tx=connection).submit(1)
        connection.rollback()
    engine.dispose()
    assert await books.tasks() == []


@EACH_KIND
async def test_the_form_must_be_that_of_the_connection(application: Application, send: Send) -> None:
    call = send.options(tx=application.tx)
    if application.awaited:
        with pytest.raises(WrongForm, match=r"is awaited\. Call submit_async or submit_many_async"):
            call.submit(1)
        with pytest.raises(WrongForm):
            call.submit_many([{"number": 1}])
    else:
        with pytest.raises(WrongForm, match=r"is not awaited\. Call submit or submit_many"):
            await call.submit_async(1)
        with pytest.raises(WrongForm):
            await call.submit_many_async([{"number": 1}])


@pytest.mark.parametrize("tx", [object(), "postgresql://db/app", sqlite3.Connection, 7], ids=range(4))
@on_sqlite
def test_what_is_no_connection_is_refused(send: Send, tx: Any) -> None:
    with pytest.raises(UnknownConnection, match="cannot be given as tx"):
        send.options(tx=tx).submit(1)


@on_sqlite
def test_a_connection_to_another_kind_of_database_is_refused(send: Send) -> None:
    engine = sa.create_engine("sqlite://")
    engine.dialect.name = "mysql"
    with engine.connect() as connection, pytest.raises(UnknownConnection, match="connection to mysql"):
        send.options(tx=connection).submit(1)
    engine.dispose()


@EACH_WAY
async def test_where_there_are_no_tables_the_drivers_error_says_what_makes_them(
    application: Application, send: Send
) -> None:
    connect(url=NOWHERE, table_prefix="elsewhere_")
    with pytest.raises(Exception, match="elsewhere_task") as refused:
        await application.submit(send, 1)
    assert not isinstance(refused.value, RunnerError)
    assert "runner migrate" in "".join(refused.value.__notes__)


@EACH_WAY
async def test_values_that_cannot_be_stored_leave_the_transaction_as_it_was(
    application: Application, books: Books
) -> None:
    await application.execute("INSERT INTO business VALUES (1)")
    # Whoever submits by calling gets JSON from us: what is none, none can say.
    for options in (UNSTORABLE[name] for name in UNSTORABLE.keys() - {"no JSON", "a payload that is no object"}):
        with pytest.raises((InvalidTask, InvalidRetryPlan)):
            await within(application, [NewTask("work"), NewTask(**{"handler": "work"} | options)])
    await application.commit()
    assert (await books.business(), await books.tasks()) == ([1], [])


@EACH_WAY
async def test_a_call_that_does_not_fit_leaves_the_transaction_as_it_was(
    application: Application, books: Books, send: Send
) -> None:
    await application.execute("INSERT INTO business VALUES (1)")
    with pytest.raises(InvalidPayload):
        await application.submit(send, "seven")
    await application.commit()
    assert (await books.business(), await books.tasks()) == ([1], [])


async def within(application: Application, tasks: list[NewTask]) -> None:
    if application.awaited:
        await door().submit_within_async(application.tx, tasks)
    else:
        door().submit_within(application.tx, tasks)
