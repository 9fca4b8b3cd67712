"""Submits of single tasks that share transactions: each told of its own, and none hurt by another."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner import TaskHandler, connect, disconnect, handler
from runner.door.door import door
from runner.door.gathering import MOST, Gathering
from runner.errors import DatabaseAway, DatabaseRefused, InvalidTask
from runner.handlers import REGISTRY
from runner.store.database import Database
from runner.store.submit import hand_in
from runner.task import NewTask, Receipt
from runner.urls import parse_url

PATIENCE = 60


@pytest.fixture
def work() -> Iterator[TaskHandler[Any, Any, Any]]:
    @handler("test.work")
    def work(number: int) -> None: ...

    yield work
    REGISTRY._handlers.pop(work.name)


@pytest.fixture
def sharing(migrated_url: str) -> Iterator[None]:
    """The door of an application that has asked for it."""
    connect(url=parse_url(migrated_url), coalesce=True)
    yield
    disconnect()


class Gate:
    """Submits to a real database, one batch at a time, when the test lets it; knows how large each batch was."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open = asyncio.Semaphore(0)
        self.sizes: list[int] = []
        self.arrived = asyncio.Event()

    def let(self, batches: int) -> None:
        for _ in range(batches):
            self._open.release()

    async def submit(self, tasks: Sequence[NewTask]) -> Receipt:
        self.sizes.append(len(tasks))
        self.arrived.set()
        await self._open.acquire()
        return await self._database.state(hand_in, tasks)


@pytest.fixture
async def gate(database: Database) -> Gate:
    return Gate(database)


@pytest.fixture
async def gathering(gate: Gate) -> AsyncIterator[Gathering]:
    made = Gathering(gate.submit, asyncio.get_running_loop())
    yield made
    gate.let(100)
    await asyncio.wait_for(made.end(), PATIENCE)


async def stored(database: Database) -> dict[int, str]:
    """The payloads of all tasks, by id."""
    task = database.tables.task.c
    async with database.reading() as tx:
        return {row.id: row.payload for row in await tx.rows(sa.select(task.id, task.payload))}


async def told(future: Future[Receipt]) -> int:
    (task_id,) = (await asyncio.wait_for(asyncio.wrap_future(future), PATIENCE)).ids
    return task_id


def numbered(number: int) -> NewTask:
    return NewTask("work", f'{{"number":{number}}}')


async def test_submits_of_many_coroutines_are_each_told_their_own_id(
    sharing: None, database: Database, work: TaskHandler[Any, Any, Any]
) -> None:
    ids = await asyncio.gather(*(work.submit_async(number=number) for number in range(300)))
    assert await stored(database) == {task_id: f'{{"number":{number}}}' for number, task_id in enumerate(ids)}


def test_submits_of_many_threads_are_each_told_their_own_id(
    sharing: None, migrated_url: str, work: TaskHandler[Any, Any, Any]
) -> None:
    with ThreadPoolExecutor(32) as threads:
        ids = list(threads.map(lambda number: work.submit(number=number), range(200)))
    rows = asyncio.run(_stored_at(migrated_url))
    assert rows == {task_id: f'{{"number":{number}}}' for number, task_id in enumerate(ids)}


async def _stored_at(url: str) -> dict[int, str]:
    database = Database.open(url)
    try:
        return await stored(database)
    finally:
        await database.dispose()


async def test_what_comes_alone_is_sent_at_once_and_what_comes_meanwhile_goes_together(
    gathering: Gathering, gate: Gate
) -> None:
    first = gathering.put(numbered(0))
    await gate.arrived.wait()
    others = [gathering.put(numbered(number)) for number in range(1, 50)]
    gate.let(2)
    ids = [await told(future) for future in (first, *others)]
    assert gate.sizes == [1, 49]
    assert len(set(ids)) == 50


async def test_nobody_is_told_before_the_commit(gathering: Gathering, gate: Gate, database: Database) -> None:
    future = gathering.put(numbered(1))
    await gate.arrived.wait()
    assert (future.done(), await stored(database)) == (False, {})
    gate.let(1)
    assert {await told(future): '{"number":1}'} == await stored(database)


