"""Which tasks start: none without a lease, and the prefetched ones are marked when they run for long."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from runner.engine.lease import lease as leases
from runner.engine.runner import Engine
from runner.engine.settling.starts import QUICK
from runner.engine.worker import BURST, EAGER
from runner.policy.polling import LookAhead
from runner.store.registration import leave
from tests.engine.harness import Harness, OneAhead, TwoAhead, until, wait_for_event

RARE: dict[str, Any] = {
    "poll_interval": "1h",
    "notify": False,
    "sqlite_poll_interval": "1h",
    "heartbeat_interval": "1h",
    "lease_timeout": "2h",
    "concurrency": 1,
}
"""Settings of a runner that scans and renews its lease only when a test asks for it."""


class Frozen:
    """A process that was stopped for longer than its lease, as far as the clock of the lease shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        real = leases.elapsed
        monkeypatch.setattr(leases, "elapsed", lambda: real() + self.seconds)

    def thaw(self) -> None:
        self.seconds += 10_000.0


class Answers:
    """The lease of a runner, with answers of a test."""

    def __init__(self, answer: Callable[[], bool]) -> None:
        self._answer = answer

    @property
    def is_valid(self) -> bool:
        return self._answer()


class Work:
    """A handler whose first run waits, with a task that waits behind it."""

    def __init__(self, harness: Harness) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.starts: list[str] = []

        @harness.handler("first", max_attempts=1)
        async def first() -> None:
            self.starts.append("first")
            self.begun.set()
            await self.go_on.wait()

        @harness.handler("second", max_attempts=1)
        async def second() -> None:
            self.starts.append("second")

    async def waits_behind(self, harness: Harness, runner: Engine) -> tuple[int, int]:
        """Submit both, and return their ids when one runs and the other waits for its slot."""
        first = await harness.submit("first")
        await until(lambda: runner.claimer.open)
        await runner.claimer.scan()
        await wait_for_event(self.begun)
        runner.worker.in_flight.on_loop.look_ahead = OneAhead()
        second = await harness.submit("second")
        await runner.claimer.scan()
        # A first step that runs at once sets `begun` during a scan, which then goes on after this call.
        await until(lambda: second in runner.worker.in_flight.tasks)
        return first, second


