"""Recovery: the outage of a handler that has ended, and its tasks."""

from datetime import UTC, datetime, timedelta

import pytest

from runner.db.database import Database
from runner.db.transaction import clock
from runner.model.task import State
from runner.queries.counting import Count
from runner.queries.recovery import FailedMinute, Recovery, last_outage, recovery
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead

MINUTE = timedelta(minutes=1)
NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def outage(*ago: int, failed: int = 30, succeeded: int = 0) -> list[FailedMinute]:
    return [FailedMinute(NOW - number * MINUTE, succeeded, failed) for number in ago]


@pytest.mark.parametrize(
    ("minutes", "first", "last"),
    [
        (outage(30, 29, 28, 27), 30, 27),
        (outage(40, 31, 30), 40, 30),  # a pause of nine minutes belongs to it
        ([*outage(90, 89, 88), *outage(50, 49)], 50, 49),
        (outage(3, 2), 0, 0),  # it goes on
        (outage(4, 5), 5, 4),
        (outage(125, 124), 0, 0),  # long ago
        (outage(30), 0, 0),  # one minute
        (outage(30, 29, failed=9), 0, 0),  # few attempts
        (outage(30, 29, succeeded=31), 0, 0),  # most attempts succeed
    ],
)
def test_an_outage_has_bad_minutes_in_a_row_and_a_calm_end(minutes: list[FailedMinute], first: int, last: int) -> None:
    found = last_outage(minutes, NOW)
    assert [(NOW - each.at) // MINUTE for each in (found[:1] + found[-1:])] == ([first, last] if first else [])


async def end_outage(database: Database, succeeded: int = 90) -> datetime:
    """An outage of an hour that ended nine minutes ago, with six tasks; returns the begin of this minute.

    Args:
        succeeded: the attempts that have succeeded since.
    """
    async with database.reading() as tx:
        now = (await clock(tx)).replace(second=0, microsecond=0)
    rows = []
    for ago in range(64, 9, -1):
        minute = Minute(now - ago * MINUTE, "payments", "payments.charge")
        minute.counts["retried"] = 10
        rows.append(minute)
    works = Minute(now - 4 * MINUTE, "payments", "payments.charge")
    works.counts["succeeded"] = succeeded
    await database.write(write_statistics, await add_runner(database), [*rows, works], {})
    for id in range(1, 7):
        state = State.DEAD if id == 1 else State.SUCCEEDED
        if id < 6:
            await add_past(database, 900 + id, state)
        task = 900 + id if id < 6 else await add_live(database, attempt=1)
        await add_attempt(database, task, 1, handler="payments.charge", ended_at=ahead(-30 * 60))
        await add_attempt(database, task, 2, handler="payments.charge", ended_at=ahead(-29 * 60))
    return now


async def test_an_outage_has_not_ended_before_the_handler_succeeds_again(database: Database) -> None:
    await end_outage(database, succeeded=0)  # as behind an open breaker
    async with database.reading() as tx:
        assert await recovery(tx) is None


@pytest.mark.both_databases
async def test_an_outage_that_ended_has_its_tasks_as_they_are_now(database: Database) -> None:
    async with database.reading() as tx:
        assert await recovery(tx) is None
    now = await end_outage(database)
    await add_attempt(database, 77, handler="other", ended_at=ahead(-30 * 60))
    await add_attempt(database, 78, handler="payments.charge", ended_at=ahead(-3 * 3600))
    async with database.reading() as tx:
        found = await recovery(tx)
    assert found == Recovery("payments.charge", now - 64 * MINUTE, now - 9 * MINUTE, Count(6), 1, 4)
    assert found.length == 55 * MINUTE
