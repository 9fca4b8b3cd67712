"""Scans of a runner by its poll mode, with scans of their own for some handlers."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from runner import Runner
from runner.engine.events import TasksSubmitted
from runner.errors import InvalidSettings
from runner.model.task import NewTask
from runner.policy.polling import OwnScan, Tier, Tiers
from runner.store.claim.plain import Claimant
from runner.store.submit import submit_many
from tests.engine.harness import Harness, at_work, until

NO_WAKES = {"notify": False, "sqlite_poll_interval": "1h"}
SELDOM = NO_WAKES | {"poll_interval": "1h"}


def counts(harness: Harness, *names: str) -> Counter[str]:
    """Handlers that count their tasks."""
    done: Counter[str] = Counter()

    def enter(name: str) -> None:
        @harness.handler(name)
        async def run() -> None:
            done[name] += 1

    for name in names:
        enter(name)
    return done


async def test_a_runner_scans_once_when_it_starts(harness: Harness) -> None:
    counts(harness, "work")
    runner = harness.runner(**SELDOM)
    surveys, survey = 0, runner.claimer.survey.run

    async def count(claimant: Claimant) -> None:
        nonlocal surveys
        surveys += 1
        await survey(claimant)

    runner.claimer.survey.run = count  # type: ignore[method-assign]
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        await runner._heartbeat()
        await until(runner.claimer._scan_done.is_set)
    assert surveys == 1


async def test_a_throttled_runner_claims_one_batch_per_period(harness: Harness) -> None:
    done = counts(harness, "work")
    await harness.database.write(submit_many, [NewTask("work", "{}")] * 10)
    runner = harness.runner(poll_mode="throttle", claim_batch_size=4, **SELDOM)
    async with at_work(runner):
        await until(lambda: done["work"] == 4 and not len(runner.worker.in_flight))
        await harness.submit("work")
        runner.events.publish(TasksSubmitted())
        await runner.scans._scan_task
        assert done["work"] == 4, "neither a free slot nor a submit claims more in this period"
        runner.scans._begin_soon(runner.claimer.scope.begin)
        await until(lambda: done["work"] == 8)
        runner.scans._begin_soon(runner.claimer.scope.begin)
        await until(lambda: done["work"] == 11)


async def test_a_throttled_runner_works_off_everything_period_by_period(harness: Harness) -> None:
    done = counts(harness, "work")
    await harness.database.write(submit_many, [NewTask("work", "{}")] * 10)
    await harness.work(poll_mode="throttle", claim_batch_size=4, poll_interval="20ms", **NO_WAKES)
    assert done["work"] == 10


async def test_a_handler_with_its_own_scan_waits_for_it_and_the_others_do_not(harness: Harness) -> None:
    done = counts(harness, "report.daily", "mail.send")
    runner = harness.runner(scans="report.*=1h", poll_interval="20ms")
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        for name in ("report.daily", "mail.send"):
            await harness.submit(name)
        await until(lambda: done["mail.send"] == 1)
        await harness.submit("mail.send")
        await until(lambda: done["mail.send"] == 2)
        assert not done["report.daily"], "a submit and the scans of the others do not take it"
        (scan,) = runner._own_scans
        assert scan == OwnScan("report.*", 3600.0)
        runner.scans._begin_soon(lambda: runner.claimer.scope.begin_own(scan))
        await until(lambda: done["report.daily"] == 1)


async def test_own_scans_come_by_themselves_and_take_all_that_is_due(harness: Harness) -> None:
    done = counts(harness, "report")
    settings = {"scans": "report=20ms", "poll_interval": "1h", "concurrency": 1, "prefetch": 0}
    async with harness.running(**settings, **NO_WAKES) as runner:
        await until(lambda: runner.claimer.idle)
        await harness.database.write(submit_many, [NewTask("report", "{}")] * 5)
        await until(lambda: done["report"] == 5)


async def test_tasks_that_failed_wait_for_the_scan_of_their_tier(harness: Harness) -> None:
    done = counts(harness, "work")
    runner = harness.runner(poll_mode="tiers:0=10m,2=20m,9=40m", **NO_WAKES)
    assert runner._mode == Tiers((Tier(0, 600.0), Tier(2, 1200.0), Tier(9, 2400.0)))
    scope = runner.claimer.scope

    async def failed(attempts: int) -> int:
        task_id, task = await harness.submit("work"), harness.database.tables.task
        await harness.change(task.update().where(task.c.id == task_id).values(attempt=attempts, max_attempts=99))
        return task_id

    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        ids = [await failed(attempts) for attempts in (0, 1, 5)]
        for number, task_id in enumerate(ids):
            runner.scans._begin_soon(scope.begin)
            if number == 2:  # the third scan is one of the first tier
                await runner.scans._scan_task
                assert await harness.state(task_id) == "waiting"
                runner.scans._begin_soon(scope.begin)
            await harness.wait_for(task_id)
            assert done["work"] == number + 1


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("poll_mode", "fixed", "'fixed': it is not known; use fixed-rate, fixed-delay"),
        ("scans", "nothing=1s", "no handler matches it"),
        ("only", "nothing", "no handler matches it; the handlers are work"),
        ("without", "work", "it leaves no handler"),
        ("buckets", "5000", "use numbers and ranges from 0 to 999"),
        ("slice", "4/4", "use a number and the slices"),
    ],
)
async def test_a_runner_with_an_unknown_strategy_is_refused(harness: Harness, name: str, value: Any, why: str) -> None:
    counts(harness, "work")
    with pytest.raises(InvalidSettings, match=rf"\({name}\).*{why}"):
        harness.runner(**{name: value})
    assert await harness.count(harness.database.tables.runner) == 0


async def test_a_runner_takes_the_handlers_and_buckets_that_are_selected(harness: Harness) -> None:
    done = counts(harness, "mail.send", "mail.bulk", "report")
    for name in ("mail.send", "mail.bulk", "report"):
        for bucket in (1, 900):
            await harness.submit(name, bucket=bucket)
    async with harness.running(only="mail.*", without="mail.bulk", buckets="0-511") as runner:
        await until(lambda: done["mail.send"] == 1 and runner.claimer.idle and not len(runner.worker.in_flight))
        (row,) = await harness.rows(harness.database.tables.runner.select())
        assert (row.buckets, row.slice) == ("0-511", None)
        assert "mail.send" in str(row.handlers)
        assert "mail.bulk" not in str(row.handlers)
    assert done == {"mail.send": 1}


async def test_an_embedded_runner_takes_the_same_settings(harness: Harness) -> None:
    done = counts(harness, "mail.send", "report")
    settings = harness.runner().settings
    runner = Runner(harness.handlers.values(), settings=settings, only=["mail.*"], poll_mode="spread", buckets="5")
    await harness.submit("mail.send", bucket=5)
    await harness.submit("mail.send", bucket=6)
    async with runner:
        await until(lambda: done["mail.send"] == 1)
        (row,) = await harness.rows(harness.database.tables.runner.select())
        assert row.polling == "spread 50ms"
        await asyncio.sleep(0)
    assert done == {"mail.send": 1}
