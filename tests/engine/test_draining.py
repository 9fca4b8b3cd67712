"""How a runner stops."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa

from runner import Context
from runner.db.schema import MINUTE_COUNTS
from runner.db.transaction import clock
from runner.model.task import State
from runner.queries.failures import failures
from runner.store.claim.plain import Claimant
from tests.engine.harness import WAIT_SECONDS, Harness, at_work, until, wait_for_event
from tests.engine.locks import Lock
from tests.engine.test_terminating import claimed_without_a_slot, terminate


@pytest.fixture
def lock(migrated_url: str) -> Iterator[Lock]:
    lock = Lock(migrated_url)
    yield lock
    lock.release()


async def test_draining_waits_for_running_tasks(harness: Harness) -> None:
    begun, go_on = harness.held_handler("work")
    task = await harness.submit("work")
    runner = harness.runner()
    async with at_work(runner) as life:
        await wait_for_event(begun)
        runner.stop()
        assert not (await asyncio.wait([life], timeout=0.2))[0]
        go_on.set()
        assert await life
    assert await harness.state(task) == "succeeded"


async def test_nothing_is_claimed_any_more(harness: Harness) -> None:
    begun, go_on = harness.held_handler("work")
    await harness.submit("work")
    runner = harness.runner()
    async with at_work(runner) as life:
        await wait_for_event(begun)
        runner.stop()
        await until(lambda: not runner.claimer.open)
        late = await harness.submit("work")
        await runner.claimer.scan()
        go_on.set()
        await life
    row = await harness.row(late)
    assert (row.state, row.fence) == ("waiting", 0)


async def test_unstarted_tasks_are_released_without_an_attempt(harness: Harness) -> None:
    begun, go_on = harness.held_handler("first")

    @harness.handler("second")
    async def second() -> None: ...

    await harness.submit("first")
    runner = harness.runner(concurrency=1)
    async with at_work(runner):
        await wait_for_event(begun)
        unbegun = await claimed_without_a_slot(harness, runner, "second")
        await until(lambda: unbegun in runner.worker.in_flight.tasks)
        runner.stop()
        await until(lambda: not runner.claimer.open)
        go_on.set()
    row = await harness.row(unbegun)
    assert (row.state, row.attempt, row.releases, row.runner_id) == ("waiting", 0, 1, None)


async def test_tasks_of_a_claim_in_progress_are_released(harness: Harness, lock: Lock) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    task = await harness.submit("work")
    runner = harness.runner(poll_interval="1h", heartbeat_interval="2s")
    survey = runner.claimer.survey.run
    surveyed = asyncio.Event()

    async def survey_and_lock(claimant: Claimant) -> None:
        await survey(claimant)
        if not surveyed.is_set():
            await lock.take()
            surveyed.set()

    runner.claimer.survey.run = survey_and_lock  # type: ignore[method-assign]
    async with at_work(runner) as life:
        await wait_for_event(surveyed)
        await asyncio.sleep(0.1)  # the claim is on its way; were it not, it would not claim and the test would hold
        runner.stop()
        await until(lambda: not runner.claimer.open)
        lock.release()
        assert await life
    row = await harness.row(task)
    assert (row.state, row.attempt, row.runner_id) == ("waiting", 0, None)


async def test_an_async_body_that_does_not_end_in_time_is_interrupted(harness: Harness) -> None:
    begun, _ = harness.held_handler("work", retry="1h")
    task = await harness.submit("work")
    async with harness.running(drain_timeout="50ms"):
        await wait_for_event(begun)
    row = await harness.row(task)
    assert (row.state, row.attempt, row.interruptions) == ("waiting", 0, 1)
    assert [(tried.verb, tried.error_type) for tried in await harness.attempts(task)] == [("interrupt", "Interrupted")]
    async with harness.database.reading() as tx:
        assert (await clock(tx)) - row.run_at < timedelta(minutes=1), "it waits for its plan"


async def test_a_task_that_outlives_every_runner_is_dead_after_max_interruptions(harness: Harness) -> None:
    started: asyncio.Queue[int] = asyncio.Queue()

    @harness.handler("endless", max_attempts=1)
    async def endless(ctx: Context) -> None:
        started.put_nowait(ctx.attempt)
        await asyncio.Event().wait()

    task = await harness.submit("endless")
    for _ in range(3):
        async with harness.running(drain_timeout="10ms", max_interruptions=2):
            assert await asyncio.wait_for(started.get(), WAIT_SECONDS) == 1
    row = await harness.row(task)
    assert (row.state, row.interruptions) == ("dead", 2)
    assert row.error.startswith(
        "Interrupted: stops of runners and outages interrupted the task 3 times before it ended"
    )
    assert [tried.verb for tried in await harness.attempts(task)] == ["interrupt", "interrupt", "die"]
    async with harness.database.reading() as tx:
        assert [(group.dead, group.count.number) for group in await failures(tx)] == [(1, 1)]


async def test_a_thread_that_does_not_end_in_time_is_given_up(harness: Harness) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @harness.handler("work")
    def work() -> None:
        begun.set()
        go_on.wait(WAIT_SECONDS)

    task = await harness.submit("work")
    async with harness.running(drain_timeout="50ms") as runner:
        assert await asyncio.to_thread(begun.wait, WAIT_SECONDS)
    assert runner.worker.executor.stuck == 1
    assert [tried.error_type for tried in await harness.attempts(task)] == ["Interrupted"]
    go_on.set()
    await until(lambda: runner.worker.executor.stuck == 0)


async def test_a_stopped_runner_is_struck_from_the_list(harness: Harness) -> None:
    table = harness.database.tables.runner
    async with harness.running():
        await until(lambda: _one(harness, table))
    assert await harness.count(table) == 0


async def _one(harness: Harness, table: sa.Table) -> bool:
    return await harness.count(table) == 1


async def test_the_minutes_add_up_to_the_history(harness: Harness) -> None:
    begun = asyncio.Event()

    @harness.handler("fine")
    async def fine() -> None: ...

    @harness.handler("flaky")
    async def flaky(n: int) -> None:
        flaws.append(n)
        if flaws.count(n) == 1:
            raise ConnectionError

    @harness.handler("broken", max_attempts=2)
    async def broken() -> None:
        raise ZeroDivisionError

    @harness.handler("endless")
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    flaws: list[int] = []
    tasks = [await harness.submit("fine") for _ in range(20)]
    tasks += [await harness.submit("flaky", {"n": n}) for n in range(5)]
    tasks += [await harness.submit("broken") for _ in range(3)]
    terminated = await harness.submit("endless")
    async with harness.running():
        await wait_for_event(begun)
        await terminate(harness, terminated)
        await harness.wait_for(*tasks, terminated)
    counted = await minutes(harness)
    history = harness.database.tables.history
    for name, state in (("succeeded", State.SUCCEEDED), ("died", State.DEAD), ("cancelled", State.CANCELLED)):
        assert counted[name] == await harness.count(history, history.c.state == state.value), name
    assert (counted["first_try"], counted["second_try"], counted["retried"]) == (20, 5, 8)
    assert counted["submitted"] == await harness.count(history) == 29


async def minutes(harness: Harness) -> dict[str, int]:
    table = harness.database.tables.minute
    (sums,) = await harness.rows(sa.select(*(sa.func.sum(table.c[name]).label(name) for name in MINUTE_COUNTS)))
    return {name: int(getattr(sums, name)) for name in MINUTE_COUNTS}