async def test_a_thawed_runner_starts_nothing_until_its_lease_is_renewed(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, frozen = Work(harness), Frozen(monkeypatch)
    async with harness.running(**RARE) as runner:
        first, second = await work.waits_behind(harness, runner)
        frozen.thaw()
        work.go_on.set()
        await harness.wait_for(first)
        assert work.starts == ["first"]
        assert runner.worker.in_flight.on_loop.in_use == 0
        await runner._heartbeat()
        await harness.wait_for(second)
    row = await harness.row(second)
    assert (row.state, row.attempt, row.releases) == ("succeeded", 1, 0)
    assert work.starts == ["first", "second"]


async def test_a_thawed_runner_drops_its_waiting_tasks_after_it_was_declared_lost(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, frozen = Work(harness), Frozen(monkeypatch)
    async with harness.running(**RARE) as runner:
        _, second = await work.waits_behind(harness, runner)
        frozen.thaw()
        await harness.database.write(leave, runner.lease.id)
        work.go_on.set()
        await until(lambda: runner.worker.in_flight.on_loop.in_use == 0)
        assert work.starts == ["first"]
        await runner._heartbeat()
        await until(lambda: second_scan(harness, runner, second))
    assert work.starts.count("second") == 1
    row = await harness.row(second)
    assert (row.state, row.attempt, row.fence) == ("succeeded", 1, 2), "it starts under a new claim"


async def second_scan(harness: Harness, runner: Engine, task: int) -> bool:
    await runner.claimer.scan()
    return await harness.state(task) == "succeeded"


async def test_a_task_whose_runner_lost_its_lease_before_the_first_step_waits_again(harness: Harness) -> None:
    ran: list[int] = []

    @harness.handler("work")
    async def work() -> None:
        ran.append(1)

    async with harness.running(**RARE) as runner:
        await until(lambda: runner.claimer.idle)
        answers = iter([] if EAGER else [True])  # an eager first step follows immediately
        lease, runner.worker._lease = runner.worker._lease, Answers(lambda: next(answers, False))  # type: ignore[assignment]
        task = await harness.submit("work")
        await runner.claimer.scan()
        await until(lambda: len(runner.worker.in_flight.on_loop.waiting) == 1)
        await asyncio.sleep(0)
        runner.worker.settle_abandoned()
        assert (ran, runner.worker.in_flight.on_loop.in_use) == ([], 0)
        assert len(runner.worker.buffer) == 0
        runner.worker._lease = lease
        runner.worker.start_waiting()
        await harness.wait_for(task)
    assert ran == [1]


async def test_no_task_waits_beside_a_free_slot_after_refused_starts(harness: Harness) -> None:
    ran, answers = Counter[int](), random.Random(1)

    @harness.handler("quick")
    async def quick(number: int) -> None:
        ran[number] += 1

    @harness.handler("suspended")
    async def suspended(number: int) -> None:
        await asyncio.sleep(0)
        ran[number] += 1

    @harness.handler("threaded")
    def threaded(number: int) -> None:
        ran[number] += 1

    names = ("quick", "suspended", "threaded")
    tasks = [await harness.submit(names[number % 3], {"number": number}) for number in range(60)]
    async with harness.running(concurrency=2, threads=2, prefetch=60, heartbeat_interval="50ms") as runner:
        lease = runner.worker._lease
        runner.worker._lease = Answers(lambda: lease.is_valid and answers.random() > 0.3)  # type: ignore[assignment]
        for task in tasks:
            await harness.wait_for(task)
        assert [(slots.in_use, len(slots.waiting)) for slots in runner.worker.in_flight.pools] == [(0, 0), (0, 0)]
    assert ran == Counter(range(60))


class ManyAhead(LookAhead):
    def tasks(self, now: float) -> int:
        return 1_000


async def test_other_work_has_its_turn_between_bursts_of_quick_tasks(harness: Harness) -> None:
    turn, ran = 0, Counter[int]()

    @harness.handler("quick")
    async def quick() -> None:
        ran[turn] += 1

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with harness.running(**RARE) as runner:
        await until(lambda: runner.claimer.idle)
        runner.worker.in_flight.on_loop.look_ahead = ManyAhead()
        tasks = [await harness.submit("quick") for _ in range(3 * BURST)]
        counting = asyncio.ensure_future(count_turns())
        await runner.claimer.scan()
        await until(lambda: ran.total() == len(tasks))
        counting.cancel()
        await harness.wait_for(*tasks)
    assert max(ran.values()) <= BURST


async def test_a_prefetched_task_that_runs_for_long_is_marked_as_started(harness: Harness) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    work = Work(harness)

    @harness.handler("third")
    async def third() -> None:
        begun.set()
        await go_on.wait()

    async with harness.running(**RARE) as runner:
        first, second = await work.waits_behind(harness, runner)
        assert (await harness.row(first)).started_at is not None, "it had a slot when it was claimed"
        assert (await harness.row(second)).started_at is None
        work.go_on.set()
        await harness.wait_for(first, second)
        await until(lambda: runner.worker._starts.timer is None)
        runner.worker.in_flight.on_loop.look_ahead = TwoAhead()
        task = await harness.submit("third")
        await runner.claimer.scan()
        await wait_for_event(begun)
        assert (await harness.row(task)).attempt == 1
        await until(lambda: marked(harness, task))
        row = await harness.row(task)
        assert row.started_at >= row.claimed_at
        go_on.set()
        await harness.wait_for(task)
    assert QUICK < 1


async def marked(harness: Harness, task: int) -> bool:
    return (await harness.row(task)).started_at is not None
