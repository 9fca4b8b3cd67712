"""Minute statistics: every outcome and every submit once, in the transaction of the outcome."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema import MINUTE_COUNTS
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now
from runner.model.outcome import Cancelled, Dead, Done, Outcome, Release, Retry, Snooze
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.policy.histogram import Histogram, Times, merged
from runner.queries.reports import times_by_minute
from runner.store.complete import complete_steps
from runner.store.history import FinishedTask
from runner.store.minute_statistics import record_times
from runner.store.rescue import rescue
from runner.store.settle import Settlement, settle
from tests.store.rows import add_live
from tests.store.runners import GRACE, Runner, settle_done
from tests.store.table import edit, expire, make_due, put, put_many

pytestmark = pytest.mark.one_database

NOON = datetime(2026, 3, 1, 12, 0, 40, tzinfo=UTC)
BY = Actor("ana", "web-1", "not wanted")


async def submitted(database: Database) -> dict[datetime, int]:
    """The submit counts of all runners, by minute."""
    minute = database.tables.minute.c
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(minute.minute, sa.func.sum(minute.submitted)).group_by(minute.minute))
    return {row[0]: int(row[1]) for row in rows if row[1]}


async def counts(database: Database) -> dict[str, int]:
    """The sums of all columns that are not 0."""
    minute = database.tables.minute.c
    async with database.reading() as tx:
        sums = [sa.func.coalesce(sa.func.sum(minute[name]), 0) for name in MINUTE_COUNTS]
        (row,) = await tx.rows(sa.select(*sums))
    return {name: int(number) for name, number in zip(MINUTE_COUNTS, row, strict=True) if number}


def succeeded(tasks: list[Any]) -> list[Settlement]:
    return [Settlement(task.id, task.fence, Done(), 0.3) for task in tasks]


async def test_a_task_counts_in_the_minute_in_which_it_was_submitted(database: Database, runner: Runner) -> None:
    for _ in range(2):
        await add_live(database, "work", submitted_at=NOON)
    await add_live(database, "work", submitted_at=NOON.replace(minute=7))
    await database.write(settle_done, runner.id, succeeded(await runner.claim(100)))
    assert await submitted(database) == {NOON.replace(second=0): 2, NOON.replace(minute=7, second=0): 1}


@pytest.mark.parametrize("outcome", [Retry(), Snooze("0s"), Release("drain")], ids=["retry", "snooze", "release"])
async def test_a_later_run_is_the_same_task(database: Database, runner: Runner, outcome: Any) -> None:
    id = await put(database)
    for _ in range(2):
        (task,) = await runner.claim(1)
        await runner.end(task, outcome)
        await make_due(database, id)
    assert sum((await submitted(database)).values()) == 1


async def test_successes_are_counted_with_their_attempts(database: Database, runner: Runner) -> None:
    await put_many(database, 4)
    second = await add_live(database, "work", queue="mail", attempt=1, fence=1)
    third = await add_live(database, "work", queue="mail", attempt=2, fence=2)
    tasks = await runner.claim(100)
    assert len(await database.write(settle_done, runner.id, succeeded(tasks))) == 6
    assert await counts(database) == {"submitted": 4, "succeeded": 6, "first_try": 4, "second_try": 1}
    async with database.reading() as tx:
        minute = tx.tables.minute.c
        rows = await tx.rows(sa.select(minute.queue, sa.func.sum(minute.succeeded)).group_by(minute.queue))
    assert {row[0]: row[1] for row in rows} == {"default": 4, "mail": 2}, (second, third)


async def test_times_add_up_in_the_bins_of_the_current_minute(database: Database) -> None:
    runs, waits = Histogram(), Histogram()
    runs.add([0.3, 0.304, 4.0])
    waits.add([0.3, 1e9])
    for runner_id in (1, 1, 2):
        await database.write(record_times, runner_id, {("mail", "send"): Times(runs, waits)})
    read = await database.read(times_by_minute, datetime.now(UTC) - timedelta(minutes=5))
    totals = [merged(each) for each in zip(*read.values(), strict=True)]
    assert [each.number for each in totals] == [9, 6]
    assert [each.seconds for each in totals] == pytest.approx([13.812, 3e9 + 0.9])
    assert [totals[0].percentile(q) for q in (0.5, 1.0)] == [pytest.approx(0.302), 4.0]
    assert await counts(database) == {}


async def test_a_settle_counts_exactly_the_accepted_outcomes(database: Database, runner: Runner) -> None:
    """A repeated settle and a fenced-out one count nothing."""
    await put_many(database, 3)
    tasks = await runner.claim(3)
    await database.write(settle_done, runner.id, succeeded(tasks[:2]))
    await database.write(settle_done, runner.id, succeeded(tasks[:2]))
    fenced = [item._replace(fence=item.fence + 1) for item in succeeded(tasks[2:])]
    await database.write(settle_done, runner.id, fenced)
    settled = await database.write(settle, runner.id, [*succeeded(tasks[:2]), *fenced])
    assert (len(settled.written), len(settled.fenced)) == (2, 1)
    assert (await counts(database))["succeeded"] == 2


async def test_a_settle_that_is_rolled_back_counts_nothing(database: Database, runner: Runner) -> None:
    await put(database)
    (task,) = await runner.claim(1)

    async def settle_and_fail(tx: Transaction) -> None:
        await settle_done(tx, runner.id, succeeded([task]))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.write(settle_and_fail)
    assert await counts(database) == {}


async def test_every_outcome_has_its_column(database: Database, runner: Runner) -> None:
    await put_many(database, 5)
    tasks = await runner.claim(5)
    await edit(database, tasks[2].id, cancel_requested=True)
    outcomes: tuple[Outcome, ...] = (Done(), Retry(), Cancelled("terminated"), Dead("no such customer"), Snooze("1h"))
    batch = [Settlement(task.id, task.fence, outcome, 0.3) for task, outcome in zip(tasks, outcomes, strict=True)]
    await database.write(settle, runner.id, batch)
    expected = Counter(submitted=5, succeeded=1, first_try=1, retried=1, cancelled=1, died=1)
    assert await counts(database) == expected


async def test_a_rescue_counts(database: Database, runner: Runner) -> None:
    other = await Runner.enter(database)
    await put(database)
    await put(database, max_attempts=1)
    assert len(await runner.claim(2)) == 2
    await expire(database, runner.id)
    await database.write(rescue, other.rescuer, GRACE)
    assert await counts(database) == {"submitted": 2, "rescued": 1, "died": 1}


async def test_transactions_of_handlers_do_not_wait_for_each_other(database: Database, runner: Runner) -> None:
    """Two of them end at the same time: each writes a row of its own."""
    await put_many(database, 2)
    tasks = await runner.claim(2)
    endings = [FinishedTask(task.id, task.fence, 0.3) for task in tasks]
    async with database.writing() as first:
        assert await first.follow(complete_steps(first, runner.id, endings[0], part=1))
        if database.dialect.row_locks:  # on SQLite there is one transaction at a time
            async with database.writing() as second:
                await second.execute(sa.text("SET LOCAL lock_timeout = '1s'"))
                assert await second.follow(complete_steps(second, runner.id, endings[1], part=2))
    assert (await counts(database))["succeeded"] == (2 if database.dialect.is_server else 1)


async def test_a_task_terminated_before_its_first_claim_counts_too(database: Database, runner: Runner) -> None:
    never, tried = await add_live(database, "work", submitted_at=NOON), await put(database, priority=9)
    (task,) = await runner.claim(1)
    await runner.end(task, Retry())
    await database.write(terminate, [Target(never), Target(tried)], BY)
    totals = await submitted(database)
    assert totals.pop(NOON.replace(second=0)) == 1
    assert list(totals.values()) == [1]


@pytest.mark.parametrize("fast", [True, False])
async def test_an_implausible_time_counts_as_now(database: Database, runner: Runner, fast: bool) -> None:
    odd = (
        ("infinity", "-infinity", "20000-01-01", "0044-03-15 BC")
        if database.dialect.is_server
        else ("soon", "x", "", "1980 or so")
    )
    async with database.writing() as tx:
        for moment in (*odd, "2999-01-01 00:00:00"):
            insert = sa.text("insert into task (handler, submitted_at) values ('work', :moment)")
            await tx.execute(insert, {"moment": moment})
        await tx.execute(sa.insert(tx.tables.task).values(handler="work", submitted_at=db_later(db_now(), 1_800)))
    before = datetime.now(UTC).replace(second=0, microsecond=0)
    tasks = await runner.claim()
    assert len(tasks) == len(odd) + 2
    if fast:
        await database.write(settle_done, runner.id, succeeded(tasks))
    else:
        await database.write(settle, runner.id, succeeded(tasks))
    totals = await submitted(database)
    assert sum(totals.values()) == len(odd) + 2
    assert all(before <= minute <= datetime.now(UTC) + timedelta(minutes=30) for minute in totals)
    assert len(totals) >= 2  # half an hour ahead, a producer's clock may be wrong
