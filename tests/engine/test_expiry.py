"""Expiry in a runner: expired tasks end without a start, and their dependents follow."""

import asyncio
from collections.abc import Mapping
from functools import partial

import pytest

from runner.engine.running import Running
from runner.model.task import DependsOn
from tests.engine.harness import Harness, until, wait_for_event


async def test_a_runner_cancels_expired_tasks_and_resolves_their_dependents(harness: Harness) -> None:
    ran: list[int] = []

    @harness.handler("work")
    async def work(number: int) -> None:
        ran.append(number)

    late = await harness.submit("work", {"number": 1}, delay=0.0, expires=0.001)
    after = await harness.submit("work", {"number": 2}, after=(DependsOn(late, on_failure="run"),))
    await asyncio.sleep(0.01)  # the expiry is on the clock of the database
    await harness.work()
    assert [await harness.state(id) for id in (late, after)] == ["cancelled", "succeeded"]
    assert ran == [2]


async def test_a_prefetched_task_that_expires_before_its_slot_is_free_does_not_start(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, release = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    @harness.handler("work")
    async def work(number: int) -> None:
        ran.append(number)
        if number == 1:
            busy.set()
            await release.wait()

    monkeypatch.setattr("runner.policy.polling.LookAhead.tasks", lambda _self, _now: 10)
    monkeypatch.setattr("runner.engine.runner.MAX_SLOT_WAIT", 60.0)
    async with harness.running(concurrency=1) as runner:
        await harness.submit("work", {"number": 1})
        await wait_for_event(busy)
        in_flight = runner.worker.in_flight.tasks
        while len(in_flight) < 2:  # on a busy machine it may expire before its claim
            late = await harness.submit("work", {"number": 2}, expires=0.5)
            await until(partial(is_taken_or_cancelled, harness, in_flight, late))
        await until(lambda: in_flight[late].expired)
        release.set()
        await harness.wait_for(late)
    assert ran == [1]
    assert await harness.state(late) == "cancelled"


async def is_taken_or_cancelled(harness: Harness, in_flight: Mapping[int, Running], id: int) -> bool:
    return id in in_flight or await harness.state(id) == "cancelled"


async def test_a_runner_takes_a_task_after_its_time_on_other_hosts(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    id = await harness.submit("work", hosts="elsewhere", hosts_for=0.001)
    other = await harness.submit("work", hosts="elsewhere", hosts_for=3600.0)
    async with harness.running():
        await harness.wait_for(id)
    assert [await harness.state(each) for each in (id, other)] == ["succeeded", "waiting"]
