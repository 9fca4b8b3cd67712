"""Runner commands of operators."""

import asyncio
import threading

import pytest

from runner.operations.results import Actor
from runner.operations.runner_command import CommandPending, send_command
from runner.policy.runner_command import MOST_STACKS, RunnerCommand
from runner.queries.runners import RunnerRow, runners
from runner.queries.task.attempts import log_of
from tests.engine.harness import WAIT_SECONDS, Harness, at_work, until

ANA = Actor("ana", "desk")


async def row(harness: Harness) -> RunnerRow:
    (runner_row,) = await harness.database.read(runners)
    return runner_row


async def ask(harness: Harness, command: RunnerCommand) -> None:
    assert await harness.database.write(send_command, (await row(harness)).id, str(command), ANA)


async def reports(harness: Harness, command: str | None, capacity: int) -> bool:
    runner_row = await row(harness)
    return (runner_row.command, runner_row.capacity) == (command, capacity)


async def test_a_command_to_drain_stops_it(harness: Harness) -> None:
    runner = harness.runner()
    async with at_work(runner) as life:
        await until(lambda: runner.lease.id != 0)
        await ask(harness, RunnerCommand(drain=True))
        async with asyncio.timeout(WAIT_SECONDS):
            assert await life


async def test_more_slots_run_more_tasks_in_parallel(harness: Harness) -> None:
    go_on, running = asyncio.Event(), []

    @harness.handler("work")
    async def work() -> None:
        running.append(1)
        await go_on.wait()

    tasks = [await harness.submit("work") for _ in range(3)]
    async with harness.running(concurrency=1) as runner:
        await until(lambda: len(running) == 1)
        await ask(harness, RunnerCommand(concurrency=3))
        await until(lambda: len(running) == 3)
        assert runner.worker.in_flight.capacity == 5
        await until(lambda: reports(harness, None, 5))
        go_on.set()
        await harness.wait_for(*tasks)


async def test_more_threads_run_more_plain_functions_in_parallel(harness: Harness) -> None:
    together = threading.Barrier(3, timeout=WAIT_SECONDS)

    @harness.handler("work")
    def work() -> None:
        together.wait()

    tasks = [await harness.submit("work") for _ in range(3)]
    async with harness.running(threads=1) as runner:
        await until(lambda: runner.worker.in_flight.in_threads.in_use == 1)
        await ask(harness, RunnerCommand(threads=3))
        await harness.wait_for(*tasks)
    assert [await harness.state(task) for task in tasks] == ["succeeded"] * 3


async def test_fewer_slots_let_running_tasks_finish(harness: Harness) -> None:
    go_on, most, running = asyncio.Event(), 0, 0

    @harness.handler("work")
    async def work() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running) if go_on.is_set() else 0
        await go_on.wait()
        running -= 1

    tasks = [await harness.submit("work") for _ in range(2)]
    async with harness.running(concurrency=2) as runner:
        await until(lambda: running == 2)
        await ask(harness, RunnerCommand(concurrency=1))
        await until(lambda: runner.worker.in_flight.on_loop.size == 1)
        assert running == 2
        go_on.set()
        await harness.wait_for(*tasks)
        await harness.wait_for(*[await harness.submit("work") for _ in range(4)])
    assert most == 1


async def test_commands_in_quick_succession_all_take_effect(harness: Harness) -> None:
    begun, go_on = harness.held_handler("work")
    task = await harness.submit("work")
    runner = harness.runner(concurrency=2, heartbeat_interval="1h", lease_timeout="2h")
    async with at_work(runner) as life:
        await asyncio.wait_for(begun.wait(), WAIT_SECONDS)
        for command in (RunnerCommand(concurrency=9), RunnerCommand(stacks=(task,)), RunnerCommand(threads=7)):
            await ask(harness, command)
        await ask(harness, RunnerCommand(drain=True))
        assert (await row(harness)).command == f"concurrency=9 threads=7 stack={task} drain"
        await runner._heartbeat()
        in_flight = runner.worker.in_flight
        assert (in_flight.on_loop.size, in_flight.in_threads.size) == (9, 7)
        assert await reports(harness, "drain", 16)
        assert any("await go_on.wait()" in line.line for line in await harness.database.read(log_of, task))
        assert runner.stopping
        go_on.set()
        async with asyncio.timeout(WAIT_SECONDS):
            assert await life


async def test_too_many_pending_requests_for_stacks_are_refused(harness: Harness) -> None:
    runner = harness.runner(heartbeat_interval="1h", lease_timeout="2h")
    async with at_work(runner):
        await until(lambda: runner.lease.id != 0)
        for id in range(MOST_STACKS):
            await ask(harness, RunnerCommand(stacks=(id,)))
        with pytest.raises(CommandPending, match=f"requests for {MOST_STACKS} stacks"):
            await ask(harness, RunnerCommand(stacks=(MOST_STACKS,)))
        await ask(harness, RunnerCommand(stacks=(0,)))


async def test_an_unknown_command_is_ignored(harness: Harness) -> None:
    table = harness.database.tables.runner
    async with harness.running() as runner:
        await until(lambda: runner.lease.id != 0)
        await harness.change(table.update().values(command="dance"))
        renewed = runner.lease._renewed
        await until(lambda: runner.lease._renewed > renewed)
        await ask(harness, RunnerCommand(concurrency=9))
        await until(lambda: runner.worker.in_flight.on_loop.size == 9)
