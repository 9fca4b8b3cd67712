"""The proxy injects the faults that it counts, and a runner behind it finishes its tasks."""

import asyncio
from collections.abc import Iterator
from typing import LiteralString

import psycopg
import pytest

from runner import Context
from runner.db.database import Database
from runner.model.task import NewTask
from runner.store.submit import submit_many
from tests.chaos.proxy import Proxy
from tests.conftest import on_postgresql
from tests.engine.harness import Harness, until

TASKS = 100

pytestmark = on_postgresql


@pytest.fixture
def proxy(migrated_url: str) -> Iterator[Proxy]:
    with Proxy(migrated_url, 7, swallow_seconds=(0.05, 0.2)) as proxy:
        yield proxy


def repeat(connection: psycopg.Connection, statement: LiteralString) -> None:
    """Execute a statement until it fails: the proxy injects a fault in a thread of its own."""
    while True:
        connection.execute(statement)


def test_the_proxy_forwards_both_directions(proxy: Proxy) -> None:
    with psycopg.connect(proxy.url) as connection:
        row = connection.execute("SELECT repeat('x', 200000)").fetchone()
    assert row == ("x" * 200_000,)
    assert not proxy.faults


def test_a_reset_breaks_the_connection(proxy: Proxy) -> None:
    connection = psycopg.connect(proxy.url, autocommit=True)
    proxy.cut_all()
    with pytest.raises(psycopg.OperationalError):
        repeat(connection, "SELECT 1")
    connection.close()
    assert proxy.faults["reset of all connections"] == 1


def test_a_swallowed_answer_belongs_to_a_statement_that_was_executed(proxy: Proxy, migrated_url: str) -> None:
    with psycopg.connect(migrated_url, autocommit=True) as direct:
        direct.execute("CREATE TABLE marks (mark int)")
        connection = psycopg.connect(proxy.url, autocommit=True)
        proxy.swallow_all()
        with pytest.raises(psycopg.OperationalError):
            repeat(connection, "INSERT INTO marks VALUES (1)")
        connection.close()
        row = direct.execute("SELECT count(*) FROM marks").fetchone()
    assert row is not None
    assert row[0] >= 1
    assert proxy.faults == {"answers swallow": 1, "reset after swallowed answers": 1}


@pytest.mark.slow
async def test_a_short_storm_on_the_network_strands_nothing(
    database: Database, migrated_url: str, proxy: Proxy
) -> None:
    """Connections of one runner fail at random offsets while it executes tasks; each task ends."""
    harness = Harness(database, proxy.url)

    @harness.handler("work", max_attempts=20)
    async def work(ctx: Context) -> None:
        await asyncio.sleep(0.001)

    tasks = await database.write(submit_many, [NewTask("work")] * TASKS)
    async with harness.running(heartbeat_interval="50ms", prefetch=20):
        while proxy.faults.total() < 8:
            proxy.arm_some()
            await asyncio.sleep(0.05)
            if await harness.count(database.tables.task) == 0:
                tasks += await database.write(submit_many, [NewTask("work")] * TASKS)
        await harness.wait_for(*tasks)
        await until(lambda: _none_live(harness))
    states = {row.state for row in await harness.rows(database.tables.history.select())}
    assert states == {"succeeded"}


async def _none_live(harness: Harness) -> bool:
    return await harness.count(harness.database.tables.task) == 0
