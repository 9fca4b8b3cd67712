"""Two hosts: a runner goes on with the one that accepts changes, also when the other one hangs."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner import Context
from runner.cli.check import CheckStatus, run_checks
from runner.cli.exit_codes import Exit
from runner.db import connector
from runner.db.connector import Connector
from runner.db.database import Database
from runner.db.transaction import Transaction, clock
from runner.errors import DatabaseUnavailable, ReadOnlyDatabase
from runner.model.task import NewTask
from runner.settings import Settings
from runner.store.submit import submit
from runner.urls import parse_url
from tests.databases import migrate
from tests.engine.harness import Harness, until
from tests.postgres import Server, Standby, create_database, find_programs

LEASE = 5.0


@pytest.fixture
def pair() -> Iterator[tuple[Server, Standby, str]]:
    """A primary, its standby, and the name of a database with our tables."""
    if (programs := find_programs()) is None:
        pytest.skip("needs the programs of a server")
    with Server(programs) as primary:
        url = create_database(primary)
        migrate(url)
        with Standby(primary, programs) as standby:
            yield primary, standby, url.rpartition("/")[2]


def url_of(name: str, *servers: Server) -> str:
    return f"postgresql://postgres@{','.join(f'127.0.0.1:{server.port}' for server in servers)}/{name}"


async def server_of(tx: Transaction) -> str:
    await clock(tx)
    return tx.server


@pytest.mark.slow
async def test_a_list_of_hosts_finds_the_one_that_accepts_changes(
    pair: tuple[Server, Standby, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, standby, name = pair
    task = NewTask("work")
    both = Database.open(url_of(name, standby, primary))
    assert await both.write(lambda tx: submit(tx, task))
    assert await both.read(server_of) == f"127.0.0.1:{primary.port}"
    alone = Database.open(url_of(name, standby))
    assert await alone.read(server_of) == f"127.0.0.1:{standby.port}"
    fact = f"pg_is_in_recovery.. is true on 127.0.0.1:{standby.port}"
    with pytest.raises(ReadOnlyDatabase, match=f"accepts no changes: read-only standby: {fact}"):
        await alone.write(submit, task)
    strict = Database.open(url_of(name, standby), connector=Connector(strict=True))
    with pytest.raises(ReadOnlyDatabase, match=f"accepts no changes: read-only standby: {fact}"):
        await strict.read(clock)
    monkeypatch.setattr(connector, "READER_SECONDS", 0.5)
    primary.stop()
    await until(lambda: reads(both, standby))
    with pytest.raises(ReadOnlyDatabase, match=fact):
        await both.write(lambda tx: submit(tx, task))
    primary.start()
    await until(lambda: reads(both, primary))
    for database in (both, alone, strict):
        await database.dispose()


async def reads(database: Database, server: Server) -> bool:
    """True if a query goes to this server."""
    try:
        return await database.read(server_of) == f"127.0.0.1:{server.port}"
    except DatabaseUnavailable:  # the connections of before
        return False


async def replicated(primary: Server, standby: Standby) -> bool:
    """True if the standby has replayed all that the primary has written."""
    with psycopg.connect(primary.url()) as connection:
        position = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
    with psycopg.connect(standby.url()) as connection:
        row = connection.execute("SELECT pg_last_wal_replay_lsn() >= %s", position).fetchone()
    return row == (True,)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"notify": False}], ids=["notify", "polling"])
async def test_a_runner_goes_on_with_the_promoted_standby_of_a_primary_that_hangs(
    pair: tuple[Server, Standby, str], settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    primary, standby, name = pair
    database = Database.open(url_of(name, primary))
    harness, gate = Harness(database, url_of(name, primary, standby)), asyncio.Event()

    @harness.handler("work")
    async def work() -> None: ...

    @harness.handler("wait")
    async def wait() -> None:
        await gate.wait()

    @harness.handler("within")
    async def within(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(sa.text("SELECT 1"))
            await gate.wait()

    options = {"lease_timeout": f"{LEASE}s", "heartbeat_interval": f"{LEASE / 5}s", "max_attempts": 5} | settings
    async with harness.running(**options) as runner:
        waiting = await harness.submit("wait")
        within_tx = await harness.submit("within")
        await until(lambda: len(runner.worker.in_flight) == 2)
        await until(lambda: replicated(primary, standby))
        primary.hang()
        gate.set()  # a settle and a claim are on their way
        await until(lambda: "no answer for" in caplog.text)
        standby.promote()
        harness.database = Database.open(url_of(name, standby))
        task = await submitted(harness)
        await harness.wait_for(task, waiting)
        await harness.wait_for(within_tx)
        assert {await harness.state(each) for each in (task, waiting, within_tx)} == {"succeeded"}
        primary.kill_all()
    assert re.search(rf"no answer for \d+\.\d s from 127\.0\.0\.1:{primary.port}", caplog.text)
    await harness.database.dispose()
    await database.dispose()


async def submitted(harness: Harness) -> int:
    """Submit as soon as the standby is promoted."""
    while True:
        try:
            return await harness.submit("work")
        except DatabaseUnavailable:
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_runner_waits_for_the_promotion_of_a_standby(
    pair: tuple[Server, Standby, str], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    primary, standby, name = pair
    url = url_of(name, standby)
    database = Database.open(url_of(name, primary))
    harness = Harness(database, url)

    @harness.handler("work")
    async def work() -> None: ...

    task = await harness.submit("work")
    await until(lambda: replicated(primary, standby))
    async with harness.running():
        await until(lambda: f"pg_is_in_recovery() is true on 127.0.0.1:{standby.port}" in caplog.text)
        findings = [finding async for finding in run_checks(Settings(url=parse_url(url)))]
        wrong = [finding for finding in findings if finding.verdict is CheckStatus.WRONG]
        assert wrong[0].found.startswith(f"read-only standby: pg_is_in_recovery() is true on 127.0.0.1:{standby.port}")
        assert wrong[0].code == Exit.DATABASE
        standby.promote()
        harness.database = Database.open(url)
        await harness.wait_for(task)
    assert "cannot be reached" not in caplog.text
    await harness.database.dispose()
    await database.dispose()
