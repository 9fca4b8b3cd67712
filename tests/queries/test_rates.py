"""Arrivals and ends of a queue, and the time until it is empty."""

from datetime import UTC, datetime, timedelta
from math import inf

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.db.types import db_now
from runner.model.task import State
from runner.queries.counting import Count
from runner.queries.counts import QueueCounts, counts, time_until_empty, uncounted
from runner.queries.reports import pulses
from tests.store.minutes import Arrival, Minute, within_a_minute, write_statistics
from tests.store.rows import add_live, ahead

pytestmark = pytest.mark.both_databases

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ready", "arrived", "finished", "seconds"),
    [
        (0, 100, 0, None),
        (18_240, 210, 180, inf),
        (500, 100, 100, inf),
        (412, 1_200, 1_300, 247.2),
        (3, 1_000, 990, 3 * 60 / 990),
        (1, 0, 0, inf),
    ],
)
def test_the_time_to_empty_a_backlog_follows_from_the_rates(
    ready: int, arrived: int, finished: int, seconds: float | None
) -> None:
    assert time_until_empty(ready, arrived, finished) == (None if seconds is None else pytest.approx(seconds))


async def test_arrivals_are_counted_tasks_and_tasks_whose_first_run_has_not_ended(database: Database) -> None:
    async def act(present: datetime) -> QueueCounts:
        then = present - timedelta(seconds=30)
        for moment in (then, then, then + timedelta(seconds=31), then - timedelta(seconds=31)):
            await add_live(database, queue="mail", submitted_at=moment, run_at=ahead(-90))
        await add_live(database, queue="mail", submitted_at=then, fence=1, attempt=1)
        await add_live(database, queue="mail", submitted_at=then, state=State.BLOCKED.value)
        await add_live(database, queue="mail", submitted_at=then, state=State.RUNNING.value, fence=1, attempt=1)
        minute = then.replace(second=0)
        statistics = Minute(minute, "mail", "h")
        statistics.counts["succeeded"] = 2
        arrivals: dict[Arrival, int] = {
            ((minute - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / 60, "mail", "h"): 7
        }
        await database.write(write_statistics, 1, [statistics], arrivals)
        (mail,) = await database.read(counts)
        return mail

    mail = await within_a_minute(database, act)
    assert (mail.arrived, mail.minute.finished) == (Count(11), 2)
    assert mail.empty_in == inf
    assert mail.falls_behind


async def test_an_incomplete_count_is_marked(database: Database) -> None:
    then = NOON + timedelta(days=1)
    for _ in range(6):
        await add_live(database, submitted_at=then)
    since, until = then - timedelta(seconds=30), then + timedelta(seconds=30)
    assert await database.read(uncounted, since, until, (2, 4)) == ({("default", "h"): 4}, True)
    assert await database.read(uncounted, since, until, (2, 7)) == ({("default", "h"): 6}, False)
    await add_live(database, id=-1, submitted_at=NOON)
    assert await database.read(uncounted, since, until, (7,)) == ({("default", "h"): 6}, False)


async def test_unreadable_times_are_skipped(database: Database) -> None:
    await add_live(database, submitted_at=db_now())
    async with database.writing() as tx:
        odd = "'infinity'" if database.dialect.is_server else "'soon'"
        await tx.execute(sa.text(f"update task set submitted_at = {odd}"))
    now = await database.read(clock)
    assert await database.read(uncounted, now - timedelta(days=1), now + timedelta(days=1)) == ({}, False)


async def test_pulses_are_of_each_queue_minute_by_minute(database: Database) -> None:
    for runner_id, queue, number, ahead_by in ((1, "a", 3, 0), (2, "a", 4, 0), (1, "a", 5, 1), (1, "b", 6, 1)):
        minute = Minute(NOON + timedelta(minutes=ahead_by), queue, "h")
        minute.counts["succeeded"] = number
        await database.write(write_statistics, runner_id, [minute], {})
    flows_by_queue = await database.read(pulses, NOON)
    assert {queue: [flow.flow.succeeded for flow in flows] for queue, flows in flows_by_queue.items()} == {
        "a": [7, 5],
        "b": [6],
    }
    assert [flow.flow.succeeded for flow in (await database.read(pulses, NOON + timedelta(minutes=1)))["a"]] == [5]
