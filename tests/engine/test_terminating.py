"""The effect of a terminate request on a task in flight."""

import asyncio
import threading
from typing import Any

import sqlalchemy as sa

from runner import Context
from runner.engine.runner import Runner
from runner.policy.polling import LookAhead
from tests.engine.workshop import PATIENCE, Workshop, heard, until


async def terminate(workshop: Workshop, task_id: int, **values: Any) -> None:
    """Ask for the end of a running task."""
    table = workshop.database.tables.task
    asked = {"cancel_requested": True, "version": table.c.version + 1} | values
    await workshop.change(sa.update(table).where(table.c.id == task_id).values(asked))


async def test_an_async_body_is_cancelled_with_the_next_beat(workshop: Workshop) -> None:
    begun, seen = asyncio.Event(), []

    @workshop.handler("work")
    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = await workshop.submit("work")
    async with workshop.running():
        await heard(begun)
        await terminate(workshop, task)
        await workshop.ended(task)
    assert seen == ["cancelled"]
    assert await workshop.state(task) == "cancelled"


async def test_a_plain_function_is_told_and_may_end_itself(workshop: Workshop) -> None:
    begun = threading.Event()

    @workshop.handler("work")
    def work(ctx: Context) -> None:
        begun.set()
        ctx.stop.wait(PATIENCE)
        assert ctx.cancelled

    task = await workshop.submit("work")
    async with workshop.running():
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        await terminate(workshop, task)
        await workshop.ended(task)
    assert await workshop.state(task) == "cancelled"


async def test_a_plain_function_that_ends_its_work_all_the_same_has_succeeded(workshop: Workshop) -> None:
    begun = threading.Event()

    @workshop.handler("work")
    def work(ctx: Context) -> str:
        begun.set()
        ctx.stop.wait(PATIENCE)
        return "done"

    task = await workshop.submit("work")
    async with workshop.running():
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        await terminate(workshop, task)
        await workshop.ended(task)
    row = await workshop.row(task)
    assert (row.state, row.result) == ("succeeded", '"done"')


async def test_a_failure_after_the_request_is_no_reason_to_try_again(workshop: Workshop) -> None:
    tries: list[int] = []

    @workshop.handler("work")
    async def work(n: int) -> None:
        tries.append(n)
        await terminate(workshop, n)
        raise ZeroDivisionError

    task = await workshop.submit("work", {"n": 1})
    assert task == 1
    await workshop.work(heartbeat_interval="2s")
    assert tries == [1]
    assert await workshop.state(task) == "cancelled"


async def test_a_task_that_waits_for_a_slot_never_begins(workshop: Workshop) -> None:
    begun, go_on, ran = asyncio.Event(), asyncio.Event(), []

    @workshop.handler("first")
    async def first() -> None:
        begun.set()
        await go_on.wait()

    @workshop.handler("second")
    async def second() -> None:
        ran.append("second")

    blocking = await workshop.submit("first")
    async with workshop.running(concurrency=1) as runner:
        await heard(begun)
        waiting = await claimed_without_a_slot(workshop, runner, "second")
        await until(lambda: waiting in runner.worker.in_flight.tasks)
        await terminate(workshop, waiting)
        await runner._heartbeat()
        go_on.set()
        await workshop.ended(blocking, waiting)
    assert ran == []
    assert await workshop.state(waiting) == "cancelled"


class OneAhead(LookAhead):
    """Looks one task ahead, however long the others take."""

    def tasks(self, now: float) -> int:
        return 1


async def claimed_without_a_slot(workshop: Workshop, runner: Runner, handler: str) -> int:
    """A task that a runner claims without a free slot."""
    runner.worker.in_flight.on_loop.look_ahead = OneAhead()
    return await workshop.submit(handler)
