"""Single statements on PostgreSQL, whose answers the event loop reads itself."""

import asyncio
import os
from collections.abc import Generator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner.db.async_core import PooledConnection
from runner.db.database import Database
from runner.db.dialects.postgresql import PREPARE_AFTER
from runner.db.loop_statements import LoopStatements
from runner.db.needs import Needs, needs
from runner.db.statement import Prepared, Step
from runner.db.transaction import Transaction, TransactionStage
from runner.errors import DatabaseRefused, DatabaseUnavailable, ValueRejected

pytestmark = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

LARGE = 3_000_000
"""Characters that no buffer of a socket holds."""


@lru_cache
def _statement(driver: sa.Dialect, text: str) -> Prepared:
    return Prepared(sa.text(text), driver)


@needs(Needs.PREPARED)
async def fetch(tx: Transaction, text: str, values: dict[str, Any] | None = None) -> list[Any]:
    return await tx.run(_statement(tx.driver, text), values or {})


def connections(database: Database) -> list[PooledConnection]:
    return database._statements._idle


def statements(database: Database) -> LoopStatements:
    (connection,) = connections(database)
    found = connection.driver.statements
    assert isinstance(found, LoopStatements)
    return found


@pytest.mark.parametrize("value", ["", "ä€😀", 'it\'s \\ "quoted" %s %% $1', "x" * LARGE])
async def test_texts_return_as_they_were_sent(database: Database, value: str) -> None:
    for _ in range(PREPARE_AFTER + 2):
        assert await database.read(fetch, "SELECT CAST(:value AS text)", {"value": value}) == [(value,)]


async def test_values_return_in_their_types(database: Database) -> None:
    text = "SELECT CAST(:a AS bigint), CAST(:b AS float8), CAST(:c AS boolean), CAST(:d AS text), CAST(:e AS bigint[])"
    values = {"a": -(2**62), "b": 0.1, "c": False, "d": None, "e": [1, None, 3]}
    assert await database.read(fetch, text, values) == [tuple(values.values())]


@pytest.mark.parametrize("value", [1, 0.5, None, 2.0])
async def test_the_fraction_of_a_number_reaches_a_statement_that_does_not_name_its_type(
    database: Database, value: float | None
) -> None:
    interval = "SELECT extract(epoch FROM :value * interval '1s')::float8"
    for each in (value, 0.25, value):
        [(seconds,)] = await database.read(fetch, interval, {"value": each})
        assert seconds == each


async def test_many_rows_return(database: Database) -> None:
    rows = await database.read(fetch, "SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) AS n")
    assert [row[0] for row in rows] == [*range(1, 20_001)]


async def test_a_text_with_nul_is_refused_and_the_connection_stays(database: Database) -> None:
    with pytest.raises(ValueRejected):
        await database.read(fetch, "SELECT CAST(:value AS text)", {"value": "a\0b"})
    assert await database.read(fetch, "SELECT 1") == [(1,)]


async def test_a_statement_is_prepared_once_it_is_frequent(database: Database) -> None:
    names = "SELECT name FROM pg_prepared_statements"
    for count in range(1, PREPARE_AFTER + 3):
        rows = await database.read(fetch, names)
        assert len(rows) == (1 if count > PREPARE_AFTER else 0)


async def test_a_connection_that_ends_while_idle_is_left_alone_and_then_replaced(database: Database) -> None:
    ((process,),) = await database.read(fetch, "SELECT pg_backend_pid()")
    reader = statements(database)
    async with database.writing() as tx:
        await tx.execute(sa.text(f"SELECT pg_terminate_backend({process})"))
    while reader.is_reading:  # its end wakes the event loop once, not for ever
        await asyncio.sleep(0)
    with pytest.raises(DatabaseUnavailable):
        await database.read(fetch, "SELECT 2")
    ((other,),) = await database.read(fetch, "SELECT pg_backend_pid()")
    assert other != process


