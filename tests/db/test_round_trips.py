"""Statements of concurrent steps travel to a server together."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db import server_watch
from runner.db.database import Database
from runner.db.transaction import Transaction, clock
from runner.errors import DatabaseRefused, DatabaseUnavailable
from tests.conftest import on_postgresql, on_sqlite
from tests.postgres.distance import DistantServer

WAY = 0.02
"""Seconds of each direction: long enough for the statements of one round trip."""


@pytest.fixture
async def far(migrated_url: str) -> AsyncIterator[DistantServer]:
    async with DistantServer(migrated_url, WAY).opened() as far:
        yield far


@pytest.fixture
async def distant(far: DistantServer) -> AsyncIterator[Database]:
    database = Database.open(far.url)
    async with database.reading() as tx:
        await value(tx, 0)  # connects
    yield database
    await database.dispose()


async def value(tx: Transaction, number: int) -> int:
    return int(await tx.scalar(sa.select(sa.literal(number, sa.Integer))))


async def chain(tx: Transaction, length: int) -> list[int]:
    return [await value(tx, number) for number in range(length)]


async def failing(tx: Transaction) -> None:
    await tx.execute(sa.text("SELECT 1 / 0"))


@on_postgresql
async def test_the_longest_step_decides_the_number_of_round_trips(far: DistantServer, distant: Database) -> None:
    before = list(far.round_trips)
    async with distant.reading(deadline=5.0) as tx:
        await tx.keep_to_indexes()
        nested = tx.gather(chain(tx, 2), chain(tx, 3))
        results = await tx.gather(chain(tx, 1), nested, chain(tx, 3), *(value(tx, number) for number in range(20)))
    assert results == ([0], ([0, 1], [0, 1, 2]), [0, 1, 2], *range(20))
    assert far.longest(before) == 3


@on_postgresql
async def test_a_read_along_indexes_compiles_nothing(database: Database) -> None:
    """A stock server compiles a statement that costs much, as disabled scans do: seconds for an overview."""
    async with database.reading() as tx:
        await tx.keep_to_indexes()
        assert await tx.scalar(sa.text("SHOW jit")) == "off"


@on_postgresql
async def test_a_step_that_ends_early_keeps_no_other_step_waiting(far: DistantServer, distant: Database) -> None:
    async def nothing() -> str:
        return "nothing"

    async with distant.reading() as tx:
        before = list(far.round_trips)
        assert await tx.gather(nothing(), chain(tx, 2), tx.gather()) == ("nothing", [0, 1], ())
        assert far.longest(before) == 2
        assert await value(tx, 7) == 7


async def test_a_verb_that_several_steps_need_runs_once(database: Database) -> None:
    runs = []

    async def shared(tx: Transaction) -> int:
        runs.append(tx)
        return await value(tx, 5)

    async def user(tx: Transaction) -> int:
        return await tx.once(shared) + await value(tx, 1)

    async with database.reading() as tx:
        assert await tx.gather(user(tx), chain(tx, 3), user(tx), tx.once(shared)) == (6, [0, 1, 2], 6, 5)
        assert await clock(tx) == await clock(tx)
    assert len(runs) == 1


async def test_a_shared_verb_that_fails_fails_for_each_step(database: Database) -> None:
    async def user(tx: Transaction) -> str:
        with pytest.raises(sa.exc.DBAPIError):
            await tx.once(broken)
        return "seen"

    async def broken(tx: Transaction) -> None:
        await tx.execute(sa.text("SELECT no_such_column"))

    async with database.reading() as tx:
        assert await tx.gather(user(tx), user(tx)) == ("seen", "seen")


@on_postgresql
async def test_the_error_of_a_statement_is_that_of_its_transaction(distant: Database) -> None:
    with pytest.raises(DatabaseRefused, match="division by zero"):
        async with distant.reading() as tx:
            await tx.gather(chain(tx, 2), failing(tx), chain(tx, 3))
    async with distant.reading() as tx:
        assert await chain(tx, 2) == [0, 1]


@on_postgresql
async def test_each_statement_of_a_round_trip_has_its_own_deadline(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement limits are those of the server; the program waits for all of them."""
    monkeypatch.setattr(server_watch, "ANSWER_MARGIN", 0.0)

    async def sleep(tx: Transaction) -> int:
        return int(await tx.scalar(sa.text("SELECT 1 FROM pg_sleep(0.15)")))

    async with database.reading(0.4) as tx:
        assert await tx.gather(*[sleep(tx) for _ in range(4)]) == (1, 1, 1, 1)


