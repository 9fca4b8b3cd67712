"""The database goes away: when a runner starts, while it works, for longer than its lease."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pytest
import sqlalchemy as sa

from runner.db import connect
from runner.db.database import Database
from runner.db.errors import IOERR_CORRUPTFS
from runner.db.types import db_later, db_now
from runner.engine.lease import lease as leases
from runner.errors import DatabaseRefused
from tests.conftest import SqliteDatabases
from tests.engine.harness import WAIT_SECONDS, Harness, at_work, until, wait_for_event
from tests.engine.locks import Lock
from tests.postgres import Server, create_database


class Outage(Protocol):
    """A way to take a database away, and to give it back."""

    harness: Harness

    async def begin(self) -> None: ...

    async def end(self) -> None: ...


FailWrites: TypeAlias = Callable[..., list[Exception]]
"""Takes the kind, message and code of the error of later writes, and returns the errors of those that failed.

Without arguments, they succeed again."""


class LockedFile:
    """Another program keeps the write lock of a SQLite file."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self._lock = Lock(harness.url)

    async def begin(self) -> None:
        await self._lock.take()

    async def end(self) -> None:
        self._lock.release()


class StoppedServer:
    """A PostgreSQL server is shut down."""

    def __init__(self, harness: Harness, server: Server) -> None:
        self.harness = harness
        self._server = server
        self._away = False

    async def begin(self) -> None:
        await asyncio.to_thread(self._server.stop, "immediate")
        self._away = True
        await self.harness.database.dispose()  # whose connections are dead now

    async def end(self) -> None:
        if self._away:
            await asyncio.to_thread(self._server.start)
            self._away = False


