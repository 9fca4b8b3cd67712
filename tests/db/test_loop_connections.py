"""Single submits of coroutines on PostgreSQL, on connections that their event loop reads."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner import TaskHandler, connect, disconnect, handler
from runner.client.client import get_client
from runner.db.connect import LOOP_CONNECTIONS as MOST
from runner.db.database import Database
from runner.db.loop_connections import LoopConnection, LoopPool
from runner.errors import DatabaseRefused, SubmitUncertain
from runner.handlers.registry import REGISTRY
from runner.urls import parse_url
from tests.postgres.proxy import Proxy

pytestmark = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

SUBMITTERS = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%%INSERT INTO task%%'"


@pytest.fixture
def work(migrated_url: str) -> Iterator[TaskHandler[Any, Any, Any]]:
    @handler("mail.send")
    async def send(number: int, text: str = "") -> None: ...

    connect(url=parse_url(migrated_url))
    yield send
    disconnect()
    REGISTRY._handlers.pop("mail.send")


async def pool() -> LoopPool:
    async def itself(database: Database) -> Database:
        return database

    loops = (await asyncio.wrap_future(get_client().run(itself))).loops
    assert loops is not None
    return loops._pools[asyncio.get_running_loop()]


async def connections() -> list[LoopConnection]:
    return (await pool())._idle


def count(url: str) -> int:
    """The sessions of the server whose last statement is a submit, except this one."""
    with psycopg.connect(url) as connection:
        row = connection.execute(f"SELECT count(*) {SUBMITTERS} AND pid <> pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def all_end(url: str) -> bool:
    """Wait until the server has ended all sessions of submits."""
    end = time.monotonic() + 90
    while count(url) and time.monotonic() < end:
        time.sleep(0.01)
    return count(url) == 0


async def test_coroutines_share_few_connections_with_prepared_statements(
    work: TaskHandler[Any, Any, Any], migrated_url: str
) -> None:
    for _ in range(3):
        ids = await asyncio.gather(*(work.submit_async(number=number) for number in range(4 * MOST)))
        assert len(set(ids)) == 4 * MOST
    assert 1 <= count(migrated_url) <= MOST
    assert any(connection._names for connection in await connections())


async def test_nothing_is_prepared_behind_a_pooler(migrated_url: str, work: TaskHandler[Any, Any, Any]) -> None:
    async with Proxy(migrated_url, pools=True).opened() as pooler:
        await asyncio.to_thread(connect, url=parse_url(pooler.url))
        ids = [await work.submit_async(number=number) for number in range(12)]
        assert len(set(ids)) == 12
        assert [connection._names for connection in await connections()] == [{}]
        await asyncio.to_thread(disconnect)


async def test_options_have_the_same_values_as_in_a_thread(
    work: TaskHandler[Any, Any, Any], database: Database
) -> None:
    moment = datetime(2040, 2, 3, 4, 5, 6, 789, UTC)
    options: dict[str, Any] = {
        "key": "größe, \\'7'",
        "queue": "mail",
        "priority": 7,
        "max_attempts": 3,
        "retry": "1m,5m",
        "timeout": "90s",
        "run_at": moment,
        "expires": "2h",
        "tags": ["a", "b"],
        "bucket": 12,
        "hosts": "web-1",
        "hosts_for": "10m",
    }
    await work.options(**options).submit_async(number=1, text="é\n")
    await asyncio.to_thread(work.options(**options).submit, number=1, text="é\n")
    async with database.reading() as tx:
        task = tx.tables.task
        columns = [column for column in task.c if column.name not in ("id", "submitted_at", "updated_at")]
        first, second = (await tx.execute(sa.select(*columns).order_by(task.c.id))).all()
    assert first == second
    assert first.run_at == moment


async def test_a_payload_larger_than_the_buffers_of_a_socket_arrives(
    migrated_url: str, work: TaskHandler[Any, Any, Any], database: Database
) -> None:
    connect(url=parse_url(migrated_url), payload_limit=20_000_000)
    size = 10_000_000
    await work.submit_async(number=1, text="x" * size)
    async with database.reading() as tx:
        length = sa.func.length(sa.cast(tx.tables.task.c.payload, sa.Text))
        assert await tx.scalar(sa.select(length)) > size


async def test_a_cancelled_submit_frees_its_connection(work: TaskHandler[Any, Any, Any], migrated_url: str) -> None:
    await work.submit_async(number=0)
    with psycopg.connect(migrated_url) as blocker:
        blocker.execute("LOCK TABLE task")
        waiting = [asyncio.ensure_future(work.submit_async(number=number)) for number in range(3 * MOST)]
        async with asyncio.timeout(90):
            while count(migrated_url) < MOST:
                await asyncio.sleep(0.01)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert all(task.cancelled() for task in waiting)
    async with asyncio.timeout(90):
        await asyncio.gather(*(work.submit_async(number=number) for number in range(2 * MOST)))
    current = await pool()
    async with asyncio.timeout(90):
        while len(current._idle) < current._count:  # the last one may still be opening
            await asyncio.sleep(0.01)
    assert current._count <= MOST


async def test_a_refused_statement_costs_its_connection_and_no_other_submit(
    work: TaskHandler[Any, Any, Any], migrated_url: str
) -> None:
    first = await work.submit_async(number=1)
    with psycopg.connect(migrated_url, autocommit=True) as owner:
        owner.execute("ALTER TABLE task RENAME TO hidden")
        with pytest.raises(DatabaseRefused, match='relation "task" does not exist'):
            await work.submit_async(number=2)
        owner.execute("ALTER TABLE hidden RENAME TO task")
    assert await work.submit_async(number=3) > first


async def test_an_end_of_the_session_in_a_statement_leaves_the_outcome_open(
    work: TaskHandler[Any, Any, Any], migrated_url: str
) -> None:
    await work.submit_async(number=1)
    async with Proxy(migrated_url).opened() as proxy:
        await asyncio.to_thread(connect, url=parse_url(proxy.url))
        await work.submit_async(number=2)
        proxy.lose("INSERT INTO task")
        with pytest.raises(SubmitUncertain, match="The task may exist"):
            await work.submit_async(number=3)
        assert await work.submit_async(number=4) > 3
        await asyncio.to_thread(disconnect)


def test_the_end_of_an_event_loop_closes_its_connections(work: TaskHandler[Any, Any, Any], migrated_url: str) -> None:
    async def submit_some() -> None:
        await asyncio.gather(*(work.submit_async(number=number) for number in range(4)))
        assert count(migrated_url) > 0

    for _ in range(2):
        asyncio.run(submit_some())
        assert all_end(migrated_url)


async def test_disconnecting_in_the_event_loop_closes_its_connections(
    work: TaskHandler[Any, Any, Any], migrated_url: str
) -> None:
    await work.submit_async(number=1)
    disconnect()
    assert all_end(migrated_url)
    await work.submit_async(number=2)
    await asyncio.to_thread(disconnect)
    assert all_end(migrated_url)