async def test_an_error_names_its_state_and_the_next_statement_runs(database: Database) -> None:
    for _ in range(2):
        with pytest.raises(Exception, match="division by zero") as caught:
            await database.read(fetch, "SELECT 1 / (:value - 1)", {"value": 1})
        assert isinstance(caught.value.__cause__, psycopg.errors.DivisionByZero)
    assert await database.read(fetch, "SELECT 3") == [(3,)]


@pytest.mark.parametrize("waited", [False, True], ids=["", "psycopg waited since"])
async def test_the_socket_is_free_after_the_connection_is_closed(database: Database, waited: bool) -> None:
    await database.read(fetch, "SELECT 4")
    reader, loop = statements(database), asyncio.get_running_loop()
    if waited:
        await connections(database)[0].driver.wait(_without_waiting())
    await database.dispose()
    assert not reader.is_reading
    assert not loop.remove_reader(reader._socket)


async def test_a_cancelled_statement_ends_on_the_server(database: Database) -> None:
    ((process,),) = await database.read(fetch, "SELECT pg_backend_pid()")
    sleeping = asyncio.ensure_future(_sleep(database))
    state = "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid AND state = 'active' AND query LIKE '%pg_sleep%'"
    async with database.writing() as tx:
        for wanted in (1, 0):
            while await tx.scalar(sa.text(state), {"pid": process}) != wanted:
                await tx.execute(sa.text("SELECT pg_stat_clear_snapshot()"))
            sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping


def _without_waiting() -> Generator[int, int, None]:
    """What psycopg waits for when the answer is there."""
    yield from ()


async def test_a_statement_whose_socket_is_gone_fails_and_the_next_connection_works(database: Database) -> None:
    await database.read(fetch, "SELECT 1")
    own = statements(database)
    sleeping = asyncio.ensure_future(_sleep(database))
    while own._answer is None:
        await asyncio.sleep(0)
    with Path(os.devnull).open("rb") as other:
        os.dup2(other.fileno(), own._socket)  # as a handler does that closes descriptors; no event follows
    async with asyncio.timeout(60):
        with pytest.raises(DatabaseUnavailable):
            await sleeping
        assert await database.read(fetch, "SELECT 2") == [(2,)]


async def _sleep(database: Database) -> None:
    sleep = partial(fetch, text="SELECT pg_sleep(600)")
    await database._prepared(fetch, Needs.PREPARED, sleep, "statement", TransactionStage())


@needs(Needs.PREPARED_TRANSACTION)
async def together(tx: Transaction, *texts: str) -> list[Any]:
    """Execute statements of one transaction in one round trip, and then one that counts its tables."""
    rows = await tx.run_all([Step(_statement(tx.driver, text), {}) for text in texts]) if texts else []
    return [*rows, await tx.run(_statement(tx.driver, "SELECT count(*) FROM pg_tables WHERE tablename = 'kept'"), {})]


CREATE = "CREATE TABLE kept (n bigint)"


async def test_statements_of_a_transaction_travel_together(database: Database) -> None:
    for number in range(PREPARE_AFTER + 3):
        rows = await database.write(together, "SELECT 1, 'a'", "SELECT NULL WHERE false", "SELECT 3")
        assert rows == [[(1, "a")], [], [(3,)], [(0,)]], number
    await database.write(together, CREATE, "INSERT INTO kept VALUES (1)")
    assert await database.read(fetch, "SELECT n FROM kept") == [(1,)]
    await database.read(fetch, "DROP TABLE kept")


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("SELECT 1 / (length('a') - 1)", psycopg.errors.DivisionByZero),
        ("SELECT pg_terminate_backend(pg_backend_pid())", psycopg.OperationalError),
    ],
    ids=["error", "end of the session"],
)
@pytest.mark.parametrize("first", [True, False], ids=["with the begin", "later"])
async def test_a_transaction_leaves_nothing_after_one_of_its_statements_failed(
    database: Database, broken: str, error: type[Exception], first: bool
) -> None:
    @needs(Needs.PREPARED_TRANSACTION)
    async def fail(tx: Transaction) -> None:
        parts = [_statement(tx.driver, text) for text in (CREATE, broken, "SELECT 3")]
        for part in () if first else parts[:1]:
            await tx.run(part, {})
        await tx.run_all([Step(part, {}) for part in (parts if first else parts[1:])])

    with pytest.raises((DatabaseUnavailable, DatabaseRefused)) as caught:
        await database.write(fail)
    assert isinstance(caught.value.__cause__, error)
    assert not connections(database)
    assert await database.write(together) == [[(0,)]]


