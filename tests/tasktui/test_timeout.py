"""Timeouts of the console: no read waits forever, and the queries that nothing waits for are cancelled."""

import asyncio
from math import inf
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import DatabaseLocked, DatabaseUnavailable
from runner.settings import Settings
from runner.urls import parse_url
from tasktui.session import session as session_module
from tasktui.session.cache import Timeout
from tasktui.session.session import Session
from tasktui.shell import live
from tests.store.rows import add_live
from tests.tasktui.conftest import ON_ONE_DATABASE, WAIT_SECONDS, Watch

GONE = DatabaseUnavailable(url="postgresql://host/tasks", why="it has not answered")
LOCKED = DatabaseLocked(url="sqlite:///tasks.db", why="database is locked")


async def test_an_answer_or_an_error_within_the_timeout_is_returned() -> None:
    async def fail() -> None:
        raise GONE

    timeout = Timeout()
    assert await timeout.wait(asyncio.sleep(0, "answer"), 60, ValueError()) == "answer"
    with pytest.raises(DatabaseUnavailable):
        await timeout.wait(fail(), 60, ValueError())


async def test_a_read_stops_waiting_at_its_timeout_and_its_transaction_still_ends() -> None:
    timeout, thaws, end = Timeout(), asyncio.Event(), asyncio.Event()

    async def frozen() -> None:
        await thaws.wait()
        end.set()

    with pytest.raises(DatabaseUnavailable):
        await timeout.wait(frozen(), 0, GONE)
    idle = asyncio.create_task(timeout.wait_idle())
    await asyncio.sleep(0)
    assert not idle.done()
    thaws.set()
    await idle
    assert end.is_set()


async def test_a_database_is_lost_after_a_silence_or_a_failure_and_found_with_an_answer() -> None:
    now, thaws = 100.0, asyncio.Event()
    reads = Timeout(lambda: now)
    pending = asyncio.create_task(reads.wait(thaws.wait(), 60, GONE))
    await asyncio.sleep(0)

    def is_lost() -> bool:
        return reads.is_lost

    now = 104.0
    assert not is_lost()
    now = 106.0
    assert is_lost()
    await reads.wait(asyncio.sleep(0), 60, GONE)  # another read has had an answer
    assert not is_lost()
    thaws.set()
    await pending

    async def fail(error: Exception) -> None:
        raise error

    with pytest.raises(DatabaseLocked):
        await reads.wait(fail(LOCKED), 60, GONE)
    assert not is_lost()
    with pytest.raises(DatabaseUnavailable):
        await reads.wait(fail(GONE), 60, GONE)
    assert is_lost()
    now = 200.0
    await reads.wait(asyncio.sleep(0), 60, GONE)
    assert not is_lost()


FOREVER = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE i < 0",
    "postgresql": "SELECT pg_sleep(3600)",
}


def session_at(url: str, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose queries may take hours."""
    for bound in ("DEADLINE", "SILENCE"):
        monkeypatch.setattr(session_module, bound, 3600)
    settings = Settings(url=parse_url(url))
    return Session(Database.of(settings, read_only=True), settings)


async def test_a_first_read_that_is_started_twice_runs_once(
    database: Database, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, reads = session_at(migrated_url, monkeypatch), list[Transaction]()

    async def read(tx: Transaction) -> int:
        reads.append(tx)
        return 7

    first = session.start_read(read)
    assert session.start_read(read) is first
    assert await session.read(read) == 7
    await session.finish()
    await session.database.dispose()
    assert len(reads) == 1


@pytest.mark.both_databases
async def test_the_end_of_a_session_cancels_a_query_that_runs_for_hours(
    database: Database, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, begun = session_at(migrated_url, monkeypatch), asyncio.Event()

    async def endless(tx: Transaction) -> None:
        begun.set()
        await tx.execute(sa.text(f"{FOREVER[database.dialect.name]} -- {BUSY}"))

    reading = asyncio.create_task(session.read(endless))
    async with asyncio.timeout(WAIT_SECONDS):
        await begun.wait()
        await runs(database)
        await session.finish()
        await session.database.dispose()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await runs(database, expected=False)


BUSY = "busy"
ACTIVE = sa.text(
    f"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep%{BUSY}'"
)


async def runs(database: Database, *, expected: bool = True) -> None:
    """Wait until the server executes the endless query, or does not any more; a file has no server."""

    async def is_active(tx: Transaction) -> bool:
        return bool(await tx.scalar(ACTIVE))

    while database.dialect.is_server and await database.read(is_active) is not expected:
        await asyncio.sleep(0)


async def test_the_end_of_a_session_waits_for_a_change(
    database: Database, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_at(migrated_url, monkeypatch)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def change(tx: Transaction) -> None:
        begun.set()
        await goes_on.wait()
        await tx.execute(sa.insert(tx.tables.queue).values(name="new"))

    changing = asyncio.create_task(session.write(change))
    await begun.wait()
    ending = asyncio.create_task(session.finish())
    await asyncio.sleep(0)
    assert session.is_changing
    assert not ending.done()
    goes_on.set()
    await asyncio.gather(ending, changing)
    await session.database.dispose()

    async def queues(tx: Transaction) -> list[str]:
        return [row[0] for row in await tx.rows(sa.select(tx.tables.queue.c.name))]

    assert await database.read(queues) == ["new"]


@ON_ONE_DATABASE
async def test_a_screen_shows_that_there_is_no_answer_yet(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    thaws = asyncio.Event()
    async with watch("tasks") as operator:
        read = operator.screen.read

        async def slowly() -> object:
            await thaws.wait()
            return await read()

        monkeypatch.setattr(live, "NO_ANSWER_AFTER", 0)
        monkeypatch.setattr(operator.screen, "read", slowly)
        await operator.sees("data is ", "no answer for")
        monkeypatch.setattr(live, "NO_ANSWER_AFTER", 60)
        thaws.set()
        await operator.until(lambda: "no answer for" not in operator.text)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("mode", ["overview", "tasks", "reports"])
async def test_q_reads_nothing(database: Database, watch: Watch, mode: str) -> None:
    await add_live(database, "smtp.send")
    statements: list[str] = []

    def record(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    async with watch(mode) as operator:
        await operator.until(lambda: operator.console.session.ping is not None)
        feed = operator.screen.feed

        def rests() -> bool:
            if not feed.looking:
                feed.next = inf  # no poll is due any more
            return feed.next == inf and not feed.looking

        await operator.until(rests)
        console: Any = operator.console
        await operator.until(lambda: not [worker for worker in console.workers if worker.is_running])
        await console.session.finish()
        engine = console.session.database.engine.sync_engine
        sa.event.listen(engine, "before_cursor_execute", record)
        await operator.press("q")
        await operator.until(lambda: console._exit)
    assert statements == []


@ON_ONE_DATABASE
async def test_ctrl_c_quits_a_screen_as_q_does_but_no_dialog(watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.press("question_mark")
        await operator.until(lambda: type(operator.screen).__name__ == "HelpScreen")
        await operator.press("ctrl+c")
        await operator.pilot.pause()
        assert not operator.console._exit
        await operator.press("escape", "ctrl+c")
        await operator.until(lambda: operator.console._exit)
