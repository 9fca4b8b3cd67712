"""Coalesced submits: tasks share a transaction, each caller gets its own result, and no task affects another."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner import TaskHandler, connect, disconnect, handler
from runner.client import commit
from runner.client.client import get_client
from runner.client.commit import MOST, Coalescer
from runner.db.database import Database
from runner.errors import DatabaseRefused, DatabaseUnavailable, InvalidTask
from runner.handlers.registry import REGISTRY
from runner.model.task import NewTask, SubmitResult
from runner.store.submit import submit_with_result
from runner.urls import parse_url
from tests.databases import database_at
from tests.db.interruption import Interruption

WAIT_SECONDS = 90


@pytest.fixture
def work() -> Iterator[TaskHandler[Any, Any, Any]]:
    @handler("test.work")
    def work(number: int) -> None: ...

    yield work
    REGISTRY._handlers.pop(work.name)


@pytest.fixture
def sharing(migrated_url: str) -> Iterator[None]:
    """The client of an application with the setting coalesce."""
    connect(url=parse_url(migrated_url), coalesce=True)
    yield
    disconnect()


class Gate:
    """Submits to a real database, one chunk at a time when the test allows it, and records the size of each chunk."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open = asyncio.Semaphore(0)
        self.sizes: list[int] = []
        self.arrived = asyncio.Event()

    def let(self, batches: int) -> None:
        for _ in range(batches):
            self._open.release()

    async def submit(self, tasks: Sequence[NewTask]) -> SubmitResult:
        self.sizes.append(len(tasks))
        self.arrived.set()
        await self._open.acquire()
        return await self._database.write(submit_with_result, tasks)


@pytest.fixture
async def gate(database: Database) -> Gate:
    return Gate(database)


@pytest.fixture
async def coalescer(gate: Gate) -> AsyncIterator[Coalescer]:
    coalescing = Coalescer(gate.submit, asyncio.get_running_loop())
    yield coalescing
    gate.let(100)
    await asyncio.wait_for(coalescing.end(), WAIT_SECONDS)


async def stored(database: Database) -> dict[int, str]:
    """Payloads of all tasks by id."""
    task = database.tables.task.c
    async with database.reading() as tx:
        return {row.id: row.payload for row in await tx.rows(sa.select(task.id, task.payload))}


async def result_id(future: Future[SubmitResult]) -> int:
    (task_id,) = (await asyncio.wait_for(asyncio.wrap_future(future), WAIT_SECONDS)).ids
    return task_id


def numbered(number: int) -> NewTask:
    return NewTask("work", f'{{"number":{number}}}')


async def test_each_coroutine_gets_the_id_of_its_own_submit(
    sharing: None, database: Database, work: TaskHandler[Any, Any, Any]
) -> None:
    ids = await asyncio.gather(*(work.submit_async(number=number) for number in range(300)))
    assert await stored(database) == {task_id: f'{{"number":{number}}}' for number, task_id in enumerate(ids)}


def test_each_thread_gets_the_id_of_its_own_submit(
    sharing: None, migrated_url: str, work: TaskHandler[Any, Any, Any]
) -> None:
    with ThreadPoolExecutor(32) as threads:
        ids = list(threads.map(lambda number: work.submit(number=number), range(200)))
    rows = asyncio.run(_stored_at(migrated_url))
    assert rows == {task_id: f'{{"number":{number}}}' for number, task_id in enumerate(ids)}


async def _stored_at(url: str) -> dict[int, str]:
    async with database_at(url) as database:
        return await stored(database)


async def test_a_single_submit_is_sent_immediately_and_later_ones_share_the_next_transaction(
    coalescer: Coalescer, gate: Gate
) -> None:
    first = coalescer.put(numbered(0))
    await gate.arrived.wait()
    others = [coalescer.put(numbered(number)) for number in range(1, 50)]
    gate.let(2)
    ids = [await result_id(future) for future in (first, *others)]
    assert gate.sizes == [1, 49]
    assert len(set(ids)) == 50


async def test_no_future_resolves_before_the_commit(coalescer: Coalescer, gate: Gate, database: Database) -> None:
    future = coalescer.put(numbered(1))
    await gate.arrived.wait()
    assert (future.done(), await stored(database)) == (False, {})
    gate.let(1)
    assert {await result_id(future): '{"number":1}'} == await stored(database)


async def test_the_size_of_a_transaction_is_bounded(coalescer: Coalescer, gate: Gate) -> None:
    first = coalescer.put(numbered(0))
    await gate.arrived.wait()
    futures = [first, *(coalescer.put(numbered(number)) for number in range(2 * MOST + 5))]
    gate.let(4)
    for future in futures:
        await result_id(future)
    assert gate.sizes == [1, MOST, MOST, 5]


