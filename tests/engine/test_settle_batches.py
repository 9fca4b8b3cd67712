"""The settle buffer writes batches of a bounded size, and keeps nothing of a written one."""

import asyncio
import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from runner.engine.running import Running
from runner.engine.settling.settle_buffer import BATCH_TEXT, SettleBuffer, Settling, text_size
from runner.engine.slots import Slots
from runner.engine.stuck_rows import StuckRows
from runner.handlers.registry import Handler, Options
from runner.model.outcome import Dead, Done, Failure, Outcome, Retry, Snooze
from runner.model.task import DependsOn, NewTask
from runner.store.settle import Settled
from runner.store.submit import submit
from tests.engine.harness import until
from tests.store.runners import Runner, settlement

SIZE = 1_000

LARGE: dict[str, Outcome] = {
    "result": Done(f'"{"x" * (BATCH_TEXT // 4)}"'),
    "failure": Dead(failure=Failure("ValueError", "m" * 16_000, "t" * (BATCH_TEXT // 4 - 16_000))),
}


async def work() -> None: ...


HANDLER = Handler("work", work, Options())


class Batches:
    """A buffer, and the sizes of its batches."""

    def __init__(self, runner: Runner, linger: float = 0.001) -> None:
        self.runner = runner
        self.texts: list[int] = []
        self.settled = dict[int, str]()
        self.linger = linger
        self.buffer = SettleBuffer(runner.database, SIZE, linger, self._settled, StuckRows())
        self.buffer.runner_id = runner.id
        self.buffer.before_write = lambda batch: self.texts.append(sum(text_size(item.outcome) for _, item in batch))

    def _settled(self, batch: Sequence[Settling], settled: Settled) -> None:
        self.settled |= settled.verbs

    async def fill(self, outcomes: Sequence[Outcome], *, makes_room: bool = False) -> list["weakref.ref[Running]"]:
        """Add an outcome for each of some new tasks; `makes_room` for one under a limit."""
        for _ in outcomes:
            await self.runner.database.write(submit, NewTask("work"))
        jobs = [Running(task, HANDLER, Slots("async", 1)) for task in await self.runner.claim(len(outcomes))]
        jobs[0].makes_room = makes_room
        for job, outcome in zip(jobs, outcomes, strict=True):
            self.buffer.add(job, settlement(job.task, outcome))
        return [weakref.ref(job) for job in jobs]

    async def wait_of(self, outcomes: int, *, makes_room: bool = False) -> float:
        """Add outcomes, and return the part of the interval for which they wait, after writing them before its end."""
        await self.fill([Done()] * outcomes, makes_room=makes_room)
        assert self.buffer._timer is not None
        wait = (self.buffer._timer.when() - asyncio.get_running_loop().time()) / self.linger
        self.buffer._ready.set()
        writer = asyncio.ensure_future(self.buffer.run())
        try:
            await until(lambda: not self.buffer._items and self.buffer._idle.is_set())
        finally:
            writer.cancel()
            await asyncio.wait([writer])
        return round(wait, 2)

    async def write(self) -> None:
        job = asyncio.ensure_future(self.buffer.run())
        try:
            assert await self.buffer.drain(30)
        finally:
            job.cancel()
            await asyncio.wait([job])


@contextmanager
def no_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("outcome", LARGE.values(), ids=LARGE.keys())
async def test_a_batch_of_large_outcomes_has_a_bounded_size(runner: Runner, outcome: Outcome) -> None:
    batches = Batches(runner)
    await batches.fill([outcome] * 10)
    await batches.write()
    assert len(batches.settled) == 10
    assert sum(batches.texts) == 10 * text_size(outcome)
    assert len(batches.texts) == 3
    assert max(batches.texts) < BATCH_TEXT + text_size(outcome)


async def test_the_runner_claims_no_more_while_much_text_is_buffered(runner: Runner) -> None:
    batches = Batches(runner)
    large = LARGE["result"]
    full = []
    await batches.fill([large] * 15)
    full.append(batches.buffer.full)
    await batches.fill([large])
    full.append(batches.buffer.full)
    await batches.write()
    full.append(batches.buffer.full)
    assert full == [False, True, False]
    assert len(batches.settled) == 16
    await batches.fill([Done(), Snooze("1m"), Retry(failure=Failure("ValueError", "bad row"))])
    await batches.write()
    assert len(batches.texts) == 5


@pytest.mark.both_databases
async def test_outcomes_wait_longer_after_several_unless_something_waits_for_them(runner: Runner) -> None:
    batches = Batches(runner, linger=10_000.0)
    full = 1.0 if runner.database.dialect.is_server else 0.25  # a settle of SQLite does not see dependencies
    waits = [await batches.wait_of(2), await batches.wait_of(2), await batches.wait_of(1)]
    assert waits == [0.25, full, full]
    assert await batches.wait_of(2) == 0.25  # one ended before
    assert [await batches.wait_of(2, makes_room=True), await batches.wait_of(2)] == [full, 0.25]
    parent = await runner.database.write(submit, NewTask("work"))
    await runner.database.write(submit, NewTask("work", after=(DependsOn(parent),)))
    assert [await batches.wait_of(2), await batches.wait_of(2)] == [full, 0.25]


async def test_a_written_batch_leaves_nothing(runner: Runner) -> None:
    batches = Batches(runner)
    with no_collector():
        jobs = await batches.fill([Done("1"), LARGE["failure"]])
        writer = asyncio.ensure_future(batches.buffer.run())
        try:
            await until(lambda: len(batches.settled) == 2)
            await until(lambda: not any(job() for job in jobs))
        finally:
            writer.cancel()
            await asyncio.wait([writer])
