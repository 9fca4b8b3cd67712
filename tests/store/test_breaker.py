"""A breaker opens for all runners, lets few tasks probe, and costs no statement while it is closed."""

from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.errors import DatabaseRefused
from runner.model.outcome import Done, Failure, Retry
from runner.model.task import Claimed
from runner.policy.breaker import Breaker, Effect
from runner.store.breaker import Report, Review, close_breaker, review
from runner.store.claim.limited import LimitedClaim, LimitedLanes, claim_limited
from runner.store.registration import Identity, register
from runner.store.settle import Settlement
from tests.store.runners import Runner
from tests.store.table import put_many

pytestmark = pytest.mark.one_database

BREAKER = Breaker("3/min", probe="10s,60s", probes=2)
REFUSED = Retry(failure=Failure("ConnectionError", "refused"))


@pytest.fixture
async def other(database: Database) -> Runner:
    return await Runner.enter(database)


@pytest.fixture
async def runner(database: Database, other: Runner) -> Runner:
    runner = await Runner.enter(database)
    await declare(database, BREAKER)
    return runner


async def declare(database: Database, breaker: Breaker | None) -> None:
    """Register another runner with this breaker in its code."""
    breakers = {} if breaker is None else {"work": breaker.columns}
    await database.write(register, Identity("there", 2, "test", ["work"], 10, breakers=breakers), 60.0)


async def entry(database: Database) -> Any:
    handler = database.tables.handler
    async with database.reading() as tx:
        (row,) = await tx.rows(sa.select(handler).where(handler.c.name == "work"))
    return row


async def alter(database: Database, **values: Any) -> None:
    handler = database.tables.handler
    async with database.writing() as tx:
        await tx.execute(sa.update(handler).where(handler.c.name == "work").values(**values))


async def fail(runner: Runner, *tasks: Claimed, effect: Effect = "counts") -> Review:
    """Settle failures, and report them as a runner does."""
    await runner.settle(*(Settlement(task.id, task.fence, REFUSED, 0.1, "1h", effect) for task in tasks))
    return await runner.database.write(review, Report("work", "ConnectionError: refused"))


async def take(runner: Runner, number: int = 100) -> LimitedClaim:
    await runner.survey()
    lanes = LimitedLanes(list(runner.lanes.limited.due), runner.start)
    return await runner.database.write(claim_limited, runner.who, lanes, runner.terms, number)


async def opened(runner: Runner) -> LimitedClaim:
    """Open the breaker, and claim the probes of the first round."""
    await fail(runner, *await runner.claim(3))
    await alter(runner.database, breaker_probe_at=db_now())
    return await take(runner)


async def test_it_opens_at_the_number_of_failures_of_all_runners(
    database: Database, runner: Runner, other: Runner
) -> None:
    await put_many(database, 5)
    assert await fail(runner, *await runner.claim(2)) == Review(False)
    result = await fail(other, *await other.claim(1))
    assert (result.is_open, result.change) == (True, "opened")
    assert result.why == "3 failures in 1m, the last one ConnectionError: refused"
    assert await runner.claim() == []
    assert (await take(runner)).claimed == []
    assert (await fail(runner)).change == ""


async def test_failures_that_do_not_count_leave_it_closed(database: Database, runner: Runner) -> None:
    await put_many(database, 5)
    assert await fail(runner, *await runner.claim(4), effect="") == Review(False)


async def test_failures_before_the_window_do_not_count(database: Database, runner: Runner) -> None:
    await put_many(database, 5)
    await fail(runner, *await runner.claim(2))
    attempt = database.tables.attempt
    async with database.writing() as tx:
        await tx.execute(sa.update(attempt).values(ended_at=db_later(db_now(), -61.0)))
    assert await fail(runner, *await runner.claim(2)) == Review(False)


async def test_a_plain_claim_after_the_opening_takes_nothing(database: Database, runner: Runner) -> None:
    await put_many(database, 5)
    claimed = await runner.claim(3)
    await runner.survey()
    await fail(runner, *claimed)
    assert await runner.claim_on() == []


async def test_few_tasks_probe_after_the_wait_and_no_more_in_the_same_round(
    database: Database, runner: Runner, other: Runner
) -> None:
    await put_many(database, 9)
    await fail(runner, *await runner.claim(3))
    closed = await take(runner)
    assert closed.claimed == []
    assert 0.0 < max(closed.waits.values()) <= 10.0
    await alter(database, breaker_probe_at=db_now())
    result = await take(runner)
    assert len(result.claimed) == len(result.probes) == 2
    assert (await take(other)).claimed == []


async def test_a_failed_probe_begins_the_next_wait_and_spends_no_other_attempt(
    database: Database, runner: Runner
) -> None:
    await put_many(database, 9)
    first = await opened(runner)
    probe = first.probes[first.claimed[0].id]
    result = await database.write(review, Report("work", "refused", missed=frozenset([probe])))
    assert (result.change, result.why) == ("waits", "60 s")
    assert (await entry(database)).breaker_round == 2
    late = await database.write(review, Report("work", passed=frozenset([probe])))
    assert late == Review(True)
    task = database.tables.task.c
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(task.attempt).where(task.state == "waiting").order_by(task.id))
    assert [row.attempt for row in rows] == [1, 1, 1, 0, 0, 0, 0]


async def test_a_probe_that_passes_closes_it_and_earlier_failures_no_longer_count(
    database: Database, runner: Runner
) -> None:
    await put_many(database, 9)
    first = await opened(runner)
    probe = first.probes[first.claimed[0].id]
    await runner.settle(*(Settlement(task.id, task.fence, Done()) for task in first.claimed))
    assert await database.write(review, Report("work", passed=frozenset([probe]))) == Review(False, "closed")
    assert await fail(runner, *await runner.claim(2)) == Review(False)
    assert len(await runner.claim()) == 2


async def test_the_next_probes_start_if_no_runner_reports_the_end_of_the_last_ones(
    database: Database, runner: Runner
) -> None:
    await put_many(database, 9)
    await opened(runner)
    await alter(database, breaker_probe_at=db_now())
    assert len((await take(runner)).claimed) == 2


async def test_a_probe_of_an_earlier_opening_decides_nothing(database: Database, runner: Runner) -> None:
    await put_many(database, 9)
    first = await opened(runner)
    probe = next(iter(first.probes.values()))
    await database.write(close_breaker, "work")
    await database.write(review, Report("work", opens="quota"))
    await alter(database, breaker_opened_at=db_later(db_now(), 1.0))
    assert await database.write(review, Report("work", passed=frozenset([probe]))) == Review(True)


async def test_a_breaker_that_leaves_the_code_lets_the_tasks_start(database: Database, runner: Runner) -> None:
    await put_many(database, 9)
    await opened(runner)
    await declare(database, None)
    row = await entry(database)
    assert (row.breaker, row.breaker_probes) == (None, None)
    assert len(await runner.claim()) == 4


async def test_an_unreadable_definition_never_opens_it(database: Database, runner: Runner) -> None:
    await put_many(database, 5)
    await alter(database, breaker='{"failures": "many"}')
    assert await fail(runner, *await runner.claim(4)) == Review(False)


async def test_the_table_refuses_an_open_breaker_without_a_next_probe(database: Database, runner: Runner) -> None:
    with pytest.raises(DatabaseRefused):
        await alter(database, breaker_probes=1)
