"""Submits that a trigger of a user skips or refuses: a clear error, and never the id of a task that does not exist."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from runner import TaskHandler, connect, disconnect, handler
from runner.db.database import Database
from runner.errors import DatabaseRefused, DatabaseUnavailable, SubmitUncertain
from runner.handlers.registry import REGISTRY
from runner.urls import parse_url
from tests.conftest import on_postgresql
from tests.store.table import count
from tests.triggers import TEXT, refuse

pytestmark = pytest.mark.both_databases

Work = TaskHandler[Any, Any, Any]
BAD = "{row}.priority = 4"


@pytest.fixture(params=[False, True], ids=["alone", "coalesced"])
def work(request: pytest.FixtureRequest, migrated_url: str) -> Iterator[Work]:
    @handler("test.work")
    def work(number: int) -> None: ...

    connect(url=parse_url(migrated_url), coalesce=request.param)
    yield work
    disconnect()
    REGISTRY._handlers.pop(work.name)


async def submit(work: Work) -> object:
    return await asyncio.to_thread(work.submit, number=1)


async def submit_async(work: Work) -> object:
    return await work.submit_async(number=1)


async def submit_many(work: Work) -> object:
    return await asyncio.to_thread(work.submit_many, [{"number": 1}, {"number": 2}])


async def submit_mixed(work: Work) -> object:
    good, bad = work.options(priority=1).new(number=1), work.options(priority=4).new(number=2)
    return await work.submit_many_async([good, bad, good])


Submit = Callable[[Any], Awaitable[object]]
SUBMITS = [submit, submit_async, submit_many]


@pytest.mark.parametrize("call", [*SUBMITS, submit_mixed])
async def test_a_submit_that_a_trigger_skips_is_refused_as_a_whole(
    database: Database, work: Work, call: Submit
) -> None:
    await call(work)  # SQLite has an id of an earlier row
    before = await count(database, database.tables.task)
    await refuse(database, "INSERT", when=BAD, silently=True)
    bad = work if call is submit_mixed else work.options(priority=4)
    with pytest.raises(DatabaseRefused, match="not inserted, without an error: a trigger BEFORE INSERT"):
        await call(bad)
    assert await count(database, database.tables.task) == before
    await work.submit_async(number=3)
    assert await count(database, database.tables.task) == before + 1


@pytest.mark.representatives(3)
@pytest.mark.parametrize("call", SUBMITS)
@pytest.mark.parametrize("sqlstate", ["08006", "25006", "26000", "40001", "57P01"])
@on_postgresql
async def test_an_error_that_a_trigger_raises_leaves_no_doubt(
    database: Database, work: Work, call: Submit, sqlstate: str
) -> None:
    await refuse(database, "INSERT", when=BAD, sqlstate=sqlstate)
    with pytest.raises(DatabaseRefused, match=TEXT) as failure:
        await call(work.options(priority=4))
    assert not isinstance(failure.value, (DatabaseUnavailable, SubmitUncertain))
    assert await count(database, database.tables.task) == 0