@pytest.fixture
def locked_file(sqlite: SqliteDatabases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file whose lock is waited for only briefly."""
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.02)
    return sqlite.migrated(tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Server | None:
    """The server to stop; None for a file."""
    return request.getfixturevalue("own_server") if request.param == "postgresql" else None


@pytest.fixture
def url(server: Server | None, request: pytest.FixtureRequest) -> str:
    return create_database(server) if server else str(request.getfixturevalue("locked_file"))


@pytest.fixture
async def outage(server: Server | None, url: str) -> AsyncIterator[Outage]:
    database = Database.open(url)
    await database.migrate()
    harness = Harness(database, url)
    outage: Outage = StoppedServer(harness, server) if server else LockedFile(harness)
    yield outage
    await outage.end()
    await database.dispose()


def has_logged(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return any(words in message for message in caplog.messages)


async def test_a_runner_waits_for_a_database_that_is_away_when_it_starts(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    harness = outage.harness

    @harness.handler("work")
    async def work() -> None: ...

    task = await harness.submit("work")
    await outage.begin()
    async with harness.running():
        await until(lambda: has_logged(caplog, ": retrying in "))
        await outage.end()
        await harness.wait_for(task)
    assert not errors(caplog)


async def test_schedules_resume_by_their_misfire_policy_when_the_database_is_back(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    harness = outage.harness

    @harness.handler("work")
    async def work() -> None: ...

    table, tick = harness.database.tables.schedule, harness.database.tables.tick
    late = {"next_at": db_later(db_now(), -4 * 3_600), "misfire": "all 2", "overlap": "allow"}
    await harness.change(sa.insert(table).values(id="hourly", handler="work", rule="every 1h", **late))
    await outage.begin()
    async with harness.running():
        await until(lambda: has_logged(caplog, ": retrying in "))
        await outage.end()
        await until(lambda: _has_rows(harness, tick))
    rows = await harness.rows(sa.select(tick.c.outcome).order_by(tick.c.tick))
    assert [row.outcome for row in rows] == ["missed", "submitted", "submitted"]
    assert not errors(caplog)


async def _has_rows(harness: Harness, table: sa.Table) -> bool:
    return await harness.count(table) > 0


async def test_a_runner_that_waits_for_its_database_can_be_stopped(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    await outage.begin()
    runner = outage.harness.runner()
    async with at_work(runner) as life:
        await until(lambda: has_logged(caplog, ": retrying in "))
        runner.stop()
        assert await life


async def test_outcomes_wait_for_the_database_and_claims_stop(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    harness, begun, go_on, starts = outage.harness, asyncio.Event(), asyncio.Event(), []

    @harness.handler("work")
    async def work() -> str:
        starts.append("work")
        begun.set()
        await go_on.wait()
        return "kept"

    task = await harness.submit("work")
    async with harness.running(lease_timeout="10s") as runner:
        await wait_for_event(begun)
        await outage.begin()
        go_on.set()
        await until(lambda: has_logged(caplog, ": 1 outcome buffered, retrying in "))
        assert not runner.claimer.may_claim()
        await outage.end()
        await harness.wait_for(task)
        after = await harness.submit("work")
        await harness.wait_for(after)
    row = await harness.row(task)
    assert (row.state, row.attempt, row.rescues, row.result) == ("succeeded", 1, 0, '"kept"')
    assert starts == ["work", "work"]
    assert not errors(caplog)


async def test_outcomes_outlast_an_outage_that_is_longer_than_the_lease(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    harness, begun, go_on, starts = outage.harness, asyncio.Event(), asyncio.Event(), []

    @harness.handler("work")
    async def work() -> None:
        starts.append("work")
        begun.set()
        await go_on.wait()

    task = await harness.submit("work")
    async with harness.running(lease_timeout="800ms", heartbeat_interval="200ms") as runner:
        await wait_for_event(begun)
        await outage.begin()
        await until(lambda: not runner.lease.is_valid)
        go_on.set()
        await until(lambda: has_logged(caplog, ": 1 outcome buffered, retrying in "))
        await asyncio.sleep(0.3)  # the lease, of which `held` knows four fifths, is over for everybody
        await outage.end()
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.attempt, row.rescues) == ("succeeded", 1, 0)
    assert starts == ["work"]


async def test_a_scan_that_found_the_database_away_is_made_up_for_though_scans_are_rare(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    harness = outage.harness

    @harness.handler("work")
    async def work() -> None: ...

    async with harness.running(
        poll_interval="1h", notify=False, sqlite_poll_interval="1h", lease_timeout="10s", heartbeat_interval="100ms"
    ) as runner:
        await until(lambda: runner.claimer.idle)
        task = await harness.submit("work")
        await outage.begin()
        runner.scans.soon()
        await until(lambda: has_logged(caplog, ": retrying in "))
        await outage.end()
        await harness.wait_for(task)


@pytest.fixture
async def on_file(locked_file: str) -> AsyncIterator[Harness]:
    """A harness on a SQLite file."""
    database = Database.open(locked_file)
    yield Harness(database, locked_file)
    await database.dispose()


@pytest.fixture
def make_read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let SQLite refuse or accept the writes of runners, as for a file that loses the right to be written."""
    begin, states = connect.begin_writing, [False]

    def begin_writing(connection: Any, seconds: float | None = None) -> bool:
        connection.execute(f"PRAGMA query_only = {states[-1]}")
        return begin(connection, seconds)

    monkeypatch.setattr(connect, "begin_writing", begin_writing)
    return states.append


async def test_a_runner_ends_after_its_lease_if_its_file_becomes_read_only(
    on_file: Harness, make_read_only: Callable[[bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    @on_file.handler("work")
    async def work() -> None: ...

    run = asyncio.ensure_future(on_file.runner(lease_timeout="500ms", drain_timeout="100ms").run())
    await on_file.wait_for(await on_file.submit("work"))
    make_read_only(True)
    with pytest.raises(DatabaseRefused, match=r"readonly database.* Give this user the right to write the file"):
        async with asyncio.timeout(WAIT_SECONDS):
            await run
    assert has_logged(caplog, "could not renew the lease: ")
    assert not errors(caplog)


async def test_a_runner_continues_if_its_file_is_read_only_for_less_than_its_lease(
    on_file: Harness, make_read_only: Callable[[bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    @on_file.handler("work")
    async def work() -> None: ...

    async with on_file.running(lease_timeout="60s"):
        await on_file.wait_for(await on_file.submit("work"))
        make_read_only(True)
        await until(lambda: has_logged(caplog, "could not renew the lease: "))
        make_read_only(False)
        await on_file.wait_for(await on_file.submit("work"))
    assert not errors(caplog)


@pytest.fixture
def fail_writes(monkeypatch: pytest.MonkeyPatch) -> FailWrites:
    """Let SQLite fail with an error and its code, or not any more."""
    begin, failures, failed = connect.begin_writing, list[tuple[Any, ...]]([()]), list[Exception]()

    def begin_writing(connection: Any, seconds: float | None = None) -> bool:
        if failures[-1]:
            kind, message, code = failures[-1]
            error = kind(message)
            error.sqlite_errorcode = code
            failed.append(error)
            raise error
        return begin(connection, seconds)

    def fail(*failure: Any) -> list[Exception]:
        failures.append(failure)
        return failed

    monkeypatch.setattr(connect, "begin_writing", begin_writing)
    return fail


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        ((sqlite3.OperationalError, "disk I/O error", IOERR_CORRUPTFS), "Repair and mount it"),
        ((sqlite3.DatabaseError, "database disk image is malformed", sqlite3.SQLITE_CORRUPT), "restore a backup"),
        ((sqlite3.DatabaseError, "file is not a database", sqlite3.SQLITE_NOTADB), "restore a backup"),
    ],
)
async def test_a_runner_ends_after_its_lease_if_its_file_cannot_be_used_again(
    on_file: Harness,
    fail_writes: FailWrites,
    caplog: pytest.LogCaptureFixture,
    failure: tuple[Any, ...],
    advice: str,
) -> None:
    @on_file.handler("work")
    async def work() -> None: ...

    run = asyncio.ensure_future(on_file.runner(lease_timeout="500ms", drain_timeout="100ms").run())
    await on_file.wait_for(await on_file.submit("work"))
    fail_writes(*failure)
    with pytest.raises(DatabaseRefused, match=advice):
        async with asyncio.timeout(WAIT_SECONDS):
            await run
    assert has_logged(caplog, "could not renew the lease: ")


async def test_a_runner_outlasts_disk_errors_that_may_pass(
    on_file: Harness, fail_writes: FailWrites, caplog: pytest.LogCaptureFixture
) -> None:
    @on_file.handler("work")
    async def work() -> None: ...

    caplog.set_level(logging.INFO, "runner.lease")
    async with on_file.running(lease_timeout="500ms"):
        await on_file.wait_for(await on_file.submit("work"))
        failed = fail_writes(sqlite3.OperationalError, "disk I/O error", sqlite3.SQLITE_IOERR_WRITE)  # a used-up quota
        await until(lambda: len(failed) >= 20)
        fail_writes()
        await on_file.wait_for(await on_file.submit("work"))
        await until(lambda: has_logged(caplog, "the lease is renewed again after "))
    # The failed heartbeats between the first and the last one would fill the log.
    assert sum("could not renew" in record.getMessage() for record in caplog.records) == 1
    assert sum("renewed again" in record.getMessage() for record in caplog.records) == 1


async def test_a_runner_outlasts_a_disk_error_after_a_stop_for_longer_than_its_lease(
    on_file: Harness, fail_writes: FailWrites, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_file.handler("work")
    async def work() -> None: ...

    async with on_file.running():
        await on_file.wait_for(await on_file.submit("work"))
        real = leases.elapsed
        fail_writes(sqlite3.OperationalError, "disk I/O error", IOERR_CORRUPTFS)
        monkeypatch.setattr(leases, "elapsed", lambda: real() + 10_000.0)
        await until(lambda: has_logged(caplog, "could not renew the lease: "))
        fail_writes()
        await on_file.wait_for(await on_file.submit("work"))


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
