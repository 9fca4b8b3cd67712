"""Capacity from the tables: arrivals, durations, backlog, slots and bounds."""

from datetime import timedelta

import pytest

from runner.db.database import Database
from runner.db.recorder import Recording
from runner.db.transaction import clock
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.policy.capacity import CapacityRow
from runner.queries.capacity import capacity, capacity_cells, drained_in
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_live, add_runner, ahead
from tests.store.table import put_many
from tests.store.test_limits import limit

BY = Actor("ana", "web-1", "")


async def rows(database: Database, **options: str) -> dict[str, CapacityRow]:
    result = await database.read(capacity, **options)  # type: ignore[arg-type]
    return {row.name: row for row in result.rows}


@pytest.fixture
async def busy(database: Database) -> Database:
    """600 tasks of 3 s ended in the last 10 minutes; 20 are due, and 10 slots and 4 threads serve them."""
    at = await database.read(clock)
    for ago in range(1, 10):
        minute = Minute(at - timedelta(minutes=ago), "mail", "send")
        minute.counts |= {"submitted": 100, "succeeded": 100, "retried": 10}
        for _ in range(110):
            minute.durations.add(3.0)
        await database.write(write_statistics, 1, [minute], {})
    for _ in range(20):
        await add_live(database, "send", queue="mail", run_at=ahead(-77), submitted_at=ahead(-3600), fence=1)
    await add_live(database, "send", queue="mail", run_at=ahead(600), submitted_at=ahead(-3600), fence=1)
    await add_runner(database, handlers='["send", "make"]', threaded='["make"]', capacity=14, threads=4)
    await add_runner(database, handlers='["send"]', capacity=99, command="drain")
    await add_runner(database, lease=-9, handlers='["send"]', capacity=99)
    return database


async def test_live_slots_and_measured_durations_give_the_capacity(busy: Database) -> None:
    (row,) = (await rows(busy)).values()
    assert (row.name, row.slots, row.demand.backlog, row.bound.name) == ("mail", 10, 20, "slots")
    assert row.demand.seconds == pytest.approx(3.0)
    assert row.per_minute == pytest.approx(200.0)
    assert 77 <= row.demand.oldest < 200
    # The rates cover the time since the first statistics, so that a new installation is not underestimated.
    assert 85 < row.demand.arrivals <= 100
    assert row.demand.attempts == pytest.approx(1.1 * row.demand.arrivals)
    assert row.drained_in == pytest.approx(20 / (200 - row.demand.attempts))
    assert capacity_cells(row)[2] == "200"


async def test_limits_pauses_and_missing_runners_decide(busy: Database) -> None:
    await limit(busy, "queue", "mail", concurrency="2")
    (row,) = (await rows(busy)).values()
    assert row.bound.name == "queue mail: at most 2 running"
    assert row.per_minute == pytest.approx(40.0)
    assert drained_in(row).startswith("not at this rate: +")
    await busy.write(pause, PauseTarget(PauseKind.HANDLER, "send"), BY)
    await add_live(busy, "unknown", queue="other", run_at=ahead(-9), submitted_at=ahead(-3600))
    by_handler = await rows(busy, by="handler")
    assert by_handler["send"].bound.name == "handler send is paused"
    assert by_handler["unknown"].bound.name == "no live runner"


async def test_a_large_backlog_is_counted_with_the_same_statements(busy: Database) -> None:
    numbers = []
    for _ in range(2):
        async with busy.reading() as tx:
            recording = Recording(tx)
            (row,) = (await capacity(recording)).rows
            numbers.append(len(recording.executed))
        await put_many(busy, 500, "send", queue="mail")
    assert row.demand.backlog == 520
    assert numbers[1] <= numbers[0] < 25


async def test_an_empty_database_has_no_rows(database: Database) -> None:
    assert await rows(database) == {}
