"""How a runner stops."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from runner.db.schema import MINUTE_COUNTS
from runner.model.task import State
from tests.engine.locks import Lock
from tests.engine.test_terminating import claimed_without_a_slot, terminate
from tests.engine.workshop import PATIENCE, Workshop, at_work, heard, until


@pytest.fixture
def lock(migrated_url: str) -> Iterator[Lock]:
    lock = Lock(migrated_url)
    yield lock
    lock.release()


async def test_draining_waits_for_running_tasks(workshop: Workshop) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @workshop.handler("work")
    async def work() -> None:
        begun.set()
        await go_on.wait()

    task = await workshop.submit("work")
    runner = workshop.runner()
    async with at_work(runner) as life:
        await heard(begun)
        runner.stop()
        assert not (await asyncio.wait([life], timeout=0.2))[0]
        go_on.set()
        assert await life
    assert await workshop.state(task) == "succeeded"


async def test_nothing_is_claimed_any_more(workshop: Workshop) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @workshop.handler("work")
    async def work() -> None:
        begun.set()
        await go_on.wait()

    await workshop.submit("work")
    runner = workshop.runner()
    async with at_work(runner) as life:
        await heard(begun)
        runner.stop()
        await until(lambda: not runner.claimer.open)
        late = await workshop.submit("work")
        await runner.claimer.scan()
        go_on.set()
        await life
    row = await workshop.row(late)
    assert (row.state, row.fence) == ("waiting", 0)


async def test_unstarted_tasks_are_released_without_an_attempt(workshop: Workshop) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @workshop.handler("first")
    async def first() -> None:
        begun.set()
        await go_on.wait()

    @workshop.handler("second")
    async def second() -> None: ...

    await workshop.submit("first")
    runner = workshop.runner(concurrency=1)
    async with at_work(runner):
        await heard(begun)
        unbegun = await claimed_without_a_slot(workshop, runner, "second")
        await until(lambda: unbegun in runner.worker.in_flight.tasks)
        runner.stop()
        await until(lambda: not runner.claimer.open)
        go_on.set()
    row = await workshop.row(unbegun)
    assert (row.state, row.attempt, row.releases, row.runner_id) == ("waiting", 0, 1, None)


async def test_tasks_of_a_claim_in_progress_are_released(workshop: Workshop, lock: Lock) -> None:
    @workshop.handler("work")
    async def work() -> None: ...

    task = await workshop.submit("work")
    runner = workshop.runner(poll_interval="1h", heartbeat_interval="2s")
    survey = runner.claimer._survey
    surveyed = asyncio.Event()

    async def survey_and_lock() -> None:
        await survey()
        if not surveyed.is_set():
            await lock.take()
            surveyed.set()

    runner.claimer._survey = survey_and_lock  # type: ignore[method-assign]
    async with at_work(runner) as life:
        await heard(surveyed)
        await asyncio.sleep(0.1)  # the claim is on its way; were it not, it would not claim and the test would hold
        runner.stop()
        await until(lambda: not runner.claimer.open)
        lock.release()
        assert await life
    row = await workshop.row(task)
    assert (row.state, row.attempt, row.runner_id) == ("waiting", 0, None)


async def test_an_async_body_that_does_not_end_in_time_is_interrupted(workshop: Workshop) -> None:
    begun = asyncio.Event()

    @workshop.handler("work", retry="1h")
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = await workshop.submit("work")
    async with workshop.running(drain_timeout="50ms"):
        await heard(begun)
    row = await workshop.row(task)
    assert (row.state, row.attempt) == ("waiting", 1)
    assert [tried.error_type for tried in await workshop.attempts(task)] == ["Interrupted"]
    assert row.run_at < row.submitted_at.replace(year=row.submitted_at.year + 1)


async def test_a_thread_that_does_not_end_in_time_is_given_up(workshop: Workshop) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @workshop.handler("work")
    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    task = await workshop.submit("work")
    async with workshop.running(drain_timeout="50ms") as runner:
        assert await asyncio.to_thread(begun.wait, PATIENCE)
    assert runner.worker.executor.stuck == 1
    assert [tried.error_type for tried in await workshop.attempts(task)] == ["Interrupted"]
    go_on.set()
    await until(lambda: runner.worker.executor.stuck == 0)


async def test_a_stopped_runner_is_struck_from_the_list(workshop: Workshop) -> None:
    table = workshop.database.tables.runner
    async with workshop.running():
        await until(lambda: _one(workshop, table))
    assert await workshop.count(table) == 0


async def _one(workshop: Workshop, table: sa.Table) -> bool:
    return await workshop.count(table) == 1


async def test_the_minutes_add_up_to_the_history(workshop: Workshop) -> None:
    begun = asyncio.Event()

    @workshop.handler("fine")
    async def fine() -> None: ...

    @workshop.handler("flaky")
    async def flaky(n: int) -> None:
        flaws.append(n)
        if flaws.count(n) == 1:
            raise ConnectionError

    @workshop.handler("broken", max_attempts=2)
    async def broken() -> None:
        raise ZeroDivisionError

    @workshop.handler("endless")
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    flaws: list[int] = []
    tasks = [await workshop.submit("fine") for _ in range(20)]
    tasks += [await workshop.submit("flaky", {"n": n}) for n in range(5)]
    tasks += [await workshop.submit("broken") for _ in range(3)]
    terminated = await workshop.submit("endless")
    async with workshop.running():
        await heard(begun)
        await terminate(workshop, terminated)
        await workshop.ended(*tasks, terminated)
    counted = await minutes(workshop)
    history = workshop.database.tables.history
    for name, state in (("succeeded", State.SUCCEEDED), ("died", State.DEAD), ("cancelled", State.CANCELLED)):
        assert counted[name] == await workshop.count(history, history.c.state == state.value), name
    assert (counted["first_try"], counted["second_try"], counted["retried"]) == (20, 5, 8)
    assert counted["submitted"] == await workshop.count(history) == 29


async def minutes(workshop: Workshop) -> dict[str, int]:
    table = workshop.database.tables.minute
    (sums,) = await workshop.rows(sa.select(*(sa.func.sum(table.c[name]).label(name) for name in MINUTE_COUNTS)))
    return {name: int(getattr(sums, name)) for name in MINUTE_COUNTS}
