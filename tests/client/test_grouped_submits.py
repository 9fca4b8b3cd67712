"""Single submits of coroutines to a file: those that wait at the same time share one commit."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from runner import TaskHandler, disconnect, handler
from runner.db.database import Database
from runner.db.thread_connections import ThreadConnections
from runner.errors import DatabaseRefused, PayloadTooLarge
from runner.urls import parse_url
from tests.triggers import TEXT, refuse

pytestmark = pytest.mark.parametrize("databases", ["sqlite"], indirect=True)

Work = TaskHandler[Any, Any, Any]
MANY = 50


@pytest.fixture
def work(connected: None, own_handlers: None) -> Work:
    @handler("test.work")
    def work(number: int) -> None: ...

    return work


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The transactions of the client."""
    began: list[object] = []
    run = ThreadConnections.run

    def counting(self: ThreadConnections, work: Callable[..., Any], needs: object, **options: Any) -> Any:
        began.append(needs)
        return run(self, work, needs, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ThreadConnections, "run", counting)
    return began


async def numbers(database: Database) -> dict[int, int]:
    """The argument of each task, by its id."""
    task = database.tables.task
    async with database.reading() as tx:
        number = sa.func.json_extract(task.c.payload, "$.number")
        return {row.id: row[1] for row in await tx.rows(sa.select(task.c.id, number))}


def held(url: str) -> sqlite3.Connection:
    """A writer of another program, which holds the file."""
    connection = sqlite3.connect(parse_url(url).file or "", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


async def test_submits_that_wait_share_a_commit(
    database: Database, migrated_url: str, work: Work, transactions: list[object]
) -> None:
    await work.submit_async(number=-1)  # opens the database
    transactions.clear()
    with closing(held(migrated_url)) as other:
        submits = [asyncio.ensure_future(work.submit_async(number=number)) for number in range(MANY)]
        await asyncio.sleep(0)  # all of them wait
        other.execute("COMMIT")
        ids = await asyncio.gather(*submits)
    assert len(transactions) <= 3
    assert {id: number for id, number in (await numbers(database)).items() if number >= 0} == dict(
        zip(ids, range(MANY), strict=True)
    )


async def test_a_submit_alone_is_one_statement(database: Database, work: Work, transactions: list[object]) -> None:
    await work.submit_async(number=1)
    transactions.clear()
    await work.submit_async(number=2)
    assert len(transactions) == 1


async def test_a_refused_submit_does_not_affect_the_others(database: Database, migrated_url: str, work: Work) -> None:
    await refuse(database, "INSERT", when="{row}.priority = 4")
    bad = work.options(priority=4)
    with closing(held(migrated_url)) as other:
        tasks = [bad if number % 10 == 0 else work for number in range(MANY)]
        submits = [asyncio.ensure_future(each.submit_async(number=number)) for number, each in enumerate(tasks)]
        await asyncio.sleep(0)
        other.execute("COMMIT")
        results = await asyncio.gather(*submits, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    assert len(errors) == len({*map(id, errors)}) == MANY // 10
    assert all(isinstance(error, DatabaseRefused) and TEXT in str(error) for error in errors)
    stored = {result: number for number, result in enumerate(results) if isinstance(result, int)}
    assert await numbers(database) == stored


async def test_a_cancelled_caller_leaves_its_task_and_the_others(
    database: Database, migrated_url: str, work: Work
) -> None:
    await work.submit_async(number=-1)
    with closing(held(migrated_url)) as other:
        submits = [asyncio.ensure_future(work.submit_async(number=number)) for number in range(MANY)]
        await asyncio.sleep(0)
        submits[7].cancel()
        other.execute("COMMIT")
        results = await asyncio.gather(*submits, return_exceptions=True)
    assert isinstance(results[7], asyncio.CancelledError)
    assert sorted((await numbers(database)).values()) == [-1, *range(MANY)]


async def test_a_disconnect_waits_for_the_submits(database: Database, migrated_url: str, work: Work) -> None:
    await work.submit_async(number=-1)
    with closing(held(migrated_url)) as other:
        submits = [asyncio.ensure_future(work.submit_async(number=number)) for number in range(MANY)]
        await asyncio.sleep(0)
        other.execute("COMMIT")
        await asyncio.to_thread(disconnect)
        await asyncio.gather(*submits)
    assert len(await numbers(database)) == MANY + 1


@pytest.mark.usefixtures("connected", "own_handlers")
async def test_a_payload_that_is_too_large_is_refused_at_once() -> None:
    @handler("test.large")
    def large(text: str) -> None: ...

    with pytest.raises(PayloadTooLarge):
        await large.submit_async(text="x" * 1_000_000)
