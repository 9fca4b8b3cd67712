"""The connections for single statements."""

import asyncio
import sqlite3
import threading
import time
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa

from runner.db import connect
from runner.db.database import Database
from runner.db.handler_transactions import Wait
from runner.db.needs import Needs, needs
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.errors import DatabaseLocked, DatabaseUnavailable, ValueRejected
from runner.model.task import NewTask
from runner.store.submit import submit
from tests.conftest import on_postgresql, on_sqlite
from tests.db.test_transactions import begin_now
from tests.store.table import count


async def test_a_statement_that_outlives_the_database_closes_its_connection(migrated_url: str) -> None:
    database = Database.open(migrated_url)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @needs(Needs.PREPARED)
    async def wait(tx: Transaction) -> None:
        begun.set()
        await go_on.wait()

    closed: list[object] = []
    sa.event.listen(database.engine.sync_engine, "close", lambda connection, _: closed.append(connection))
    statement = asyncio.ensure_future(database.read(wait))
    await begun.wait()
    await database.dispose()
    assert not closed
    go_on.set()
    await statement
    assert len(closed) == 1


@pytest.mark.parametrize("kind", ["read", "write", "handler", "thread"])
async def test_a_transaction_that_outlives_the_database_closes_its_connection(migrated_url: str, kind: str) -> None:
    database, closed = Database.open(migrated_url), threading.Event()
    begun, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hold(transaction: AbstractAsyncContextManager[Transaction]) -> None:
        async with transaction as tx:
            listen(tx.connection.sync_connection.engine)
            await go_on.wait()

    def hold_in_thread() -> None:
        with database.for_handler_in_thread(Wait(1)) as tx:
            listen(tx.connection.engine)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    def listen(engine: sa.Engine) -> None:
        sa.event.listen(engine, "close", lambda *_: closed.set())
        loop.call_soon_threadsafe(begun.set)

    held = {
        "read": lambda: hold(database.reading()),
        "write": lambda: hold(database.writing()),
        "handler": lambda: hold(database.for_handler(Wait(1))),
        "thread": lambda: asyncio.to_thread(hold_in_thread),
    }
    transaction = asyncio.ensure_future(held[kind]())
    await begun.wait()
    await database.dispose()
    assert not closed.is_set()
    go_on.set()
    await transaction
    assert closed.is_set()


async def test_a_connection_serves_the_next_statement(migrated_url: str) -> None:
    database = Database.open(migrated_url)
    opened: list[object] = []
    sa.event.listen(database.engine.sync_engine, "connect", lambda connection, _: opened.append(connection))

    @needs(Needs.PREPARED)
    async def nothing(tx: Transaction) -> None:
        return None

    for _ in range(3):
        await database.write(nothing)
    assert len(opened) == 1
    await database.dispose()


async def test_a_verb_gets_the_connection_that_it_had_last(migrated_url: str) -> None:
    database, together = Database.open(migrated_url), asyncio.Barrier(2)

    @needs(Needs.PREPARED)
    async def claim(tx: Transaction, alone: bool) -> object:
        alone or await together.wait()
        return tx.connection

    @needs(Needs.PREPARED)
    async def settle(tx: Transaction, alone: bool) -> object:
        return await claim(tx, alone)

    first = await asyncio.gather(database.read(claim, False), database.read(settle, False))
    assert first[0] is not first[1]
    for _ in range(2):
        assert await database.read(claim, True) is first[0]
        assert await database.read(settle, True) is first[1]
    await database.dispose()


async def test_prepared_statements_of_one_transaction_commit_or_roll_back_together(migrated_url: str) -> None:
    database = Database.open(migrated_url)

    @needs(Needs.PREPARED_TRANSACTION)
    async def rename(tx: Transaction, name: str, fails: bool) -> list[Any]:
        queue = tx.tables.queue
        name_now = sa.bindparam("now", type_=sa.Text)
        insert = sa.insert(queue).values(name=name_now).returning(queue.c.name)
        change = sa.update(queue).where(queue.c.name == name_now).values(paused_by="ana")
        select = sa.select(queue.c.name, queue.c.paused_by).where(queue.c.name == name_now)
        inserted = await tx.run(Prepared(insert, tx.driver), {"now": name})
        await tx.run(Prepared(change, tx.driver), {"now": name})
        assert await tx.run(Prepared(select, tx.driver), {"now": name}) == [(name, "ana")]
        if fails:
            raise ZeroDivisionError
        return inserted

    assert await database.write(rename, "kept", fails=False) == [("kept",)]
    with pytest.raises(ZeroDivisionError):
        await database.write(rename, "gone", fails=True)
    async with database.reading() as tx:
        assert (await tx.rows(sa.select(tx.tables.queue.c.name))) == [("kept",)]
    await database.dispose()


