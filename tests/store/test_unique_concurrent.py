"""Unique keys under concurrent submits."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import DuplicateTask
from runner.model.task import NewTask, OnDuplicate
from runner.store.submit import CHUNK, submit, submit_with_result
from tests.conftest import on_postgresql
from tests.store.runners import Runner
from tests.store.table import count, live
from tests.store.unique_tasks import key_row, once, put

SKIP, REPLACE, ERROR = OnDuplicate


@pytest.fixture
async def crowd(migrated_url: str) -> AsyncIterator[Sequence[Database]]:
    """The database as fifty programs see it, or as many as there are connections."""
    opened = [Database.open(migrated_url) for _ in range(10)]
    yield opened
    for one in opened:
        await one.dispose()


@pytest.mark.parametrize("answer", [SKIP, REPLACE])
async def test_of_fifty_concurrent_submits_one_creates_the_task(crowd: Sequence[Database], answer: OnDuplicate) -> None:
    submits = [
        put(one, once(payload=f'{{"a": {number}}}', on_duplicate=answer)) for number, one in enumerate([*crowd] * 5)
    ]
    results = await asyncio.gather(*submits)
    assert len({result.ids[0] for result in results}) == 1
    assert sum(not result.duplicates for result in results) == 1
    assert await count(crowd[0], crowd[0].tables.task) == 1
    assert (await key_row(crowd[0])).duplicates == 49


async def test_of_fifty_threads_one_is_not_refused(migrated_url: str) -> None:
    start, made, refused = threading.Barrier(10), list[int](), list[int | None]()

    async def submits() -> None:
        database = Database.open(migrated_url)
        await database.read(lambda tx: tx.scalar(sa.select(1)))
        await asyncio.to_thread(start.wait)
        for _ in range(5):
            try:
                made.extend((await put(database, once(on_duplicate=ERROR))).ids)
            except DuplicateTask as duplicate:
                refused.append(duplicate.id)
        await database.dispose()

    threads = [threading.Thread(target=asyncio.run, args=(submits(),)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert len(made) == 1
    assert refused == made * 49


async def test_a_key_freed_under_fifty_submits_is_taken_once(
    crowd: Sequence[Database], runner: Runner, database: Database
) -> None:
    first = await put(database, once())
    (claimed,) = await runner.claim()
    ending = asyncio.create_task(runner.end(claimed))
    results = await asyncio.gather(*(put(one, once()) for one in [*crowd] * 5))
    await ending
    later = {result.ids[0] for result in results} - set(first.ids)
    assert len(later) <= 1
    assert await count(database, database.tables.task) == len(later)
    assert sum(not result.duplicates for result in results) == len(later)


@on_postgresql
@pytest.mark.parametrize("commits", [True, False])
async def test_a_submit_that_waited_for_a_key_sees_its_final_state(
    database: Database, rival: Database, commits: bool
) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        async with database.writing() as tx:
            first = await submit_with_result(tx, [once()])
            second = asyncio.create_task(put(rival, once(on_duplicate=REPLACE, payload='{"a": 2}')))
            await waited_for(database)
            if not commits:
                raise KeyboardInterrupt
    result = await second
    assert (result.ids == first.ids, result.replaced) == ((True, {0}) if commits else (False, frozenset()))


@on_postgresql
async def test_a_duplicate_does_not_abort_the_callers_transaction(database: Database) -> None:
    await put(database, once())
    async with database.writing() as tx:
        before = await submit(tx, NewTask("before"))
        assert (await submit_with_result(tx, [once()])).duplicates
        after = await submit(tx, NewTask("after"))
    assert await live(database, before)
    assert await live(database, after)


@pytest.mark.slow
@on_postgresql
async def test_batches_of_the_same_keys_in_any_order_do_not_wait_for_each_other_in_a_ring(
    crowd: Sequence[Database],
) -> None:
    keys = [str(number) for number in range(CHUNK + 100)]
    orders = [keys, keys[::-1], keys[1000:] + keys[:1000]] * 3

    async def submits(database: Database, order: list[str]) -> None:
        async with database.writing() as tx:  # which is not retried
            await submit_with_result(tx, [once(key, on_duplicate=REPLACE) for key in order])

    await asyncio.gather(*(submits(one, order) for one, order in zip(crowd, orders, strict=False)))
    assert await count(crowd[0], crowd[0].tables.task) == len(keys)


async def waited_for(database: Database) -> None:
    """Return when a connection waits for a lock."""
    waits = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with asyncio.timeout(90):
        while True:
            async with database.reading() as tx:
                if await tx.scalar(waits):
                    return
            await asyncio.sleep(0.01)


@on_postgresql
async def test_an_old_snapshot_ends_in_a_serialization_failure_and_never_in_a_second_task(
    database: Database, rival: Database
) -> None:
    engine = database.engine.execution_options(isolation_level="REPEATABLE READ")
    async with await engine.connect() as connection:
        await connection.execute(sa.select(1))
        await put(rival, once())
        with pytest.raises(psycopg.errors.SerializationFailure):
            await submit_with_result(Transaction(connection, database.tables, database.dialect), [once()])
