"""A submit wakes a runner immediately where the database can notify, otherwise the next scan finds the task."""

import asyncio
import contextlib
import ctypes
import json
import logging
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from runner.client.external import follower
from runner.db import file_changes, listener
from runner.db.connector import DEFAULT_CONNECTOR
from runner.db.database import Database
from runner.db.file_changes import FileChanges
from runner.db.listener import Listener
from runner.db.statement import StatementFrame
from runner.engine.claiming import notifier
from runner.errors import DatabaseFileReplaced
from runner.handlers.registry import Handler
from runner.model.task import DependsOn, NewTask, OnDuplicate, UniqueKey
from runner.settings import Settings
from runner.store.submit import submit_steps
from runner.urls import parse_url
from tests.chaos.proxy import Proxy
from tests.conftest import on_postgresql
from tests.engine.harness import Harness, until, wait_for_event

pytestmark = pytest.mark.both_databases

SELDOM = {"poll_interval": "1h", "lease_timeout": "1h", "heartbeat_interval": "30m"}
"""So that nothing but news can wake a runner during a test."""


async def test_a_submit_wakes_a_runner_with_a_long_poll_interval(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    async with harness.running(**SELDOM) as runner:
        await until(lambda: runner.claimer.open)
        for _ in range(3):
            await harness.wait_for(await harness.submit("work"))


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
@pytest.mark.parametrize("fate", ["commit", "rollback"])
async def test_a_submit_in_an_applications_transaction_wakes_a_runner_at_its_commit(
    harness: Harness, fate: str
) -> None:
    done: list[int] = []

    @harness.handler("work")
    async def work(number: int) -> None:
        done.append(number)

    async with harness.running(**SELDOM) as runner:
        await until(lambda: runner.claimer.open)
        with application(harness.url, 1) as tx:
            await runner.claimer.scan()
            assert done == []
            getattr(tx, fate)()
        if fate == "commit":
            await until(lambda: done == [1])
        with application(harness.url, 2):
            pass
        await until(lambda: done == ([1, 2] if fate == "commit" else [2]))


@contextmanager
def application(url: str, number: int) -> Iterator["psycopg.Connection[Any]"]:
    """An application that has submitted a task in its transaction, and commits at the end."""
    tasks = [NewTask("work", json.dumps({"number": number}))]
    with psycopg.connect(url) as tx:
        follower(tx)(tx, lambda driver: submit_steps(StatementFrame.of(Settings(), driver), tasks, True))
        yield tx


async def test_without_news_a_submit_is_found_by_polling(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    quiet = SELDOM | {"poll_interval": "50ms", "notify": False, "sqlite_poll_interval": "1h"}
    async with harness.running(**quiet) as runner:
        await until(lambda: runner.claimer.open)
        await harness.wait_for(await harness.submit("work"))


@pytest.mark.slow
async def test_an_unblocked_and_a_replaced_task_wake_a_runner(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    elsewhere = Harness(harness.database, harness.url)

    @elsewhere.handler("other")
    async def other() -> None: ...

    parent = await harness.submit("other")
    child = await harness.submit("work", after=(DependsOn(parent),))
    replacing = UniqueKey("7", on_duplicate=OnDuplicate.REPLACE)
    late = await harness.submit("work", delay=3600.0, unique_key=replacing)
    async with harness.running(**SELDOM) as runner:
        await until(lambda: runner.claimer.open)
        await elsewhere.work()
        await harness.wait_for(child)
        assert await harness.submit("work", unique_key=replacing) == late
        await harness.wait_for(late)


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
async def test_heartbeats_and_settles_of_others_wake_no_runner(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write moves SQLite's `data_version`."""
    checks, wakes = 0, 0
    file = sqlite3.connect(urlsplit(harness.url).path, isolation_level=None)

    async def write(_: float) -> None:
        nonlocal checks
        checks += 1
        match checks:
            case 1:
                assert wakes == 1  # tasks may have been submitted before
                file.execute(
                    "INSERT INTO task_runner(host, pid, version, lease_until) VALUES ('desk', 7, '1', '2026-11-20')"
                )
            case 2:
                file.execute("UPDATE task_runner SET heartbeat_at = '2026-11-20 10:00:00'")
            case 3:
                assert wakes == 1
                file.execute("INSERT INTO task(handler, payload) VALUES ('work', '{}')")
            case 4:
                assert wakes == 2
                file.execute("DELETE FROM task")
            case _:
                assert wakes == 2
                raise asyncio.CancelledError

    def on_submit() -> None:
        nonlocal wakes
        wakes += 1

    monkeypatch.setattr(asyncio, "sleep", write)
    with pytest.raises(asyncio.CancelledError):
        await notifier.watch(urlsplit(harness.url).path, harness.database.tables, 0.05, on_submit)
    file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports changes of a file")
@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
async def test_a_write_to_the_file_wakes_a_runner_before_its_next_check(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    async with harness.running(**SELDOM, sqlite_poll_interval="1h") as runner:
        await until(lambda: runner.claimer.open)
        for _ in range(3):
            await harness.wait_for(await harness.submit("work"))
            await until(lambda: runner.claimer.idle)
        with sqlite3.connect(urlsplit(harness.url).path) as file:
            task_id = file.execute("INSERT INTO task(handler, payload) VALUES ('work', '{}') RETURNING id").fetchone()[
                0
            ]
        file.close()
        await harness.wait_for(task_id)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports changes of a file")
async def test_a_log_file_is_followed_again_after_it_was_deleted(tmp_path: Path) -> None:
    path, log_file = str(tmp_path / "tasks.db"), tmp_path / "tasks.db-wal"
    with FileChanges() as changes:
        assert not changes.follow(path)
        for _ in range(2):
            log_file.write_bytes(b"1")
            assert changes.follow(path)
            waiting = asyncio.ensure_future(changes.pause(3600))
            await asyncio.sleep(0)
            log_file.write_bytes(b"2")
            await asyncio.wait_for(waiting, 90)
            log_file.unlink()
            async with asyncio.timeout(90):
                while changes.follow(path):
                    await changes.pause(3600)  # the end of the file counts as a change


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports changes of a file")
async def test_writes_during_the_checks_wake_no_runner_and_are_found_after_them(tmp_path: Path) -> None:
    path, log_file = str(tmp_path / "tasks.db"), tmp_path / "tasks.db-wal"
    log_file.write_bytes(b"1")
    with FileChanges() as changes:
        assert changes.follow(path)
        waiting = asyncio.ensure_future(changes.pause(3600))
        await asyncio.sleep(0)
        log_file.write_bytes(b"2")
        async with asyncio.timeout(90):
            await waiting
            for _ in range(file_changes.CHECKS):
                log_file.write_bytes(b"3")
                assert not asyncio.get_running_loop().remove_reader(changes._descriptor or 0)
                await changes.pause(3600)
            await changes.pause(3600)  # returns, because of the writes


def instances() -> int:
    """The number of inotify instances of this process."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed in between
            count += str(link.readlink()) == "anon_inode:inotify"
    return count


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports changes of a file")
@pytest.mark.parametrize("refused", [None, "inotify_init1", "inotify_add_watch"])
@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
async def test_a_runner_checks_at_intervals_if_the_system_has_no_more_watches(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, refused: str | None
) -> None:
    """The limits of inotify are those of a user: max_user_instances and max_user_watches."""

    @harness.handler("work")
    async def work() -> None: ...

    def load(name: None, **options: Any) -> Any:
        library = plain(name, **options)
        if refused is not None:
            setattr(library, refused, lambda *_: -1)
        return library

    plain, before = ctypes.CDLL, instances()
    monkeypatch.setattr(ctypes, "CDLL", load)
    async with harness.running(**SELDOM, sqlite_poll_interval="10ms") as runner:
        await until(lambda: runner.claimer.open)
        assert instances() - before == (refused != "inotify_init1")
        await harness.wait_for(await harness.submit("work"))
    assert instances() == before


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
async def test_a_runner_stops_if_its_file_was_replaced(harness: Harness, tmp_path: Path) -> None:
    """Tasks in the new file would wait, and outcomes in the old one would be lost."""
    path, copy = tmp_path / "tasks.db", tmp_path / "restored.db"
    with contextlib.closing(sqlite3.connect(urlsplit(harness.url).path)) as source:
        source.execute("VACUUM INTO ?", (str(path),))
        source.execute("VACUUM INTO ?", (str(copy),))
    harness.handlers["work"] = Handler("work", lambda: None)
    runner = Harness(harness.database, f"sqlite:///{path}")
    runner.handlers = harness.handlers
    engine = runner.runner(**SELDOM)
    running = asyncio.ensure_future(engine.run())
    await until(lambda: engine.claimer.open)
    copy.rename(path)
    with pytest.raises(
        DatabaseFileReplaced, match=r"tasks\.db \(inode \d+\), which this program has open, was replaced"
    ):
        await asyncio.wait_for(running, 90)


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
async def test_a_runner_stops_if_the_log_of_its_file_was_deleted_and_loses_no_task(harness: Harness) -> None:
    """Other programs would begin a new log, and see an older state of the file."""
    path = parse_url(harness.url).file
    assert path
    harness.handlers["work"] = Handler("work", lambda: None)
    task = await harness.submit("other")
    engine = harness.runner(**SELDOM)
    running = asyncio.ensure_future(engine.run())
    await until(lambda: engine.claimer.open)
    inode = Path(f"{path}-wal").stat().st_ino
    Path(f"{path}-wal").unlink()
    with pytest.raises(
        DatabaseFileReplaced, match=rf"-wal \(inode {inode}\), which this program has open, was (delet|replac)"
    ) as caught:
        await asyncio.wait_for(running, 90)
    assert f"has copied the logs that it found to {path}-wal.{inode}." in str(caught.value)
    assert Path(f"{path}-wal.{inode}").stat().st_size
    await harness.database.dispose()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id, handler FROM task").fetchall() == [(task, "other")]


async def test_a_task_due_soon_does_not_wait_for_the_next_poll(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    soon = await harness.submit("work", delay=0.3)
    async with harness.running(**SELDOM, notify=False, sqlite_poll_interval="1h"):
        await harness.wait_for(soon)


async def test_the_first_scan_waits_for_the_initial_delay(harness: Harness) -> None:
    begun = asyncio.Event()

    @harness.handler("work")
    async def work() -> None:
        begun.set()

    task = await harness.submit("work")
    async with harness.running(poll_interval="1ms", heartbeat_interval="20ms", initial_delay="1h") as runner:
        await until(lambda: runner.lease.is_valid)
        registered = runner.lease._renewed
        await until(lambda: runner.lease._renewed > registered)  # its first heartbeat has been answered
        await runner.claimer.scan()
        assert await harness.state(task) == "waiting"
    assert not begun.is_set()


async def test_a_broken_listener_listens_again(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    if harness.url.startswith("sqlite"):
        pytest.skip("SQLite has no listener that could break")
    monkeypatch.setattr(listener, "RECONNECT_DELAY", 0.01)

    @harness.handler("work")
    async def work() -> None: ...

    async with harness.running(**SELDOM) as runner:
        await until(lambda: runner.claimer.open)
        await until(lambda: end_listeners(harness.url))
        await until(lambda: listeners(harness.url) == 1)
        await harness.wait_for(await harness.submit("work"))


@on_postgresql
async def test_a_listener_is_logged_once_per_outage_and_on_its_return(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "runner.notifier")
    monkeypatch.setattr(listener, "RECONNECT_DELAY", 0.01)
    server, _, name = migrated_url.rpartition("/")

    def allow(word: str) -> None:
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS {word}")
            if word == "false":
                of_database = "FROM pg_stat_activity WHERE datname = %s"
                connection.execute(f"SELECT pg_terminate_backend(pid) {of_database}", (name,))

    def lines(level: int) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == level]

    database, listening = Database.open(migrated_url), asyncio.Event()
    log = logging.getLogger("runner.notifier")
    job = asyncio.ensure_future(Listener(database, {"news": str}, listening.set, 60.0, log).run())
    try:
        for number in (1, 2):
            await wait_for_event(listening)
            listening.clear()
            caplog.clear()
            await asyncio.to_thread(allow, "false")
            await until(lambda: len(lines(logging.DEBUG)) >= 3)
            assert [line.split(",")[0] for line in lines(logging.INFO)] == ["LISTEN failed"], number
            await asyncio.to_thread(allow, "true")
            await wait_for_event(listening)
            assert lines(logging.INFO)[1].startswith("LISTEN works again after ")
    finally:
        job.cancel()
        await asyncio.wait([job])
        await database.dispose()
        await asyncio.to_thread(allow, "true")


@on_postgresql
async def test_a_broken_listener_leaves_its_socket_to_others(database: Database, migrated_url: str) -> None:
    unconnected = Listener(database, {}, lambda: None, 60.0, logging.getLogger("runner.notifier"))
    connection = await DEFAULT_CONNECTOR.connect_async(conninfo_to_dict(migrated_url) | {"autocommit": True})
    async with connection:
        await connection.execute("LISTEN news")
        socket = connection.fileno()
        hearing = asyncio.ensure_future(unconnected._wait(connection))
        await asyncio.sleep(0)
        assert end_listeners(migrated_url)
        with pytest.raises(psycopg.OperationalError):
            await hearing
    assert not asyncio.get_running_loop().remove_reader(socket)


@on_postgresql
async def test_a_listener_on_a_half_open_connection_connects_again(harness: Harness, migrated_url: str) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    with Proxy(migrated_url, 1) as proxy:
        harness.url = proxy.url
        async with harness.running(poll_interval="1h", lease_timeout="2s", heartbeat_interval="1s") as runner:
            await until(lambda: runner.claimer.open)
            await until(lambda: listens(migrated_url))
            proxy.hold_all()
            await harness.wait_for(await harness.submit("work"))


def listens(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT count(*) > 0 {LISTENERS}").fetchone() == (True,)


LISTENERS = """
FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND (query LIKE 'LISTEN%' OR query LIKE 'SELECT pg_notify(channel, payload)%')
"""


def listeners(url: str) -> int:
    with psycopg.connect(url) as connection:
        return int(str(connection.execute(f"SELECT count(*) {LISTENERS}").fetchone()[0]))  # type: ignore[index]


def end_listeners(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT pg_terminate_backend(pid) {LISTENERS}").fetchall() != []


async def test_a_burst_of_submits_is_heard_without_a_scan_for_each(harness: Harness) -> None:
    done = asyncio.Event()
    count = 0

    @harness.handler("work")
    async def work() -> None:
        nonlocal count
        count += 1
        if count == 50:
            done.set()

    async with harness.running(**SELDOM) as runner:
        await until(lambda: runner.claimer.open)
        for _ in range(50):
            await harness.submit("work")
        await wait_for_event(done)