@needs(Needs.PREPARED_TRANSACTION)
async def commit_with(tx: Transaction, *texts: str) -> tuple[list[Any], bool]:
    """Execute statements of one transaction, and return the rows of the last one, which commits, and if it has."""
    rows: list[Any] = []
    for text in texts:
        if text is texts[-1]:
            tx.commit_next()
        rows = await tx.run(_statement(tx.driver, text), {})
    return rows, tx._driver.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def test_the_commit_travels_with_the_last_statement(database: Database) -> None:
    await database.write(together, CREATE)
    for number in range(PREPARE_AFTER + 3):
        insert = f"INSERT INTO kept VALUES ({number}) RETURNING n"
        assert await database.write(commit_with, "SELECT 1", insert) == ([(number,)], True)
    assert await database.write(commit_with, "INSERT INTO kept VALUES (100) RETURNING n") == ([(100,)], True)
    assert await database.write(together) == [[(1,)]]
    count = len(await database.read(fetch, "SELECT n FROM kept"))
    await database.read(fetch, "DROP TABLE kept")
    assert count == PREPARE_AFTER + 4


async def test_a_commit_that_travels_and_fails_leaves_nothing(database: Database) -> None:
    deferred = "CREATE TABLE kept (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    reached = []

    @needs(Needs.PREPARED_TRANSACTION)
    async def insert_twice(tx: Transaction) -> None:
        await commit_with(tx, deferred, "INSERT INTO kept VALUES (1), (1)")
        reached.append(tx)

    with pytest.raises(DatabaseRefused) as caught:
        await database.write(insert_twice)
    assert isinstance(caught.value.__cause__, psycopg.errors.UniqueViolation)
    assert not reached
    assert await database.write(together) == [[(0,)]]


async def test_no_statement_follows_the_round_trip_that_commits(database: Database) -> None:
    @needs(Needs.PREPARED_TRANSACTION)
    async def follow(tx: Transaction) -> None:
        await commit_with(tx, CREATE)
        await tx.run(_statement(tx.driver, "INSERT INTO kept VALUES (1)"), {})

    with pytest.raises(RuntimeError, match="follows the round trip that commits"):
        await database.write(follow)
    assert await database.read(fetch, "SELECT n FROM kept") == []
    await database.read(fetch, "DROP TABLE kept")


async def test_a_commit_that_no_statement_follows_is_sent_alone(database: Database) -> None:
    @needs(Needs.PREPARED_TRANSACTION)
    async def declare(tx: Transaction) -> None:
        await tx.run(_statement(tx.driver, CREATE), {})
        tx.commit_next()

    notices: list[str] = []
    await database.read(fetch, "SELECT 1")
    connections(database)[0].driver.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    await database.write(declare)
    assert await database.write(together) == [[(1,)]]
    await database.read(fetch, "DROP TABLE kept")
    assert notices == []


async def test_a_lost_answer_of_a_statement_that_commits_has_the_stage_of_the_commit(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        await database.write(commit_with, "SELECT 1", "SELECT pg_terminate_backend(pg_backend_pid())")
    assert caught.value.stage == "commit"


async def test_an_empty_transaction_sends_nothing(database: Database) -> None:
    @needs(Needs.PREPARED_TRANSACTION)
    async def nothing(tx: Transaction) -> int:
        return 5

    assert await database.write(nothing) == 5
    assert statements(database)._server.transaction_status == psycopg.pq.TransactionStatus.IDLE
