"""Recovery: the outage of a handler that has ended, and its tasks."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.db.database import Database
from runner.db.transaction import clock
from runner.model.task import State
from runner.queries.counting import Count
from runner.queries.recovery import Recovery, last_outage, recovery
from runner.queries.reports import Flow, MinuteFlow
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead

MINUTE = timedelta(minutes=1)
NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def minutes(*ago: int, failed: int = 30, succeeded: int = 0) -> list[MinuteFlow]:
    return [MinuteFlow(NOW - number * MINUTE, Flow(succeeded=succeeded, retried=failed)) for number in ago]


def good(*ago: int) -> list[MinuteFlow]:
    return minutes(*ago, failed=0, succeeded=5)


@pytest.mark.parametrize(
    ("rows", "first", "end"),
    [
        ([*minutes(30, 29, 28, 27), *good(26, 25)], 30, 26),
        ([*minutes(40, 31, 30), *good(35, 29)], 40, 29),  # a few successes in nine minutes belong to it
        ([*minutes(90, 89, 88), *good(60), *minutes(50, 49), *good(48)], 50, 48),
        ([*minutes(90, 89, 88, 50, 49), *good(48)], 90, 48),  # nothing succeeded in the pause
        ([*minutes(30, 29), *good(12)], 30, 12),  # as behind an open breaker
        ([*minutes(200, 199), *good(100)], 200, 100),
        (minutes(30, 29), 0, 0),  # nothing has succeeded since
        ([*minutes(4, 3), *good(2)], 0, 0),  # it may go on
        ([*minutes(5, 4), *good(3)], 5, 3),
        ([*minutes(125, 124), *good(121)], 0, 0),  # long ago
        ([*minutes(30), *good(29)], 0, 0),  # one minute
        ([*minutes(30, 29, failed=9), *good(28)], 0, 0),  # few attempts
        ([*minutes(30, 29, succeeded=31), *good(28)], 0, 0),  # most attempts succeed
    ],
)
def test_an_outage_lasts_until_an_attempt_succeeds(rows: list[MinuteFlow], first: int, end: int) -> None:
    found = last_outage(rows, NOW)
    times = [found.since, found.until] if found else []
    assert [(NOW - at) // MINUTE for at in times] == ([first, end] if first else [])


async def end_outage(database: Database, succeeded: int = 90) -> datetime:
    """An outage of an hour that ended nine minutes ago, with six tasks; returns the begin of this minute.

    Args:
        succeeded: the attempts that succeeded in the minute after it; the history has no rows of them.
    """
    async with database.reading() as tx:
        now = (await clock(tx)).replace(second=0, microsecond=0)
    rows = []
    for ago in range(64, 9, -1):
        minute = Minute(now - ago * MINUTE, "payments", "payments.charge")
        minute.counts["retried"] = 10
        rows.append(minute)
    works = Minute(now - 9 * MINUTE, "payments", "payments.charge")
    works.counts["succeeded"] = succeeded
    await database.write(write_statistics, await add_runner(database), [*rows, works], {})
    for id in range(1, 7):
        state = State.DEAD if id == 1 else State.SUCCEEDED
        if id < 6:
            await add_past(database, 900 + id, state, handler="payments.charge", finished_at=now - 8 * MINUTE)
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
    now = await end_outage(database, succeeded=4)
    await add_attempt(database, 77, handler="other", ended_at=ahead(-30 * 60))
    await add_attempt(database, 78, handler="payments.charge", ended_at=ahead(-3 * 3600))
    async with database.reading() as tx:
        found = await recovery(tx)
    assert found == Recovery("payments.charge", now - 64 * MINUTE, now - 9 * MINUTE, Count(6), Count(1), Count(4))
    assert found.length == 55 * MINUTE


@pytest.mark.both_databases
async def test_tasks_that_a_breaker_or_a_pause_held_back_waited_in_an_outage(database: Database) -> None:
    now = await end_outage(database, succeeded=14)
    held: dict[str, Any] = {"handler": "payments.charge", "run_at": now - 20 * MINUTE}
    for id in range(10):
        await add_past(database, 1000 + id, finished_at=now - 7 * MINUTE, **held)
    for run_at in (now - 20 * MINUTE, now - 20 * MINUTE, now - 2 * MINUTE, now + 60 * MINUTE):
        await add_live(database, "payments.charge", run_at=run_at)
    await add_past(database, 1100, finished_at=now - 7 * MINUTE, handler="payments.charge", run_at=now - 7 * MINUTE)
    await add_past(database, 1101, finished_at=now - 30 * MINUTE, **held)  # it ran in the outage
    await add_past(database, 1102, finished_at=now - 7 * MINUTE, handler="other", run_at=now - 20 * MINUTE)
    found = await database.read(recovery)
    assert found is not None
    assert (found.tasks, found.died, found.done) == (Count(18), Count(1), Count(14))


async def test_the_tasks_of_an_outage_are_a_lower_bound_if_its_successes_are_no_longer_stored(
    database: Database,
) -> None:
    await end_outage(database, succeeded=5_000)
    found = await database.read(recovery)
    assert found is not None
    assert (str(found.tasks), str(found.died), str(found.done)) == ("6+", "1+", "4+")
