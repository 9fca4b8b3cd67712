"""Database faults, caused on real databases."""

import asyncio
import gc
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from runner.client.commit import submit_alone
from runner.db import connect
from runner.db.database import Database
from runner.db.errors import is_transient, translate
from runner.db.file_writer import FileStatement
from runner.db.needs import Needs, needs
from runner.db.server_connection import AsyncServerConnection
from runner.db.server_hosts import ServerHost
from runner.db.transaction import Transaction, clock
from runner.errors import DatabaseLocked, DatabaseRefused, DatabaseUnavailable, DiskFull, InvalidTask, ValueRejected
from runner.model.task import NewTask
from runner.store.submit import submit
from tests.conftest import SqliteDatabases, on_postgresql, on_sqlite
from tests.engine.locks import Lock
from tests.postgres import Cluster, Server, drop_database
from tests.store.table import count

WAIT_SECONDS = 90
_REAL = {"payload": '{"word": "ключ"}'}


async def put(database: Database, **options: object) -> int:
    return await database.write(submit, NewTask("work", **options))  # type: ignore[arg-type]


async def no_driver_threads() -> None:
    """Wait for the thread of a failed connection: aiosqlite asks it to stop, but does not wait."""
    async with asyncio.timeout(WAIT_SECONDS):
        while any("_connection_worker_thread" in thread.name for thread in threading.enumerate()):
            await asyncio.sleep(0.001)


async def test_an_invalid_statement_is_rejected(database: Database) -> None:
    with pytest.raises(DatabaseRefused, match="syntax"):
        async with database.writing() as tx:
            await tx.execute(sa.text("SELEKT 1"))


async def test_a_violated_constraint_is_rejected(database: Database) -> None:
    with pytest.raises(DatabaseRefused, match="priority"):
        async with database.writing() as tx:
            await tx.execute(sa.insert(tx.tables.task).values(handler="work", priority=77))
    assert await count(database, database.tables.task) == 0


async def test_a_reader_cannot_write(database: Database) -> None:
    with pytest.raises((DatabaseRefused, DatabaseUnavailable)):
        async with database.reading() as tx:
            await tx.execute(sa.insert(tx.tables.task).values(handler="work"))
    await put(database)
    assert await count(database, database.tables.task) == 1


@pytest.mark.parametrize("error", [ValueError("database is locked"), InvalidTask(field="key", value="", why="")])
async def test_errors_of_the_caller_pass_unchanged_and_roll_back_the_transaction(
    database: Database, error: Exception
) -> None:
    async def fail(tx: Transaction) -> None:
        await submit(tx, NewTask("work"))
        raise error

    with pytest.raises(type(error)) as raised:
        await database.write(fail)
    assert raised.value is error
    assert await count(database, database.tables.task) == 0


ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(3600)",
}


@pytest.mark.parametrize("late", [False, True], ids=["before", "after the deadline"])
async def test_a_statement_is_cancelled_at_its_deadline(database: Database, late: bool) -> None:
    async def read() -> None:
        async with asyncio.timeout(WAIT_SECONDS), database.reading(0.01) as tx:
            if late:  # the first interrupt of SQLite comes before the statement
                await asyncio.sleep(0.02)
            await tx.rows(sa.text(ENDLESS[database.dialect.name]))

    fact = "did not end within 0.01 s" if database.dialect.name == "sqlite" else "statement timeout"
    with pytest.raises(DatabaseRefused, match=fact):
        await read()
    assert await count(database, database.tables.task) == 0


async def test_a_cancelled_write_finishes_and_holds_no_lock(database: Database) -> None:
    begun, on = asyncio.Event(), asyncio.Event()

    async def slow(tx: Transaction) -> int:
        task_id = await submit(tx, NewTask("work"))
        begun.set()
        await on.wait()
        return task_id

    writing = asyncio.ensure_future(database.write(slow))
    await begun.wait()
    writing.cancel()
    await asyncio.sleep(0)
    writing.cancel()
    on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await count(database, database.tables.task) == 1
    async with asyncio.timeout(WAIT_SECONDS):
        await put(database)


