"""What an operator asks of a runner, and the runner does."""

import asyncio
import threading

from runner.policy.wish import Wish
from runner.store.intervene import By, wish
from runner.store.observe import RunnerRow, runners
from tests.engine.workshop import PATIENCE, Workshop, at_work, until

ANA = By("ana", "desk")


async def row(workshop: Workshop) -> RunnerRow:
    (found,) = await workshop.database.read(runners)
    return found


async def ask(workshop: Workshop, wanted: Wish) -> None:
    assert await workshop.database.write(wish, (await row(workshop)).id, str(wanted), ANA)


async def said(workshop: Workshop, wish: str | None, capacity: int) -> bool:
    found = await row(workshop)
    return (found.wish, found.capacity) == (wish, capacity)


async def test_a_wish_to_drain_stops_it(workshop: Workshop) -> None:
    runner = workshop.runner()
    async with at_work(runner) as life:
        await until(lambda: runner.lease.id != 0)
        await ask(workshop, Wish(drain=True))
        async with asyncio.timeout(PATIENCE):
            assert await life


async def test_more_slots_let_more_tasks_run_at_once(workshop: Workshop) -> None:
    go_on, running = asyncio.Event(), []

    @workshop.handler("work")
    async def work() -> None:
        running.append(1)
        await go_on.wait()

    tasks = [await workshop.submit("work") for _ in range(3)]
    async with workshop.running(slots=1) as runner:
        await until(lambda: len(running) == 1)
        await ask(workshop, Wish(slots=3))
        await until(lambda: len(running) == 3)
        assert runner.working.in_hand.capacity == 5
        await until(lambda: said(workshop, None, 5))
        go_on.set()
        await workshop.ended(*tasks)


async def test_more_threads_let_more_plain_functions_run_at_once(workshop: Workshop) -> None:
    together = threading.Barrier(3, timeout=PATIENCE)

    @workshop.handler("work")
    def work() -> None:
        together.wait()

    tasks = [await workshop.submit("work") for _ in range(3)]
    async with workshop.running(threads=1) as runner:
        await until(lambda: runner.working.in_hand.in_threads.taken == 1)
        await ask(workshop, Wish(threads=3))
        await workshop.ended(*tasks)
    assert [await workshop.state(task) for task in tasks] == ["succeeded"] * 3


async def test_fewer_slots_let_what_runs_end_in_peace(workshop: Workshop) -> None:
    go_on, most, running = asyncio.Event(), 0, 0

    @workshop.handler("work")
    async def work() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running) if go_on.is_set() else 0
        await go_on.wait()
        running -= 1

    tasks = [await workshop.submit("work") for _ in range(2)]
    async with workshop.running(slots=2) as runner:
        await until(lambda: running == 2)
        await ask(workshop, Wish(slots=1))
        await until(lambda: runner.working.in_hand.on_loop.size == 1)
        assert running == 2
        go_on.set()
        await workshop.ended(*tasks)
        await workshop.ended(*[await workshop.submit("work") for _ in range(4)])
    assert most == 1


async def test_a_wish_that_nobody_understands_is_left_alone(workshop: Workshop) -> None:
    table = workshop.database.tables.runner
    async with workshop.running() as runner:
        await until(lambda: runner.lease.id != 0)
        await workshop.change(table.update().values(wish="dance"))
        renewed = runner.lease._renewed
        await until(lambda: runner.lease._renewed > renewed)
        await ask(workshop, Wish(slots=9))
        await until(lambda: runner.working.in_hand.on_loop.size == 9)