async def test_a_transaction_takes_so_many_tasks_at_most(gathering: Gathering, gate: Gate) -> None:
    first = gathering.put(numbered(0))
    await gate.arrived.wait()
    futures = [first, *(gathering.put(numbered(number)) for number in range(2 * MOST + 5))]
    gate.let(4)
    for future in futures:
        await told(future)
    assert gate.sizes == [1, MOST, MOST, 5]


@pytest.mark.parametrize(
    ("bad", "error"), [(NewTask("work", "[1]"), DatabaseRefused), (NewTask("work", priority=99), InvalidTask)]
)
async def test_a_task_that_is_refused_fails_alone(
    gathering: Gathering, gate: Gate, database: Database, bad: NewTask, error: type[Exception]
) -> None:
    tasks = [*map(numbered, range(5)), bad, *map(numbered, range(5, 10))]
    futures = [gathering.put(task) for task in tasks]
    gate.let(100)
    refused = futures.pop(5)
    with pytest.raises(error):
        await told(refused)
    accepted = {await told(future): f'{{"number":{number}}}' for number, future in enumerate(futures)}
    assert accepted == await stored(database)


async def test_a_task_that_nobody_waits_for_any_more_is_not_sent(
    gathering: Gathering, gate: Gate, database: Database
) -> None:
    first = gathering.put(numbered(0))
    await gate.arrived.wait()
    given_up, other = gathering.put(numbered(1)), gathering.put(numbered(2))
    given_up.cancel()
    gate.let(2)
    await told(first)
    await told(other)
    assert sorted((await stored(database)).values()) == ['{"number":0}', '{"number":2}']


async def test_a_waiter_that_is_cancelled_while_its_task_is_sent_takes_nobody_with_it(
    sharing: None, database: Database, work: TaskHandler[Any, Any, Any]
) -> None:
    submits = [asyncio.ensure_future(work.submit_async(number=number)) for number in range(20)]
    await asyncio.sleep(0)
    submits[7].cancel()
    ended = await asyncio.gather(*submits, return_exceptions=True)
    assert isinstance(ended.pop(7), asyncio.CancelledError)
    assert set(ended) <= (await stored(database)).keys()


@pytest.fixture(params=["sqlite", "postgresql"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/no/such/folder.db" if request.param == "sqlite" else "postgresql://127.0.0.1:1/nobody"


async def test_all_are_told_that_the_database_is_away_each_by_an_error_of_its_own(
    nowhere: str, work: TaskHandler[Any, Any, Any]
) -> None:
    connect(url=parse_url(nowhere), coalesce=True)
    try:
        submits = [asyncio.ensure_future(work.submit_async(number=number)) for number in range(20)]
        errors = await asyncio.gather(*submits, return_exceptions=True)
    finally:
        disconnect()
    assert {type(error) for error in errors} == {DatabaseAway}
    assert len({id(error) for error in errors}) == 20


async def test_it_goes_on_after_the_database_was_away(gate: Gate, database: Database) -> None:
    away = [DatabaseAway(url="somewhere", why="it is restarted")]

    async def submit(tasks: Sequence[NewTask]) -> Receipt:
        if away:
            raise away.pop()
        return await gate.submit(tasks)

    gathering = Gathering(submit, asyncio.get_running_loop())
    with pytest.raises(DatabaseAway):
        await told(gathering.put(numbered(0)))
    gate.let(1)
    assert {await told(gathering.put(numbered(1))): '{"number":1}'} == await stored(database)


async def test_a_task_with_a_unique_key_waits_for_no_others(
    sharing: None, gate: Gate, database: Database, work: TaskHandler[Any, Any, Any]
) -> None:
    gathering = door()._gathering
    assert gathering is not None
    gathering._submit = gate.submit
    # Others are held up, and this one is not.
    ticket = await work.options(unique_key="only").submit_async(number=1)
    again = await work.options(unique_key="only").submit_async(number=2)
    assert (again, again.duplicate, gate.sizes) == (ticket, True, [])


def test_what_was_handed_in_is_stored_before_the_door_is_closed(
    sharing: None, migrated_url: str, work: TaskHandler[Any, Any, Any]
) -> None:
    tasks = [work.options().call(number=number) for number in range(50)]
    futures = [door().submit([task]) for task in tasks]
    disconnect()
    assert not wait_for(futures, timeout=PATIENCE).not_done
    assert len(asyncio.run(_stored_at(migrated_url))) == 50