@on_sqlite
async def test_writers_of_two_processes_wait_for_each_other_before_they_read(
    database: Database, migrated_url: str
) -> None:
    rival = Database.open(migrated_url)
    task_id = await put(database)
    runs: list[int] = []

    async def raise_version(tx: Transaction) -> None:
        task = tx.tables.task
        version = await tx.scalar(sa.select(task.c.version).where(task.c.id == task_id))
        runs.append(version)
        await tx.execute(sa.update(task).where(task.c.id == task_id).values(version=version + 1))

    await asyncio.gather(*(one.write(raise_version) for one in (database, rival) for _ in range(20)))
    assert runs == list(range(40))
    await rival.dispose()


@on_postgresql
async def test_two_deadlocked_writes_both_succeed(database: Database) -> None:
    one, two = await put(database), await put(database)
    met = asyncio.Barrier(2)
    runs: list[int] = []

    async def both(tx: Transaction, first: int, second: int) -> None:
        task = tx.tables.task
        runs.append(first)
        await tx.execute(sa.update(task).where(task.c.id == first).values(version=task.c.version + 1))
        if len(runs) <= 2:
            await met.wait()
        await tx.execute(sa.update(task).where(task.c.id == second).values(version=task.c.version + 1))

    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.gather(database.write(both, one, two), database.write(both, two, one))
    assert len(runs) > 2
    async with database.reading() as tx:
        assert [row.version for row in await tx.rows(sa.select(tx.tables.task.c.version))] == [2, 2]


@on_postgresql
async def test_the_call_after_a_lost_connection_reconnects(database: Database, migrated_url: str) -> None:
    await asyncio.gather(*(put(database) for _ in range(4)))
    before = await count(database, database.tables.task)
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        connection.execute(f"SELECT pg_terminate_backend(pid) {others}")
    for _ in range(5):
        try:
            await put(database)
        except DatabaseUnavailable:
            continue
        break
    else:
        pytest.fail("it never came back")
    assert await count(database, database.tables.task) == before + 1


@on_postgresql
async def test_a_connection_lost_in_a_transaction_is_reported_as_an_outage(
    database: Database, migrated_url: str
) -> None:
    async def struck(tx: Transaction) -> None:
        await submit(tx, NewTask("work"))
        pid = await tx.scalar(sa.text("SELECT pg_backend_pid()"))
        with psycopg.connect(migrated_url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        await submit(tx, NewTask("work"))

    with pytest.raises(DatabaseUnavailable):
        await database.write(struck)
    assert await count(database, database.tables.task) == 0


async def test_an_unreachable_server_is_reported_without_its_password() -> None:
    database = Database.open("postgresql://me:s3cret@127.0.0.1:1/tasks")
    with pytest.raises(DatabaseUnavailable) as raised:
        await put(database)
    await database.dispose()
    assert "127.0.0.1" in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "role"), [("no_such_database", "postgres"), ("postgres", "no_such_role")], ids=["database", "role"]
)
async def test_a_rejected_login_is_reported_without_a_traceback(postgres_server: Cluster, name: str, role: str) -> None:
    database = Database.open(postgres_server.url(name).replace("postgres@", f"{role}@"))
    with pytest.raises((DatabaseUnavailable, DatabaseRefused), match="does not exist"):
        await put(database)
    await database.dispose()


async def test_a_rejected_value_is_not_repeated(database: Database) -> None:
    async def plainly(tx: Transaction) -> None:
        values = {"handler": "work", "payload": '{"greeting": "hunter2"}', "priority": 99}
        await tx.execute(sa.insert(tx.tables.task).values(values))

    with pytest.raises(ValueRejected) as caught:
        await database.write(plainly)
    assert "hunter2" not in str(caught.value)


