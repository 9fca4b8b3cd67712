"""Runners keep limits together, and use the room of a limit as soon as there is some."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from tests.engine.harness import Harness, at_work, until

ANA = Actor("ana", "desk-1", "relay is back")


async def limit(harness: Harness, kind: str, name: str, **values: str) -> None:
    words = {option.replace("_", "-"): value for option, value in values.items()}
    await harness.database.write(set_limits, PauseTarget(PauseKind(kind), name), LimitEdit(words, new=True), ANA)


class Meter:
    """Counts the tasks that run at the same time, by name."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: list[str] = []

    @contextmanager
    def counting(self, name: str) -> Iterator[None]:
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        yield
        self.running[name] -= 1
        self.done.append(name)


async def test_runners_keep_a_limit_together_and_use_all_of_it(harness: Harness) -> None:
    meter = Meter()

    @harness.handler("work")
    async def work() -> None:
        with meter.counting("work"):
            await asyncio.sleep(0.01)

    ids = [await harness.submit("work", queue="mail") for _ in range(40)]
    await limit(harness, "queue", "mail", concurrency="3")
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(at_work(harness.runner(poll_interval="200ms")))
        await harness.ended(*ids)
    assert meter.most["work"] == 3


async def test_a_full_queue_does_not_hold_up_the_others(harness: Harness) -> None:
    meter, gate = Meter(), asyncio.Event()

    @harness.handler("work")
    async def work(name: str) -> None:
        with meter.counting(name):
            await (gate.wait() if name == "slow" else asyncio.sleep(0))

    for _ in range(10):
        await harness.submit("work", {"name": "slow"}, queue="slow", priority=9)
    quick = [await harness.submit("work", {"name": "quick"}, queue="quick") for _ in range(10)]
    await limit(harness, "queue", "slow", concurrency="2")
    async with harness.running():
        await harness.ended(*quick)
        assert meter.running["slow"] == meter.most["slow"] == 2
        gate.set()
        await until(lambda: meter.done.count("slow") == 10)


async def test_each_tenant_has_a_limit_of_its_own(harness: Harness) -> None:
    meter, gate = Meter(), asyncio.Event()

    @harness.handler("work")
    async def work(name: str) -> None:
        with meter.counting(name):
            await (gate.wait() if name == "acme" else asyncio.sleep(0))

    for _ in range(10):
        await harness.submit("work", {"name": "acme"}, tenant="acme")
    quick = [await harness.submit("work", {"name": "bolt"}, tenant="bolt") for _ in range(10)]
    await limit(harness, "handler", "work", per_tenant="2")
    async with harness.running():
        await harness.ended(*quick)
        assert meter.running["acme"] == meter.most["acme"] == 2
        gate.set()
        await until(lambda: meter.done.count("acme") == 10)


async def test_tokens_start_tasks_without_another_submit(harness: Harness) -> None:
    meter = Meter()

    @harness.handler("work")
    async def work() -> None:
        with meter.counting("work"):
            pass

    ids = [await harness.submit("work") for _ in range(12)]
    await limit(harness, "handler", "work", rate="8/s")
    async with harness.running(poll_interval="1h"):
        await until(lambda: len(meter.done) >= 8)
        await harness.ended(*ids)


async def test_work_until_idle_includes_limited_tasks(harness: Harness) -> None:
    meter = Meter()

    @harness.handler("work")
    def work() -> None:
        with meter.counting("work"):
            pass

    for _ in range(20):
        await harness.submit("work")
    await limit(harness, "handler", "work", concurrency="1")
    await harness.work()
    assert (len(meter.done), meter.most["work"]) == (20, 1)