@on_postgresql
async def test_a_lock_that_is_not_free_in_time_leaves_the_transaction_usable(
    database: Database, rival: Database
) -> None:
    tables = database.tables
    async with database.writing() as tx:
        await tx.execute(sa.insert(tables.queue).values(name="mail"))
    lock = sa.select(tables.queue.c.name).with_for_update()

    async def wait(tx: Transaction) -> tuple[bool, list[Any]]:
        prepared = Prepared(lock, tx.driver)
        return await tx.await_locks(prepared, {}, "20ms"), await tx.run(Prepared(sa.select(1), tx.driver), {})

    @needs(Needs.PREPARED_TRANSACTION)
    async def wait_prepared(tx: Transaction) -> tuple[bool, list[Any]]:
        return await wait(tx)

    async with rival.writing() as other:
        await other.rows(lock)
        for verb in (wait_prepared, wait):
            assert await database.write(verb) == (False, [(1,)])
    assert await database.write(wait_prepared) == (True, [(1,)])


@on_sqlite
async def test_a_transaction_begins_when_another_program_ends_its_own(database: Database) -> None:
    rival = sqlite3.connect(urlsplit(database.url).path, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    writing = asyncio.ensure_future(database.write(submit, NewTask("work")))
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
        await database.write(submit, NewTask("work"))
    rival.execute("ROLLBACK")
    assert await database.write(submit, NewTask("work"))
    rival.close()


@on_sqlite
async def test_a_failed_transaction_of_one_call_leaves_nothing(database: Database) -> None:
    @needs(Needs.PREPARED)
    async def fail(tx: Transaction) -> None:
        await submit(tx, NewTask("work"))
        raise ValueError("no")

    @needs(Needs.PREPARED)
    async def suspend(tx: Transaction) -> None:
        await submit(tx, NewTask("work"))
        await asyncio.sleep(0)

    with pytest.raises(ValueError, match="no"):
        await database.write(fail)
    with pytest.raises(RuntimeError, match="prepared statements only"):
        await database.write(suspend)
    assert await count(database, database.tables.task) == 0


@on_sqlite
async def test_a_call_that_fails_leaves_those_behind_it_alone(database: Database) -> None:
    @needs(Needs.PREPARED)
    async def fail(tx: Transaction) -> None:
        await submit(tx, NewTask("work"))
        raise ValueError("no")

    calls = [database.write(fail), *(database.write(submit, NewTask("work")) for _ in range(3))]
    failed, *ids = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(failed, ValueError)
    assert len(set(ids)) == await count(database, database.tables.task) == 3
    assert await database.write(submit, NewTask("work")) not in ids


@on_sqlite
async def test_the_file_is_free_before_the_first_statement_and_after_the_last(database: Database) -> None:
    def write_elsewhere() -> None:
        begin_now(database.url)
        free.append(len(free))

    @needs(Needs.PREPARED)
    async def work(tx: Transaction) -> int:
        write_elsewhere()
        task_id = await submit(tx, NewTask("work"))
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            write_elsewhere()
        await tx.complete()
        write_elsewhere()
        return task_id

    free: list[int] = []
    assert await database.write(work)
    assert free == [0, 1]
    assert await count(database, database.tables.task) == 1


@needs(Needs.PREPARED)
async def refused(tx: Transaction) -> None:
    await submit(tx, NewTask("work"))
    raise ValueError("no")


@needs(Needs.PREPARED)
async def dangling(tx: Transaction) -> None:
    """Fail at the commit."""
    await tx.run(Prepared(sa.text("INSERT INTO leaf (parent) VALUES (1)"), tx.driver), {})


async def written_behind_a_rival(database: Database, *verbs: Any) -> tuple[list[Any], int]:
    """Run verbs that all wait for another program; return their results or errors, and the number of commits."""
    rival, statements = sqlite3.connect(urlsplit(database.url).path, isolation_level=None), list[str]()
    rival.execute("CREATE TABLE IF NOT EXISTS root (id INTEGER PRIMARY KEY)")
    rival.execute("CREATE TABLE IF NOT EXISTS leaf (parent INTEGER REFERENCES root (id) DEFERRABLE INITIALLY DEFERRED)")
    rival.execute("BEGIN IMMEDIATE")

    def watch(connection: Any, _: Any) -> None:
        connection.driver_connection._conn.set_trace_callback(statements.append)

    sa.event.listen(database.engine.sync_engine, "connect", watch)
    calls = asyncio.gather(*(database.write(verb) for verb in verbs), return_exceptions=True)
    while "BEGIN IMMEDIATE" not in statements:
        await asyncio.sleep(0.001)
    for _ in range(10 * len(verbs)):
        await asyncio.sleep(0)  # the others line up behind the first one
    assert "COMMIT" not in statements
    rival.execute("COMMIT")
    rival.close()
    return await calls, statements.count("COMMIT")


@on_sqlite
async def test_a_transaction_that_could_not_begin_takes_no_part_in_a_later_commit(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.5)
    rival, statements = sqlite3.connect(urlsplit(database.url).path, isolation_level=None), list[str]()
    rival.execute("BEGIN IMMEDIATE")

    def watch(connection: Any, _: Any) -> None:
        connection.driver_connection._conn.set_trace_callback(statements.append)

    sa.event.listen(database.engine.sync_engine, "connect", watch)
    calls = asyncio.gather(*(database.write(submit_one) for _ in range(2)), return_exceptions=True)
    while "BEGIN IMMEDIATE" not in statements:
        await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0)  # the second one lines up behind the first one
    # The event loop is too busy to hear of the failure of the first one.
    while statements.count("PRAGMA busy_timeout = 0") < 2 or statements[-1] != "BEGIN IMMEDIATE":
        time.sleep(0.001)
    rival.execute("COMMIT")
    rival.close()
    while "COMMIT" not in statements:
        time.sleep(0.001)
    failed, task_id = await calls
    assert isinstance(failed, DatabaseLocked)
    assert (await count(database, database.tables.task), task_id) == (1, 1)


