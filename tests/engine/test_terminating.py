"""The effect of a terminate request on a task in flight."""

import asyncio
import threading
from typing import Any

import sqlalchemy as sa

from runner import Context
from runner.engine.runner import Engine
from tests.engine.harness import WAIT_SECONDS, Harness, OneAhead, until, wait_for_event


async def terminate(harness: Harness, task_id: int, **values: Any) -> None:
    """Ask for the end of a running task."""
    table = harness.database.tables.task
    asked = {"cancel_requested": True, "version": table.c.version + 1} | values
    await harness.change(sa.update(table).where(table.c.id == task_id).values(asked))


async def test_an_async_body_is_cancelled_with_the_next_heartbeat(harness: Harness) -> None:
    begun, events = asyncio.Event(), []

    @harness.handler("work")
    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    task = await harness.submit("work")
    async with harness.running():
        await wait_for_event(begun)
        await terminate(harness, task)
        await harness.wait_for(task)
    assert events == ["cancelled"]
    assert await harness.state(task) == "cancelled"


async def test_a_plain_function_is_asked_to_stop_and_may_end_itself(harness: Harness) -> None:
    begun = threading.Event()

    @harness.handler("work")
    def work(ctx: Context) -> None:
        begun.set()
        ctx.stop.wait(WAIT_SECONDS)
        assert ctx.cancelled

    task = await harness.submit("work")
    async with harness.running():
        assert await asyncio.to_thread(begun.wait, WAIT_SECONDS)
        await terminate(harness, task)
        await harness.wait_for(task)
    assert await harness.state(task) == "cancelled"


async def test_a_plain_function_that_ends_its_work_all_the_same_has_succeeded(harness: Harness) -> None:
    begun = threading.Event()

    @harness.handler("work")
    def work(ctx: Context) -> str:
        begun.set()
        ctx.stop.wait(WAIT_SECONDS)
        return "done"

    task = await harness.submit("work")
    async with harness.running():
        assert await asyncio.to_thread(begun.wait, WAIT_SECONDS)
        await terminate(harness, task)
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.result) == ("succeeded", '"done"')


async def test_a_failure_after_the_request_is_no_reason_to_try_again(harness: Harness) -> None:
    tries: list[int] = []

    @harness.handler("work")
    async def work(n: int) -> None:
        tries.append(n)
        await terminate(harness, n)
        raise ZeroDivisionError

    task = await harness.submit("work", {"n": 1})
    assert task == 1
    await harness.work(heartbeat_interval="2s")
    assert tries == [1]
    assert await harness.state(task) == "cancelled"


async def test_a_task_that_waits_for_a_slot_never_begins(harness: Harness) -> None:
    begun, go_on, ran = asyncio.Event(), asyncio.Event(), []

    @harness.handler("first")
    async def first() -> None:
        begun.set()
        await go_on.wait()

    @harness.handler("second")
    async def second() -> None:
        ran.append("second")

    blocking = await harness.submit("first")
    async with harness.running(concurrency=1) as runner:
        await wait_for_event(begun)
        waiting = await claimed_without_a_slot(harness, runner, "second")
        await until(lambda: waiting in runner.worker.in_flight.tasks)
        await terminate(harness, waiting)
        await runner._heartbeat()
        go_on.set()
        await harness.wait_for(blocking, waiting)
    assert ran == []
    assert await harness.state(waiting) == "cancelled"


async def claimed_without_a_slot(harness: Harness, runner: Engine, handler: str) -> int:
    """A task that a runner claims without a free slot."""
    runner.worker.in_flight.on_loop.look_ahead = OneAhead()
    return await harness.submit(handler)
