"""Submits on blocking connections, in the threads of their callers."""

import asyncio
import contextlib
import gc
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner import TaskHandler, connect, disconnect, handler
from runner.client.client import get_client
from runner.db import semaphore, thread_connections
from runner.db.connect import THREAD_CONNECTIONS as MOST
from runner.db.database import Database
from runner.db.statement import SingleInsert
from runner.db.thread_connections import ThreadConnection, ThreadConnections
from runner.errors import DatabaseLocked, InvalidInput
from runner.handlers.registry import REGISTRY
from runner.urls import parse_url
from tests.conftest import on_sqlite
from tests.db.interruption import Interruption
from tests.postgres.proxy import Proxy

on_postgresql = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
def work(migrated_url: str) -> Iterator[TaskHandler[Any, Any, Any]]:
    @handler("mail.send")
    async def send(number: int) -> None: ...

    connect(url=parse_url(migrated_url))
    yield send
    disconnect()
    REGISTRY._handlers.pop("mail.send")


async def numbers(database: Database) -> list[int]:
    async with database.reading() as tx:
        return list((await tx.execute(sa.select(tx.tables.task.c.id))).scalars())


async def test_submits_of_many_threads_and_coroutines_are_all_stored(
    work: TaskHandler[Any, Any, Any], database: Database
) -> None:
    threads = [asyncio.to_thread(work.submit, number=number) for number in range(20)]
    unique = [work.options(unique_key=f"{number % 10}").submit_async(number=number) for number in range(20)]
    handles = await asyncio.gather(*threads, *unique, *(work.submit_async(number=number) for number in range(20)))
    assert sorted(set(handles)) == sorted(await numbers(database))
    assert sum(handle.duplicate for handle in handles) == 10


@on_postgresql
async def test_connections_stay_open_and_are_few(work: TaskHandler[Any, Any, Any], migrated_url: str) -> None:
    for _ in range(3):
        await asyncio.gather(*(work.submit_async(number=number) for number in range(4 * MOST)))
    with psycopg.connect(migrated_url) as connection:
        names = f"SELECT count(*) {OTHERS} AND application_name = 'runner' AND query LIKE '%%INSERT INTO task%%'"
        row = connection.execute(names).fetchone()
    assert row is not None
    assert 1 <= row[0] <= MOST


@on_postgresql
async def test_a_submit_after_a_restart_of_the_server_opens_a_new_connection(
    work: TaskHandler[Any, Any, Any], database: Database, migrated_url: str
) -> None:
    first = await work.submit_async(number=1)
    with psycopg.connect(migrated_url) as connection:
        connection.execute(f"SELECT pg_terminate_backend(pid, 10000) {OTHERS}")
    assert await work.submit_async(number=2) > first


@on_postgresql
async def test_nothing_is_prepared_behind_a_pooler(migrated_url: str, work: TaskHandler[Any, Any, Any]) -> None:
    async with Proxy(migrated_url, pools=True).opened() as pooler:
        await asyncio.to_thread(connect, url=parse_url(pooler.url))
        ids = [await asyncio.to_thread(work.submit, number=number) for number in range(12)]
        assert len(set(ids)) == 12
        opened = await asyncio.wrap_future(get_client().run(_itself))
        assert await asyncio.to_thread(_prepared, opened) == 0  # this thread runs the pooler
        await asyncio.to_thread(disconnect)


@on_postgresql
async def test_frequent_submits_are_prepared(work: TaskHandler[Any, Any, Any]) -> None:
    for number in range(12):
        await asyncio.to_thread(work.submit, number=number)
    assert _prepared(await asyncio.wrap_future(get_client().run(_itself))) > 0


@on_sqlite
async def test_a_submit_goes_to_the_file_that_took_the_place_of_another(
    work: TaskHandler[Any, Any, Any], migrated_url: str, tmp_path: Path
) -> None:
    await work.submit_async(number=1)
    file, copy = Path(parse_url(migrated_url).database), tmp_path / "copy.db"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute(f"VACUUM INTO '{copy}'")
    await work.submit_async(number=2)
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    copy.replace(file)
    await work.submit_async(number=3)
    new = Database.open(migrated_url)
    assert len(await numbers(new)) == 2
    await new.dispose()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_connections_of_its_parent_open(work: TaskHandler[Any, Any, Any]) -> None:
    first = work.submit(number=1)
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 0 if work.submit(number=2) > first else 1
            disconnect()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    opened = get_client().run(_itself).result()
    (connection,) = opened.threads._idle
    assert work.submit(number=3) > first
    assert opened.threads._idle == [connection]


def test_an_error_in_a_thread_frees_its_connection(work: TaskHandler[Any, Any, Any]) -> None:
    holder = work.options(unique_key="held", on_duplicate="error")
    first = holder.submit(number=1)
    errors: list[BaseException] = []

    def submit() -> None:
        try:
            holder.submit(number=2)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=submit) for _ in range(3 * MOST)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 3 * MOST
    assert work.submit(number=3) > first


