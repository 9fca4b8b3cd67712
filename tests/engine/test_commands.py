"""Runner commands of operators."""

import asyncio
import threading

from runner.operations.results import Actor
from runner.operations.runner_command import send_command
from runner.policy.runner_command import RunnerCommand
from runner.queries.runners import RunnerRow, runners
from tests.engine.workshop import PATIENCE, Workshop, at_work, until

ANA = Actor("ana", "desk")


async def row(workshop: Workshop) -> RunnerRow:
    (found,) = await workshop.database.read(runners)
    return found


async def ask(workshop: Workshop, wanted: RunnerCommand) -> None:
    assert await workshop.database.write(send_command, (await row(workshop)).id, str(wanted), ANA)


async def said(workshop: Workshop, command: str | None, capacity: int) -> bool:
    found = await row(workshop)
    return (found.command, found.capacity) == (command, capacity)


async def test_a_command_to_drain_stops_it(workshop: Workshop) -> None:
    runner = workshop.runner()
    async with at_work(runner) as life:
        await until(lambda: runner.lease.id != 0)
        await ask(workshop, RunnerCommand(drain=True))
        async with asyncio.timeout(PATIENCE):
            assert await life


async def test_more_slots_run_more_tasks_in_parallel(workshop: Workshop) -> None:
    go_on, running = asyncio.Event(), []

    @workshop.handler("work")
    async def work() -> None:
        running.append(1)
        await go_on.wait()

    tasks = [await workshop.submit("work") for _ in range(3)]
    async with workshop.running(concurrency=1) as runner:
        await until(lambda: len(running) == 1)
        await ask(workshop, RunnerCommand(concurrency=3))
        await until(lambda: len(running) == 3)
        assert runner.worker.in_flight.capacity == 5
        await until(lambda: said(workshop, None, 5))
        go_on.set()
        await workshop.ended(*tasks)


async def test_more_threads_run_more_plain_functions_in_parallel(workshop: Workshop) -> None:
    together = threading.Barrier(3, timeout=PATIENCE)

    @workshop.handler("work")
    def work() -> None:
        together.wait()

    tasks = [await workshop.submit("work") for _ in range(3)]
    async with workshop.running(threads=1) as runner:
        await until(lambda: runner.worker.in_flight.in_threads.in_use == 1)
        await ask(workshop, RunnerCommand(threads=3))
        await workshop.ended(*tasks)
    assert [await workshop.state(task) for task in tasks] == ["succeeded"] * 3


async def test_fewer_slots_let_running_tasks_finish(workshop: Workshop) -> None:
    go_on, most, running = asyncio.Event(), 0, 0

    @workshop.handler("work")
    async def work() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running) if go_on.is_set() else 0
        await go_on.wait()
        running -= 1

    tasks = [await workshop.submit("work") for _ in range(2)]
    async with workshop.running(concurrency=2) as runner:
        await until(lambda: running == 2)
        await ask(workshop, RunnerCommand(concurrency=1))
        await until(lambda: runner.worker.in_flight.on_loop.size == 1)
        assert running == 2
        go_on.set()
        await workshop.ended(*tasks)
        await workshop.ended(*[await workshop.submit("work") for _ in range(4)])
    assert most == 1


async def test_an_unknown_command_is_ignored(workshop: Workshop) -> None:
    table = workshop.database.tables.runner
    async with workshop.running() as runner:
        await until(lambda: runner.lease.id != 0)
        await workshop.change(table.update().values(command="dance"))
        renewed = runner.lease._renewed
        await until(lambda: runner.lease._renewed > renewed)
        await ask(workshop, RunnerCommand(concurrency=9))
        await until(lambda: runner.worker.in_flight.on_loop.size == 9)
