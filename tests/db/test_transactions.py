"""Writing transactions exclude each other on SQLite from their first statement."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from runner.db import connect, handler_transactions
from runner.db.database import Database
from runner.db.handler_transactions import Wait
from runner.db.needs import Needs
from runner.db.transaction import Transaction, within_deadline
from runner.errors import ReadOnlyDatabase, TransactionUnavailable
from runner.model.task import NewTask
from runner.store.submit import submit
from tests.conftest import on_postgresql, on_sqlite

Opening = Callable[[Database], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def handler_in_thread(database: Database) -> AsyncIterator[object]:
    """The transaction of a plain function; the driver binds a connection to its thread, so nothing awaits here."""
    with database.for_handler_in_thread(Wait(1)) as tx:
        yield tx


OPENINGS: dict[str, Opening] = {
    "writing": lambda database: database.writing(),
    "async handler": lambda database: database.for_handler(Wait(1)),
    "plain handler": handler_in_thread,
}


def begin_now(url: str) -> None:
    """Begin a writing transaction without waiting, as another program."""
    connection = sqlite3.connect(urlsplit(url).path, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@on_sqlite
@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
async def test_a_writing_transaction_locks_the_file_before_its_first_statement(
    database: Database, migrated_url: str, opening: Opening
) -> None:
    """Begun later, it would read first and fail to write, because another program wrote after the read."""
    async with opening(database):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            begin_now(migrated_url)
    begin_now(migrated_url)


@on_sqlite
async def test_two_programs_that_read_and_then_write_lose_no_update(database: Database, rival: Database) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.text("CREATE TABLE counter (value INTEGER NOT NULL)"))
        await tx.execute(sa.text("INSERT INTO counter VALUES (0)"))
    both_ready = asyncio.Barrier(2)

    async def count(one: Database) -> None:
        await both_ready.wait()
        for _ in range(20):
            async with one.writing() as tx:
                await increment(tx)

    await asyncio.gather(count(database), count(rival))
    async with database.reading() as tx:
        assert await tx.scalar(sa.text("SELECT value FROM counter")) == 40


async def increment(tx: Transaction) -> None:
    value = await tx.scalar(sa.text("SELECT value FROM counter"))
    await tx.execute(sa.text("UPDATE counter SET value = :value"), {"value": value + 1})


@on_sqlite
@pytest.mark.parametrize("way", ["writing", "thread"])
async def test_a_writer_looks_often_for_the_lock_of_another_program(
    database: Database, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """SQLite itself would sleep up to 100 ms between two looks, and busy runners leave only short gaps."""
    rival = sqlite3.connect(urlsplit(database.url).path, isolation_level=None, check_same_thread=False)
    rival.execute("BEGIN IMMEDIATE")
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            rival.execute("COMMIT")

    monkeypatch.setattr("runner.db.connect.time.sleep", pause)
    # The first pauses last, however slow the machine is.
    monkeypatch.setattr(connect, "BUSY_PAUSES", ((60.0, connect.BUSY_PAUSES[0][1]),))
    if way == "writing":
        async with database.writing() as tx:
            await tx.execute(sa.insert(tx.tables.queue).values(name="mail"))
    else:
        await asyncio.to_thread(
            database.threads.run, lambda connection: connection.cursor.fetchall(), Needs.TRANSACTION
        )
    rival.close()
    assert looks == [0.0005] * 3


@on_sqlite
async def test_an_interrupt_of_a_connection_that_was_closed_does_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts: set[Callable[[], None]] = set()
    monkeypatch.setattr(database, "_interrupts", interrupts)
    async with database.reading():
        kept = set(interrupts)
    assert len(kept) == 1
    await database.dispose()
    interrupts.update(kept)  # as if the task of the read had not ended yet
    database.interrupt_reads()


@on_sqlite
async def test_the_deadline_of_a_connection_that_was_closed_does_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Callable[[], object]] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def record(delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        timers.append(partial(callback, *args))
        return call_later(delay, callback, *args)

    connection = await database.engine.connect()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_later", record)
        async with within_deadline(connection, 5.0):
            await connection.invalidate()  # closes it, as a cancelled task does
            for passed in timers:
                passed()
    assert timers
    await connection.close()


@on_sqlite
@pytest.mark.parametrize("form", ["async handler", "plain handler"])
async def test_a_handler_that_waits_for_another_program_lets_the_writers_of_its_runner_go_first(
    database: Database, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(handler_transactions, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(connect, "BUSY_SECONDS", 40.0)
    rival = sqlite3.connect(urlsplit(database.url).path, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    waiting, statements = asyncio.Event(), list[str]()

    def watch(connection: Any, _: Any) -> None:
        connection.driver_connection._conn.set_trace_callback(statements.append)

    sa.event.listen(database.engine.sync_engine, "connect", watch)

    def hold_in_thread() -> None:
        loop.call_soon_threadsafe(waiting.set)
        with database.for_handler_in_thread(Wait(1, stopped=lambda: bool(statements))):
            pass

    async def hold() -> None:
        waiting.set()
        async with database.for_handler(Wait(1, stopped=lambda: bool(statements))):
            pass

    loop = asyncio.get_running_loop()
    handler = asyncio.ensure_future(hold() if form == "async handler" else asyncio.to_thread(hold_in_thread))
    await waiting.wait()
    await asyncio.sleep(0)
    submitting = asyncio.ensure_future(database.write(submit, NewTask("work")))
    try:
        done, _ = await asyncio.wait([handler], timeout=90)
        assert done, "the submit has not tried to begin"
        with pytest.raises(TransactionUnavailable):
            await handler
    finally:
        rival.execute("COMMIT")
        rival.close()
        await asyncio.wait([handler])
    assert await submitting


async def test_transactions_one_after_another_use_the_same_connection(database: Database) -> None:
    """Each further connection would have a page cache, or a buffer of the server's rows, that grows with its use."""

    async def used() -> int:
        async with database.reading() as tx:
            await tx.scalar(sa.select(1))
            connection: Any = tx.connection.sync_connection
            return id(connection.connection.driver_connection)

    async with database.reading(), database.reading(), database.reading():
        pass
    assert len({await used() for _ in range(6)}) == 1


@on_postgresql
async def test_a_connection_that_has_read_keeps_to_the_read_only_default_of_its_database(
    database: Database, rival: Database, migrated_url: str
) -> None:
    name = sa.make_url(migrated_url).database
    async with database.writing() as tx:
        await tx.execute(sa.text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    async with rival.reading() as tx:
        await tx.scalar(sa.select(1))
    with pytest.raises(ReadOnlyDatabase, match=r"Set default_transaction_read_only to off for this database or login"):
        async with rival.writing() as tx:
            await submit(tx, NewTask("a"))
