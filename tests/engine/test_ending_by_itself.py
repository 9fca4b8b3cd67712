"""A runner that stops when no work is left."""

import asyncio
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from tests.engine.workshop import Workshop


async def test_it_waits_for_retries(workshop: Workshop) -> None:
    tries: list[int] = []

    @workshop.handler("flaky", retry="300ms")
    async def flaky() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError

    task = await workshop.submit("flaky")
    await workshop.work()
    assert len(tries) == 3
    assert await workshop.state(task) == "succeeded"


async def test_it_leaves_scheduled_tasks_and_logs_their_number(workshop: Workshop) -> None:
    @workshop.handler("work")
    async def work() -> None: ...

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    later = [await workshop.submit("work", run_at=tomorrow) for _ in range(3)]
    runner = await workshop.work()
    assert runner.scheduled_count == 3
    assert [await workshop.state(task) for task in later] == ["waiting"] * 3


async def test_it_waits_for_tasks_that_its_tasks_submit(workshop: Workshop) -> None:
    done: list[int] = []

    @workshop.handler("count")
    async def count(n: int) -> None:
        done.append(n)
        if n:
            await workshop.submit("count", {"n": n - 1})

    await workshop.submit("count", {"n": 5})
    await workshop.work()
    assert done == [5, 4, 3, 2, 1, 0]


async def test_it_waits_for_tasks_in_another_runners_hands(workshop: Workshop) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @workshop.handler("work")
    async def work() -> None:
        begun.set()
        await go_on.wait()

    task = await workshop.submit("work")
    async with workshop.running():
        await begun.wait()
        second = asyncio.ensure_future(workshop.work(poll_interval="20ms"))
        looks = await asyncio.wait([second], timeout=0.5)
        assert second in looks[1], "it must not leave while the other may still need it"
        go_on.set()
        await second
    assert await workshop.state(task) == "succeeded"


async def test_it_ends_immediately_without_tasks(workshop: Workshop) -> None:
    @workshop.handler("work")
    async def work() -> None: ...

    runner = await workshop.work()
    assert runner.scheduled_count == 0
    assert runner.metrics.verbs == {}


async def test_it_does_not_wait_for_handlers_that_it_does_not_know(workshop: Workshop) -> None:
    @workshop.handler("known")
    async def known() -> None: ...

    strange = await workshop.submit("unknown")
    await workshop.submit("known")
    await workshop.work()
    row = await workshop.row(strange)
    assert (row.state, row.attempt, row.fence) == ("waiting", 0, 0)


async def test_it_does_not_wait_for_other_queues(workshop: Workshop) -> None:
    @workshop.handler("work")
    async def work() -> None: ...

    elsewhere = await workshop.submit("work", queue="mail")
    here = await workshop.submit("work")
    await workshop.work(queues=("default",))
    assert await workshop.state(elsewhere) == "waiting"
    assert await workshop.state(here) == "succeeded"


async def test_an_invalid_retry_plan_in_a_row_does_not_stop_the_runner(workshop: Workshop) -> None:
    @workshop.handler("broken", retry="1ms", max_attempts=2)
    async def broken() -> None:
        raise ZeroDivisionError

    @workshop.handler("fine")
    async def fine() -> None: ...

    table = workshop.database.tables.task
    task = await workshop.submit("broken")
    await workshop.change(sa.update(table).where(table.c.id == task).values(retry="every now and then"))
    other = await workshop.submit("fine")
    await workshop.work()
    assert await workshop.state(task) == "dead"
    assert len(await workshop.attempts(task)) == 2
    assert await workshop.state(other) == "succeeded"


async def test_a_max_attempts_erased_during_the_run_does_not_stop_the_runner(workshop: Workshop) -> None:
    table = workshop.database.tables.task
    tries: list[int] = []

    @workshop.handler("broken", retry="1ms", max_attempts=2)
    async def broken() -> None:
        tries.append(1)
        if len(tries) == 1:
            await workshop.change(sa.update(table).values(max_attempts=None))
        raise ZeroDivisionError

    task = await workshop.submit("broken")
    await workshop.work()
    assert len(tries) == 2, "the next claim sets the limit anew"
    assert await workshop.state(task) == "dead"