@needs(Needs.PREPARED)
async def submit_one(tx: Transaction) -> int:
    return await submit(tx, NewTask("work"))


@on_sqlite
async def test_transactions_that_wait_for_another_program_share_a_commit(database: Database) -> None:
    ids, commits = await written_behind_a_rival(database, *[submit_one] * 3)
    assert len(set(ids)) == await count(database, database.tables.task) == 3
    assert commits == 1


@on_sqlite
@pytest.mark.parametrize("index", [0, 1, 2])
async def test_a_transaction_that_fails_beside_others_fails_alone(database: Database, index: int) -> None:
    verbs: list[Any] = [submit_one, submit_one]
    verbs.insert(index, refused)
    results, commits = await written_behind_a_rival(database, *verbs)
    assert isinstance(results.pop(index), ValueError)
    assert len(set(results)) == await count(database, database.tables.task) == 2
    assert commits == 2


@on_sqlite
async def test_a_shared_commit_that_fails_fails_for_all(database: Database) -> None:
    results, _ = await written_behind_a_rival(database, submit_one, dangling, submit_one)
    assert [type(result) for result in results] == [ValueRejected] * 3
    assert await count(database, database.tables.task) == 0
    assert await database.write(submit_one)


@pytest.mark.representatives(2)
@on_postgresql
@pytest.mark.parametrize("use", ["read", "write", "read prepared", "write prepared", "for_handler", "in_thread"])
async def test_a_connection_that_the_server_ends_gives_its_place_back(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """The server ends each new connection while it is prepared, and later in its transaction, more often than the
    pool has places."""
    database = Database.open(migrated_url)
    ends = psycopg.connect(migrated_url, autocommit=True)
    keep_plans = type(database.dialect).keep_plans

    async def ended(self: Any, driver: Any) -> bool:
        ends.execute("SELECT pg_terminate_backend(%s)", (driver.info.backend_pid,))
        return await keep_plans(self, driver)

    async def work(tx: Transaction) -> int:
        return int(await tx.scalar(sa.text("SELECT 1")))

    async def end(tx: Transaction) -> None:
        ends.execute("SELECT pg_terminate_backend(%s)", (await tx.scalar(sa.text("SELECT pg_backend_pid()")),))
        await work(tx)

    monkeypatch.setattr(type(database.dialect), "keep_plans", ended)
    for _ in range(15):
        with pytest.raises((DatabaseUnavailable, sa.exc.DBAPIError)):
            await used(database, migrated_url, use, end)
    monkeypatch.undo()
    assert await used(database, migrated_url, use, work) == 1
    ends.close()
    await database.dispose()


async def used(database: Database, url: str, use: str, verb: Any) -> Any:
    """Run a verb in one of the ways to use a connection."""
    if use == "for_handler":
        async with database.for_handler(Wait(1)) as tx:
            return await verb(tx)
    if use == "in_thread":
        return await asyncio.to_thread(used_in_thread, database, url, verb.__name__ == "end")
    way, _, prepared = use.partition(" ")

    @needs(Needs.PREPARED if prepared else Needs.TRANSACTION)
    async def declared(tx: Transaction) -> Any:
        return await verb(tx)

    return await getattr(database, way)(declared)


def used_in_thread(database: Database, url: str, ends: bool) -> int:
    with database.for_handler_in_thread(Wait(1)) as tx:
        if ends:
            pid = tx.connection.execute(sa.text("SELECT pg_backend_pid()")).scalar()
            with psycopg.connect(url, autocommit=True) as server:
                server.execute("SELECT pg_terminate_backend(%s)", (pid,))
        return int(tx.connection.execute(sa.text("SELECT 1")).scalar() or 0)