@on_postgresql
async def test_a_lost_statement_is_the_cause_that_the_reader_sees(database: Database) -> None:
    """SQLAlchemy refuses the statements after it on the same connection."""

    async def end_the_connection(tx: Transaction) -> None:
        await tx.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))

    async def fails_late(tx: Transaction) -> None:
        with suppress(Exception):
            await end_the_connection(tx)
        await value(tx, 1)

    with pytest.raises(DatabaseUnavailable) as failure:
        async with database.reading() as tx:
            await tx.gather(fails_late(tx), end_the_connection(tx))
    assert "rolled back" not in str(failure.value)


async def test_steps_after_a_failed_one_are_dropped_without_a_warning(database: Database) -> None:
    async def refuse() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        async with database.reading() as tx:
            await tx.gather(refuse(), chain(tx, 1), tx.gather(chain(tx, 1), chain(tx, 2)))


@on_postgresql
async def test_a_single_step_goes_on_after_a_savepoint(distant: Database) -> None:
    async with distant.reading() as tx:
        with pytest.raises(sa.exc.DBAPIError, match="division by zero"):
            async with tx.connection.begin_nested():
                await failing(tx)
        assert await tx.gather(chain(tx, 2), chain(tx, 1)) == ([0, 1], [0])


@on_postgresql
async def test_a_reading_transaction_is_one_snapshot_and_changes_nothing(distant: Database) -> None:
    async with distant.reading() as tx:
        await value(tx, 0)
        level = await tx.scalar(sa.text("SELECT current_setting('transaction_isolation')"))
        assert level == "repeatable read"
        with pytest.raises(sa.exc.DBAPIError, match="read-only transaction"):
            await tx.execute(sa.text("CREATE TABLE refused (id integer)"))


@on_postgresql
async def test_a_cancelled_read_ends_its_statement_and_frees_its_connection(distant: Database) -> None:
    async def sleeps(tx: Transaction) -> None:
        await tx.execute(sa.text("SELECT pg_sleep(600)"))

    async def read() -> None:
        async with distant.reading() as tx:
            await tx.gather(sleeps(tx), chain(tx, 2))

    reading = asyncio.create_task(read())
    async with distant.reading() as tx:
        asleep = sa.text("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'")
        while not await tx.scalar(asleep):
            await tx.execute(sa.text("SELECT pg_stat_clear_snapshot()"))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    async with distant.reading() as tx:
        while await tx.scalar(asleep):
            await tx.execute(sa.text("SELECT pg_stat_clear_snapshot()"))


@on_sqlite
async def test_steps_run_one_after_the_other_in_a_file(database: Database) -> None:
    order = []

    async def step(tx: Transaction, name: str) -> None:
        order.append(name)
        await value(tx, 0)
        order.append(name)

    async with database.reading() as tx:
        await tx.gather(step(tx, "a"), step(tx, "b"))
    assert order == ["a", "a", "b", "b"]


async def test_a_step_that_was_cancelled_before_it_began_is_closed(database: Database) -> None:
    """A screen that closes cancels its read, perhaps before the first turn of the steps."""
    steps: list[Coroutine[Any, Any, Any]] = []

    async def cancelled(tx: Transaction) -> None:
        job = asyncio.current_task()
        assert job is not None
        steps.extend(tx.scalar(sa.text("SELECT 1")) for _ in range(2))
        asyncio.get_running_loop().call_soon(job.cancel)
        await tx.gather(*steps)

    reading = asyncio.ensure_future(database.read(cancelled))
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert [inspect.getcoroutinestate(step) for step in steps] == [inspect.CORO_CLOSED] * 2