@on_postgresql
async def test_texts_and_times_do_not_depend_on_settings_of_the_login(
    database: Database, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    monkeypatch.setenv("PGDATESTYLE", "German, DMY")
    other = Database.open(migrated_url)
    id = await put(other, key="ключ €")
    row, set_to = await _row_and_datestyle(other, id)
    await other.dispose()
    assert (row.key, row.run_at) == (await _row_and_datestyle(database, id))[0]
    assert set_to == "ISO, DMY"  # the day still comes before the month in input


async def _row_and_datestyle(database: Database, id: int) -> tuple[Any, str]:
    async with database.reading() as tx:
        table = tx.tables.task
        [row] = await tx.rows(sa.select(table.c.key, table.c.run_at).where(table.c.id == id))
        return row, str(await tx.scalar(sa.text("SELECT current_setting('datestyle')")))


async def test_bytes_in_a_database_without_an_encoding_do_no_harm(postgres_server: Cluster) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE test_bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    database = Database.open(url := postgres_server.url("test_bytes"))
    try:
        async with database.reading() as tx:
            [row] = await tx.rows(sa.text("SELECT E'caf\\xe9'::text AS key, CAST(:payload AS json) AS payload"), _REAL)
    finally:
        await database.dispose()
        drop_database(postgres_server, url)
    assert (row.key, row.payload) == ("caf\ufffd", _REAL["payload"])


@pytest.mark.slow
async def test_a_restarted_server_is_used_again(own_server: Server) -> None:
    database = Database.open(own_server.url())
    await database.migrate()
    await put(database)
    own_server.stop("immediate")
    with pytest.raises(DatabaseUnavailable):
        await put(database)
    own_server.start()
    await put(database)
    assert await count(database, database.tables.task) == 2
    await database.dispose()


@on_sqlite
async def test_a_full_disk_is_an_outage_without_data_loss(database: Database) -> None:
    await put(database)

    @needs(Needs.PREPARED)
    async def limit(_: Transaction, pages: int) -> None:
        """Limit the size for the connection that submits."""
        await FileStatement(f"PRAGMA max_page_count = {pages}")

    await database.write(limit, 1)
    with pytest.raises(DiskFull, match=r"disk is full\. The transaction was rolled back\. Free space"):
        await put(database, payload=f'{{"a": "{"x" * 10**6}"}}')
    await database.write(limit, 10**6)
    await put(database)
    async with database.reading() as tx:
        assert await tx.scalar(sa.text("PRAGMA integrity_check")) == "ok"
    assert await count(database, database.tables.task) == 2


@on_postgresql
@pytest.mark.parametrize("when", ["AFTER INSERT", "AFTER INSERT AT COMMIT"])
async def test_a_full_disk_of_a_server_is_certain_to_store_nothing(database: Database, when: str) -> None:
    deferred = "DEFERRABLE INITIALLY DEFERRED" if when.endswith("COMMIT") else ""
    fails = "RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'"
    body = f"RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {fails}; END $$"
    async with database.writing() as tx:
        await tx.execute(sa.text(f"CREATE FUNCTION full_disk() {body}"))
        trigger = f"CREATE CONSTRAINT TRIGGER full_disk AFTER INSERT ON task {deferred} FOR EACH ROW"
        await tx.execute(sa.text(f"{trigger} EXECUTE FUNCTION full_disk()"))
    for tasks_ in ([NewTask("a.b")], [NewTask("a.b")] * 3_000):
        with pytest.raises(DatabaseUnavailable) as raised:
            await submit_alone(database, tasks_, notify=False)
        assert type(raised.value) is DiskFull
    assert await count(database, database.tables.task) == 0


SUBMIT_UNTIL_FULL = """
import resource, sys
from pathlib import Path
from runner import handler
from runner.errors import DatabaseUnavailable

@handler("a.b")
def work(text: str) -> None: ...

log = Path(sys.argv[1])
size = log.stat().st_size if log.exists() else 0
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50_000, resource.RLIM_INFINITY))
try:
    for count in range(100):
        work.submit(text="x" * 3_000)
except DatabaseUnavailable as error:
    print(count, type(error).__name__, error)
"""


@pytest.mark.slow
def test_a_write_that_the_disk_refuses_is_certain_to_store_nothing(sqlite: SqliteDatabases, tmp_path: Path) -> None:
    url = sqlite.migrated(tmp_path)
    file = sqlite3.connect(make_url(url).database or "")
    file.execute("SELECT count(*) FROM task").fetchall()  # keeps the log when the program ends
    # -B: Python would leave truncated bytecode of the libraries, because it ignores the limit when it writes them.
    program = [sys.executable, "-B", "-c", SUBMIT_UNTIL_FULL, f"{make_url(url).database}-wal"]
    environment = os.environ | {"TASKTUI_URL": url}
    run = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    count, error, text = run.stdout.split(" ", 2)
    assert (error, file.execute("SELECT count(*) FROM task").fetchone()) == ("DatabaseUnavailable", (int(count),))
    assert "quota" in text
    file.close()


async def test_a_missing_folder_is_an_outage(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'missing' / 'file.db'}")
    with pytest.raises(
        DatabaseUnavailable, match=r"unable to open database file: the folder .*missing does not exist \(errno 2\)"
    ):
        await put(database)
    await database.dispose()
    await no_driver_threads()


async def test_a_missing_table_is_reported_with_the_next_step(database: Database) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.text("DROP TABLE task_history"))
    with pytest.raises(DatabaseRefused, match=r"task_history.*\. .* restore a backup"):
        async with database.reading() as tx:
            await tx.execute(sa.text("SELECT count(*) FROM task_history"))