@on_sqlite
@pytest.mark.parametrize("options", [{}, {"unique_key": "7"}], ids=["alone", "in a transaction"])
def test_a_submit_waits_for_the_write_of_another_program(
    work: TaskHandler[Any, Any, Any], migrated_url: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    first = work.submit(number=1)
    pauses = threading.Event()

    def pause(seconds: float) -> None:
        pauses.set()
        time.sleep(seconds)

    monkeypatch.setattr("runner.db.connect.time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
    with (
        contextlib.closing(sqlite3.connect(parse_url(migrated_url).database, isolation_level=None)) as other,
        ThreadPoolExecutor() as threads,
    ):
        other.execute("BEGIN IMMEDIATE")
        second = threads.submit(work.options(**options).submit, number=2)
        assert pauses.wait(90)
        other.execute("COMMIT")
        assert second.result(90) > first


@on_sqlite
def test_a_submit_reports_a_file_that_stays_locked(
    work: TaskHandler[Any, Any, Any], migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = work.submit(number=1)
    monkeypatch.setattr("runner.db.connect.BUSY_SECONDS", 0.05)
    with contextlib.closing(sqlite3.connect(parse_url(migrated_url).database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseLocked, match="Another program has locked sqlite"):
            work.submit(number=2)
        other.execute("COMMIT")
    assert work.submit(number=3) == first + 1


@on_sqlite
def test_an_interrupted_submit_does_not_keep_the_file_locked(
    work: TaskHandler[Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = work.submit(number=1)

    def interrupt(insert: SingleInsert, payload: str, connection: ThreadConnection) -> int:
        connection.by_position.execute(insert.sql, (*insert.before, payload, *insert.after))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ThreadConnections, "_insert", staticmethod(interrupt))
        with pytest.raises(KeyboardInterrupt) as interruption:
            work.submit(number=2)
    monkeypatch.setattr("runner.db.connect.BUSY_SECONDS", 0.05)
    assert work.submit(number=3) > first
    assert interruption.tb is not None  # the traceback refers to the interrupted statement until here


# The garbage collector closes a connection without a transaction that was interrupted on its way from or to the others.
@pytest.mark.filterwarnings(
    "ignore:.*(BaseConnection.__del__|sqlite3.Connection):pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("options", [{}, {"unique_key": "7"}], ids=["alone", "in a transaction"])
def test_no_interruption_of_a_submit_loses_the_semaphore(
    work: TaskHandler[Any, Any, Any], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    work.submit(number=1)
    monkeypatch.setattr("runner.db.connect.BUSY_SECONDS", 0.05)
    tracebacks: list[object] = []  # they refer to the connections
    for count in range(1_000):
        try:
            with Interruption({thread_connections.__file__, semaphore.__file__}, count):
                work.options(**options).submit(number=2)
        except KeyboardInterrupt as error:
            tracebacks.append(error)
        else:
            break
        following = threading.Thread(target=work.submit, kwargs={"number": 3}, daemon=True)
        following.start()
        following.join(90)
        assert not following.is_alive(), "the semaphore is lost"
    assert 10 < len(tracebacks) < 1_000
    tracebacks.clear()
    gc.collect()  # while the warning is ignored


async def _itself(database: Database) -> Database:
    return database


def _prepared(database: Database) -> int:
    driver = database.threads._idle[-1].driver
    return int(driver.execute("SELECT count(*) FROM pg_prepared_statements", prepare=False).fetchone()[0])


MOMENTS = [datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) for year in (1, 1969, 1970, 9997, 9998, 9999)]
LENGTHS = ["0s", "1ms", "1h", "99999d", 1e-9, 999_999_999.0, 1e9, 2.5e11, 1e18, float("inf"), float("nan"), -1]
NAMES = ["", " ", "a", "a" * 200, "a" * 201, "\0", "é" * 200, "\ud800"]
CANDIDATES: dict[str, list[Any]] = {
    "run_at": MOMENTS,
    "delay": LENGTHS,
    "expires": LENGTHS,
    "expires_at": MOMENTS,
    "priority": [0, 1, 9, 10, 1.5, True, "9"],
    "key": NAMES,
    "queue": NAMES,
    "max_attempts": [0, 1, 2**31 - 1, 2**31, 1.5, "3"],
    "retry": ["", "1m", "never", "exp:10s*2"],
    "timeout": LENGTHS,
    "tags": [[], ["a"], ["a", "a"], "abc"],
    "bucket": [-1, 0, 999, 1000, 1023, 1024, 1.5],
    "tenant": NAMES,
    "hosts": ["", "any", "same", "a" * 1000, "a" * 1001, [f"h{number}" for number in range(400)]],
    "order_key": NAMES,
}
"""Values of task options on both sides of the limits of the table."""


@on_sqlite
@pytest.mark.parametrize("option", CANDIDATES)
def test_no_submitted_row_breaks_a_check_of_the_table(
    work: TaskHandler[Any, Any, Any], migrated_url: str, option: str
) -> None:
    others: dict[str, Any] = {"hosts": "a", "hosts_for": "9999d", "order_on_failure": "run"}
    for value in CANDIDATES[option]:
        for options in ({}, others, {"unique_key": f"{value!r:.99}"}):
            with contextlib.suppress(InvalidInput):
                work.options(**options | {option: value}).submit(number=1)
    with contextlib.closing(sqlite3.connect(parse_url(migrated_url).database, isolation_level=None)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert file.execute("SELECT count(*) > 0 FROM task").fetchone() == (1,)