@pytest.mark.parametrize(
    ("bad", "error"), [(NewTask("work", "[1]"), DatabaseRefused), (NewTask("work", priority=99), InvalidTask)]
)
async def test_an_invalid_task_fails_alone(
    coalescer: Coalescer, gate: Gate, database: Database, bad: NewTask, error: type[Exception]
) -> None:
    tasks = [*map(numbered, range(5)), bad, *map(numbered, range(5, 10))]
    futures = [coalescer.put(task) for task in tasks]
    gate.let(100)
    refused = futures.pop(5)
    with pytest.raises(error):
        await result_id(refused)
    accepted = {await result_id(future): f'{{"number":{number}}}' for number, future in enumerate(futures)}
    assert accepted == await stored(database)


async def test_a_cancelled_submit_is_not_sent(coalescer: Coalescer, gate: Gate, database: Database) -> None:
    first = coalescer.put(numbered(0))
    await gate.arrived.wait()
    given_up, other = coalescer.put(numbered(1)), coalescer.put(numbered(2))
    given_up.cancel()
    gate.let(2)
    await result_id(first)
    await result_id(other)
    assert sorted((await stored(database)).values()) == ['{"number":0}', '{"number":2}']


async def test_cancelling_a_submit_during_its_transaction_does_not_affect_others(
    sharing: None, database: Database, work: TaskHandler[Any, Any, Any]
) -> None:
    submits = [asyncio.ensure_future(work.submit_async(number=number)) for number in range(20)]
    await asyncio.sleep(0)
    submits[7].cancel()
    results = await asyncio.gather(*submits, return_exceptions=True)
    assert isinstance(results.pop(7), asyncio.CancelledError)
    assert set(results) <= (await stored(database)).keys()


@pytest.fixture(params=["sqlite", "postgresql"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/no/such/folder.db" if request.param == "sqlite" else "postgresql://127.0.0.1:1/nobody"


async def test_an_outage_fails_every_submit_with_its_own_error(nowhere: str, work: TaskHandler[Any, Any, Any]) -> None:
    connect(url=parse_url(nowhere), coalesce=True)
    try:
        submits = [asyncio.ensure_future(work.submit_async(number=number)) for number in range(20)]
        errors = await asyncio.gather(*submits, return_exceptions=True)
    finally:
        disconnect()
    assert all(isinstance(error, DatabaseUnavailable) for error in errors)
    assert len({id(error) for error in errors}) == 20


async def test_submits_continue_after_an_outage(gate: Gate, database: Database) -> None:
    away = [DatabaseUnavailable(url="somewhere", why="it is restarted")]

    async def submit(tasks: Sequence[NewTask]) -> SubmitResult:
        if away:
            raise away.pop()
        return await gate.submit(tasks)

    coalescer = Coalescer(submit, asyncio.get_running_loop())
    with pytest.raises(DatabaseUnavailable):
        await result_id(coalescer.put(numbered(0)))
    gate.let(1)
    assert {await result_id(coalescer.put(numbered(1))): '{"number":1}'} == await stored(database)


async def test_a_task_with_a_unique_key_is_submitted_separately(
    sharing: None, gate: Gate, database: Database, work: TaskHandler[Any, Any, Any]
) -> None:
    coalescer = get_client()._coalescer
    assert coalescer is not None
    coalescer._submit = gate.submit
    # The other submits are blocked; this one is not.
    handle = await work.options(unique_key="only").submit_async(number=1)
    again = await work.options(unique_key="only").submit_async(number=2)
    assert (again, again.duplicate, gate.sizes) == (handle, True, [])


async def test_closing_the_client_stores_all_pending_submits(
    sharing: None, migrated_url: str, work: TaskHandler[Any, Any, Any]
) -> None:
    submits = [asyncio.ensure_future(work.submit_async(number=number)) for number in range(50)]
    await asyncio.sleep(0)
    await asyncio.to_thread(disconnect)
    assert len(set(await asyncio.gather(*submits))) == 50
    assert len(await _stored_at(migrated_url)) == 50


def test_no_interruption_of_a_submit_keeps_the_later_ones_waiting(
    sharing: None, work: TaskHandler[Any, Any, Any]
) -> None:
    work.submit(number=0)
    for count in range(1_000):
        try:
            with Interruption({commit.__file__}, count):
                work.submit(number=1)
        except KeyboardInterrupt:
            following = threading.Thread(target=work.submit, kwargs={"number": 2}, daemon=True)
            following.start()
            following.join(90)
            assert not following.is_alive(), "the sender does not begin"
        else:
            break
    assert 2 < count < 1_000