def test_a_file_without_the_right_to_write_is_reported_with_the_next_step(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "file.db").execute("CREATE TABLE task(id INTEGER)").connection.close()
    reader = sqlite3.connect(f"file:{tmp_path / 'file.db'}?mode=ro", uri=True)
    with pytest.raises(sqlite3.OperationalError) as raised:
        reader.execute("INSERT INTO task VALUES (1)")
    assert "Give this user the right to write the file" in str(translate(raised.value, "sqlite:///file.db"))
    reader.close()


async def test_a_file_that_is_not_a_database_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file.db").write_bytes(b"GIF89a" * 1_000)
    database = Database.open(f"sqlite:///{tmp_path / 'file.db'}")
    with pytest.raises(DatabaseRefused, match="not a database"):
        await put(database)
    await database.dispose()
    await no_driver_threads()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the mapped files of a process")
async def test_a_file_is_not_opened_beside_the_logs_of_the_one_that_it_replaced(
    sqlite: SqliteDatabases, tmp_path: Path
) -> None:
    """SQLite would empty the index of the log, which is mapped: SIGBUS ends a process that reads it at that moment."""
    database = Database.open(sqlite.migrated(tmp_path))
    file, copy, other = tmp_path / "test.db", tmp_path / "copy.db", tmp_path / "other.db"
    await put(database)
    for replacement in (copy, other):
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("VACUUM INTO ?", (str(replacement),))
    index = file.with_name("test.db-shm")
    async with database.reading() as tx:
        before = index.read_bytes()
        copy.replace(file)
        with pytest.raises(DatabaseUnavailable, match=r"test\.db \(inode \d+\), which this program has open, was repl"):
            await put(database)
        with pytest.raises(DatabaseUnavailable, match="was replaced: the path has inode"):
            await asyncio.to_thread(database.threads.look, lambda read: read("SELECT 1"))
        assert index.read_bytes() == before
        for log in ("test.db-wal", "test.db-shm"):
            (tmp_path / log).unlink()
        other.replace(file)
        await put(database)
        assert (await tx.execute(sa.text("SELECT count(*) FROM task"))).scalar_one() == 1
    async with database.reading() as tx:
        assert (await tx.execute(sa.text("SELECT count(*) FROM task"))).scalar_one() == 2
    await database.dispose()


def test_a_locked_file_is_retried(tmp_path: Path) -> None:
    writer, rival = (sqlite3.connect(tmp_path / "file.db", timeout=0, isolation_level=None) for _ in range(2))
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as raised:
        rival.execute("BEGIN IMMEDIATE")
    assert is_transient(raised.value)
    assert isinstance(translate(raised.value, "sqlite:///file.db"), DatabaseLocked)
    writer.close()
    rival.close()


