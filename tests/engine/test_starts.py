"""Which tasks start: none without a lease, and the prefetched ones are marked when they run for long."""

import asyncio
from typing import Any

import pytest

from runner.engine import heartbeat as leases
from runner.engine.runner import Runner
from runner.engine.starts import QUICK
from runner.policy.polling import LookAhead
from runner.store.heartbeat import leave
from tests.engine.workshop import Workshop, heard, until

RARE: dict[str, Any] = {
    "poll_interval": "1h",
    "notify": False,
    "sqlite_poll_interval": "1h",
    "heartbeat_interval": "1h",
    "lease_timeout": "2h",
    "concurrency": 1,
}
"""Settings of a runner that scans and beats only when a test asks for it."""


class OneAhead(LookAhead):
    def tasks(self, now: float) -> int:
        return 1


class Frozen:
    """A process that was stopped for longer than its lease, as far as the clock of the lease shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        real = leases.elapsed
        monkeypatch.setattr(leases, "elapsed", lambda: real() + self.seconds)

    def thaw(self) -> None:
        self.seconds += 10_000.0


class Work:
    """A handler whose first run waits, with a task that waits behind it."""

    def __init__(self, workshop: Workshop) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.starts: list[str] = []

        @workshop.handler("first", max_attempts=1)
        async def first() -> None:
            self.starts.append("first")
            self.begun.set()
            await self.go_on.wait()

        @workshop.handler("second", max_attempts=1)
        async def second() -> None:
            self.starts.append("second")

    async def waits_behind(self, workshop: Workshop, runner: Runner) -> tuple[int, int]:
        """Submit both, and return their ids when one runs and the other waits for its slot."""
        first = await workshop.submit("first")
        await until(lambda: runner.claimer.open)
        await runner.claimer.scan()
        await heard(self.begun)
        runner.worker.in_flight.on_loop.look_ahead = OneAhead()
        second = await workshop.submit("second")
        await runner.claimer.scan()
        assert second in runner.worker.in_flight.tasks
        return first, second


async def test_a_thawed_runner_starts_nothing_until_its_lease_is_renewed(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, frozen = Work(workshop), Frozen(monkeypatch)
    async with workshop.running(**RARE) as runner:
        first, second = await work.waits_behind(workshop, runner)
        frozen.thaw()
        work.go_on.set()
        await workshop.ended(first)
        assert work.starts == ["first"]
        assert runner.worker.in_flight.on_loop.in_use == 0
        await runner._heartbeat()
        await workshop.ended(second)
    row = await workshop.row(second)
    assert (row.state, row.attempt, row.releases) == ("succeeded", 1, 0)
    assert work.starts == ["first", "second"]


async def test_a_thawed_runner_drops_its_waiting_tasks_after_it_was_declared_lost(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, frozen = Work(workshop), Frozen(monkeypatch)
    async with workshop.running(**RARE) as runner:
        _, second = await work.waits_behind(workshop, runner)
        frozen.thaw()
        await workshop.database.write(leave, runner.lease.id)
        work.go_on.set()
        await until(lambda: runner.worker.in_flight.on_loop.in_use == 0)
        assert work.starts == ["first"]
        await runner._heartbeat()
        await until(lambda: second_scan(workshop, runner, second))
    assert work.starts.count("second") == 1
    row = await workshop.row(second)
    assert (row.state, row.attempt, row.fence) == ("succeeded", 1, 2), "it starts under a new claim"


async def second_scan(workshop: Workshop, runner: Runner, task: int) -> bool:
    await runner.claimer.scan()
    return await workshop.state(task) == "succeeded"


async def test_a_task_that_lost_the_lease_between_its_slot_and_its_first_step_waits_again(workshop: Workshop) -> None:
    ran: list[int] = []

    @workshop.handler("work")
    async def work() -> None:
        ran.append(1)

    async with workshop.running(**RARE) as runner:
        await until(lambda: runner.claimer.open and runner.claimer.idle)
        answers = iter([True, False])
        runner.worker._may_start = lambda: next(answers, False)
        task = await workshop.submit("work")
        await runner.claimer.scan()
        await until(lambda: len(runner.worker.in_flight.on_loop.waiting) == 1)
        await asyncio.sleep(0)
        runner.worker.settle_abandoned()
        assert (ran, runner.worker.in_flight.on_loop.in_use) == ([], 0)
        assert len(runner.worker.buffer) == 0
        runner.worker._may_start = lambda: True
        runner.worker.start_waiting()
        await workshop.ended(task)
    assert ran == [1]


async def test_a_prefetched_task_that_runs_for_long_is_marked_as_started(workshop: Workshop) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    work = Work(workshop)

    @workshop.handler("third")
    async def third() -> None:
        begun.set()
        await go_on.wait()

    async with workshop.running(**RARE) as runner:
        first, second = await work.waits_behind(workshop, runner)
        assert (await workshop.row(first)).started_at is not None, "it had a slot when it was claimed"
        assert (await workshop.row(second)).started_at is None
        work.go_on.set()
        await workshop.ended(first, second)
        await until(lambda: runner.worker._starts._timer is None)
        runner.worker.in_flight.on_loop.look_ahead = TwoAhead()
        task = await workshop.submit("third")
        await runner.claimer.scan()
        await heard(begun)
        assert (await workshop.row(task)).attempt == 1
        await until(lambda: marked(workshop, task))
        row = await workshop.row(task)
        assert row.started_at >= row.claimed_at
        go_on.set()
        await workshop.ended(task)
    assert QUICK < 1


class TwoAhead(LookAhead):
    def tasks(self, now: float) -> int:
        return 2


async def marked(workshop: Workshop, task: int) -> bool:
    return (await workshop.row(task)).started_at is not None
