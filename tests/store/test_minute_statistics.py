"""Submit counts: every task once, in the minute of its submitted_at, for any client."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.engine.metrics import Metrics
from runner.model.outcome import Retry
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.store.minute_statistics import write_statistics
from tests.store.rows import add_live
from tests.store.runners import Runner
from tests.store.table import make_due, put, put_many

NOON = datetime(2026, 3, 1, 12, 0, 40, tzinfo=UTC)
BY = Actor("ana", "web-1", "not wanted")


async def submitted(database: Database) -> dict[datetime, int]:
    """The submit counts of all runners, by minute."""
    minute = database.tables.minute.c
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(minute.minute, sa.func.sum(minute.submitted)).group_by(minute.minute))
    return {row[0]: int(row[1]) for row in rows}


class Counting:
    """A runner that counts its claims."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.metrics = Metrics(time.time)

    async def claim(self, limit: int = 100) -> list[Any]:
        claimed = await self.runner.claim(limit)
        self.metrics.count_arrivals(claimed)
        return claimed

    async def write(self) -> None:
        await self.runner.database.write(write_statistics, self.runner.id, [], self.metrics.take_arrivals())


@pytest.fixture
def counting(runner: Runner) -> Counting:
    return Counting(runner)


async def test_a_task_counts_in_the_minute_in_which_it_was_submitted(database: Database, counting: Counting) -> None:
    for _ in range(2):
        await add_live(database, "work", submitted_at=NOON)
    await add_live(database, "work", submitted_at=NOON.replace(minute=7))
    await counting.claim()
    await counting.write()
    assert await submitted(database) == {NOON.replace(second=0): 2, NOON.replace(minute=7, second=0): 1}


async def test_a_later_attempt_is_the_same_task(database: Database, counting: Counting) -> None:
    id = await put(database)
    for _ in range(2):
        (task,) = await counting.claim()
        await counting.runner.end(task, Retry())
        await make_due(database, id)
    await counting.write()
    assert sum((await submitted(database)).values()) == 1


async def test_counts_of_one_minute_add_up_over_repeated_writes(database: Database, counting: Counting) -> None:
    for _ in range(3):
        await add_live(database, "work", submitted_at=NOON)
        await counting.claim()
        await counting.write()
    assert await submitted(database) == {NOON.replace(second=0): 3}


async def test_unwritten_statistics_are_written_next_time(database: Database, counting: Counting) -> None:
    await put_many(database, 3)
    await counting.claim(2)
    lost = counting.metrics.take_arrivals()
    counting.metrics.restore([], lost)
    await counting.claim()
    await counting.write()
    await counting.write()
    assert sum((await submitted(database)).values()) == 3


async def test_repeated_totals_count_no_submit_twice(database: Database, counting: Counting) -> None:
    await put(database)
    for task in await counting.claim():
        counting.metrics.add("succeed", task.queue, task.handler, 1, 0.1)
    minutes, arrivals = counting.metrics.take_minutes(), counting.metrics.take_arrivals()
    for given in (arrivals, {}):
        await database.write(write_statistics, counting.runner.id, minutes, given)
    async with database.reading() as tx:
        minute = tx.tables.minute.c
        (row,) = await tx.rows(sa.select(sa.func.sum(minute.submitted), sa.func.sum(minute.succeeded)))
    assert tuple(row) == (1, 1)


async def test_a_task_terminated_before_its_first_claim_counts_too(database: Database, counting: Counting) -> None:
    never, tried = await add_live(database, "work", submitted_at=NOON), await put(database, priority=9)
    (task,) = await counting.claim(1)
    await counting.runner.end(task, Retry())
    await counting.write()
    await database.write(terminate, [Target(never), Target(tried)], BY)
    found = await submitted(database)
    assert found.pop(NOON.replace(second=0)) == 1
    assert list(found.values()) == [1]


async def test_an_implausible_time_counts_as_now(database: Database, counting: Counting) -> None:
    odd = (
        ("infinity", "-infinity", "20000-01-01", "0044-03-15 BC")
        if database.dialect.isolates_rows
        else ("soon", "x", "")
    )
    async with database.writing() as tx:
        for moment in (*odd, "2999-01-01 00:00:00"):
            insert = sa.text("insert into task (handler, submitted_at) values ('work', :moment)")
            await tx.execute(insert, {"moment": moment})
    before = datetime.now(UTC).replace(second=0, microsecond=0)
    assert len(await counting.claim()) == len(odd) + 1
    await counting.write()
    found = await submitted(database)
    assert sum(found.values()) == len(odd) + 1
    assert all(before <= minute <= datetime.now(UTC) for minute in found)