async def test_a_lock_that_is_not_released_is_reported_after_one_busy_timeout(
    sqlite: SqliteDatabases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.2)
    url = sqlite.migrated(tmp_path)
    database, lock, attempts = Database.open(url), Lock(url), 0
    begin = database.writing

    def counted() -> AbstractAsyncContextManager[Transaction]:
        nonlocal attempts
        attempts += 1
        return begin()

    monkeypatch.setattr(database, "writing", counted)
    await lock.take()
    with pytest.raises(DatabaseLocked, match="Another program has locked sqlite"):
        await database.write(submit, NewTask("a.b"))
    assert attempts <= 2  # SQLite may end its wait a moment early
    lock.release()
    assert await database.write(submit, NewTask("a.b")) == 1
    await database.dispose()


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), RuntimeError("disk"), asyncio.CancelledError()])
def test_other_exceptions_are_not_translated(error: BaseException) -> None:
    assert translate(error, "url") is None
    assert not is_transient(error)


def test_a_message_of_several_lines_becomes_one_line() -> None:
    error = translate(sqlite3.IntegrityError("a\n  b\r\nc"), "url")
    assert isinstance(error, DatabaseRefused)
    assert error.fields["why"] == "a b c"
    away = translate(OSError("port 5 failed: refused\n\tIs the server running on that host?\nNext:\nA"), "url")
    assert away is not None
    assert away.fields["why"] == "port 5 failed: refused. Next: A"


@pytest.mark.parametrize(
    ("beginning", "fact"),
    [
        ("connection failed: ", 'connection to server at "::1", port 5 failed: Connection refused'),
        ("connection is bad: ", 'connection to server on socket "/tmp/5" failed: No such file or directory'),
    ],
)
def test_a_failed_connection_is_reported_by_the_observed_fact_alone(beginning: str, fact: str) -> None:
    question = "\n\tIs the server running on that host and accepting TCP/IP connections?"
    away = translate(psycopg.OperationalError(f"{beginning}{fact}{question}; {fact}{question}"), "postgresql://host/a")
    assert away is not None
    assert str(away).endswith(f"be reached: {fact}; {fact}. Check that it is running and that the URL is correct.")


async def test_the_loop_logs_nothing_about_a_host_without_an_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look_up(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    hosts, failures = await AsyncServerConnection.look_up([ServerHost("nowhere", "", "")], 60.0)
    gc.collect()  # asyncio logs an error of a future that nothing reads when it is freed
    assert (hosts, caplog.records) == ([], [])
    assert failures == ["failed to resolve host 'nowhere': [Errno -2] Name or service not known"]


def test_a_connection_timeout_is_an_outage() -> None:
    assert isinstance(
        translate(psycopg.errors.ConnectionTimeout("too late"), "postgresql://host/tasks"), DatabaseUnavailable
    )


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            sqlite3.DatabaseError("database disk image is malformed"),
            "malformed. Stop all programs that use the file, then restore",
        ),
        (
            psycopg.errors.InsufficientPrivilege("permission denied for table task"),
            "task. This login lacks a right: use one with a role of `runner migrate --roles`, such as task_operator",
        ),
        (psycopg.errors.QueryCanceled("canceling statement due to statement timeout"), "narrow it"),
    ],
)
def test_an_error_without_a_next_step_gets_advice(error: Exception, advice: str) -> None:
    assert advice in str(translate(error, "url"))


@pytest.mark.parametrize("message", ["Is the server running?", "it is gone.", "it\nis gone!"])
def test_a_quoted_driver_message_ends_with_one_full_stop(message: str) -> None:
    error = translate(OSError(message), "postgresql://host/tasks")
    assert ": Is the server running. Check" in str(error) or ": it is gone. Check" in str(error)


@on_postgresql
async def test_a_server_without_tls_is_reported_with_the_setting(migrated_url: str) -> None:
    database = Database.open(f"{migrated_url}?sslmode=verify-full")
    with pytest.raises(DatabaseUnavailable, match=r"add \?sslmode=disable to the URL or set PGSSLMODE=disable"):
        await database.read(clock)
    await database.dispose()
