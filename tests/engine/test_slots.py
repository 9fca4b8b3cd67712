"""The number of running tasks and of prefetched tasks."""

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest
import sqlalchemy as sa

from runner import Context
from runner.engine import runner as process
from runner.engine.slots import InFlight, Running
from runner.handlers.registry import Handler
from runner.model.task import Claimed, State
from runner.policy.polling import LookAhead
from tests.engine.workshop import PATIENCE, Workshop, heard, until

MANY = 30


class Gauge:
    """Counts the running tasks and their maximum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.ended = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1
            self.ended += 1


async def submitted(workshop: Workshop, handler: str, tasks: int = MANY) -> Sequence[int]:
    return [await workshop.submit(handler) for _ in range(tasks)]


async def in_flight(workshop: Workshop) -> int:
    task = workshop.database.tables.task
    return await workshop.count(task, task.c.state == State.RUNNING.value)


async def test_async_handlers_never_exceed_the_slots(workshop: Workshop) -> None:
    gauge = Gauge()

    @workshop.handler("work")
    async def work() -> None:
        with gauge:
            await asyncio.sleep(0.005)

    await submitted(workshop, "work")
    await workshop.work(concurrency=3)
    assert (gauge.most, gauge.ended) == (3, MANY)


async def test_plain_functions_never_exceed_the_threads(workshop: Workshop) -> None:
    gauge, together = Gauge(), threading.Barrier(2)

    @workshop.handler("work")
    def work() -> None:
        with gauge:
            together.wait(PATIENCE)

    await submitted(workshop, "work")
    await workshop.work(threads=2)
    assert (gauge.most, gauge.ended) == (2, MANY)


async def test_slow_threads_do_not_starve_async_handlers(workshop: Workshop) -> None:
    go_on, gauge = threading.Event(), Gauge()

    @workshop.handler("slow")
    def slow() -> None:
        go_on.wait(PATIENCE)

    @workshop.handler("fast")
    async def fast() -> None:
        with gauge:
            pass

    await submitted(workshop, "slow")
    async with workshop.running(threads=2) as runner:
        await until(lambda: runner.worker.in_flight.in_threads.in_use == 2)
        await workshop.ended(*await submitted(workshop, "fast"))
        go_on.set()


async def test_no_more_is_claimed_than_fits(workshop: Workshop) -> None:
    go_on, gauge = asyncio.Event(), Gauge()

    @workshop.handler("work")
    async def work() -> None:
        with gauge:
            await go_on.wait()

    tasks = await submitted(workshop, "work")
    async with workshop.running(concurrency=3) as runner:
        await until(lambda: gauge.now == 3)
        assert await in_flight(workshop) == 3
        await runner.claimer.scan()
        assert await in_flight(workshop) == 3
        go_on.set()
        await workshop.ended(*tasks)
    assert gauge.most == 3


async def test_without_prefetch_no_claimed_task_waits_for_a_slot(workshop: Workshop) -> None:
    most_in_hand = 0

    @workshop.handler("work")
    async def work() -> None:
        nonlocal most_in_hand
        most_in_hand = max(most_in_hand, slots.in_use + len(slots.waiting))

    for _ in range(MANY):
        await workshop.submit("work")
    async with workshop.running(concurrency=3, prefetch=0) as runner:
        slots = runner.worker.in_flight.on_loop
        for _ in range(100):  # as after a long while of quick work, which would have it look far ahead
            slots.look_ahead.ended(1_000)
        await until(lambda: runner.worker.metrics.verbs["succeed"] == MANY)
    assert 0 < most_in_hand <= 3


class OneAhead(LookAhead):
    def tasks(self, now: float) -> int:
        return 1


async def test_a_task_waiting_behind_slow_work_is_released(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = asyncio.Event()

    @workshop.handler("work")
    async def work() -> None:
        await go_on.wait()

    slow = await workshop.submit("work")
    async with workshop.running(
        concurrency=1, poll_interval=timedelta(hours=1), heartbeat_interval=timedelta(seconds=1)
    ) as runner:
        slots = runner.worker.in_flight.on_loop
        await until(lambda: bool(slots.in_use))
        slots.look_ahead = OneAhead()  # as after a while of quick work
        waiting = await workshop.submit("work")
        await runner.claimer.scan()
        await until(lambda: waiting in runner.worker.in_flight.tasks)
        slots.look_ahead = LookAhead()
        await runner._heartbeat()
        assert await in_flight(workshop) == 2  # for a moment it may well wait
        monkeypatch.setattr(process, "MAX_SLOT_WAIT", 0.0)
        await until(lambda: runner.worker.metrics.verbs["release"] == 1)
        assert (await workshop.state(waiting), await in_flight(workshop)) == ("waiting", 1)
        go_on.set()
        await workshop.ended(slow, waiting)


async def test_two_runners_share_and_start_nothing_twice(workshop: Workshop) -> None:
    started: list[int] = []

    @workshop.handler("work")
    async def work(n: int) -> None:
        started.append(n)
        await asyncio.sleep(0.002)

    for n in range(MANY):
        await workshop.submit("work", {"n": n})
    await asyncio.gather(workshop.work(concurrency=2), workshop.work(concurrency=2))
    assert sorted(started) == list(range(MANY))


async def test_a_thread_that_was_given_up_keeps_its_slot_until_it_ends(workshop: Workshop) -> None:
    go_on, gauge = threading.Event(), Gauge()

    @workshop.handler("stuck", timeout=0.05, max_attempts=1)
    def stuck() -> None:
        go_on.wait(PATIENCE)

    @workshop.handler("quick")
    def quick() -> None:
        with gauge:
            pass

    given_up = await workshop.submit("stuck")
    async with workshop.running(threads=1) as runner:
        await workshop.ended(given_up)
        assert await workshop.state(given_up) == "dead"
        behind = await workshop.submit("quick")
        await runner.claimer.scan()
        assert (gauge.ended, await workshop.state(behind)) == (0, "waiting")
        go_on.set()
        await workshop.ended(behind)


async def test_a_task_in_flight_is_not_started_again_by_the_same_runner(workshop: Workshop) -> None:
    """A lease can run out and be taken back while the body still runs; the task then runs here again, but later."""
    begun, go_on, starts = asyncio.Event(), threading.Event(), []

    @workshop.handler("work")
    def work() -> None:
        starts.append(go_on.is_set())
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(PATIENCE)

    loop = asyncio.get_running_loop()
    task = await workshop.submit("work")
    table = workshop.database.tables.task
    async with workshop.running() as runner:
        await heard(begun)
        # As after a rescue, but with a valid lease: the body is still running in the runner.
        taken_back = {"state": State.WAITING.value, "fence": table.c.fence + 1, "runner_id": None}
        await workshop.change(sa.update(table).where(table.c.id == task).values(taken_back))
        await runner.claimer.scan()
        assert starts == [False]
        go_on.set()
        await workshop.ended(task)
    assert starts == [False, True]
    assert await workshop.state(task) == "succeeded"


async def test_a_scan_ends_despite_unclaimable_tasks(workshop: Workshop) -> None:
    @workshop.handler("work")
    async def work() -> None: ...

    used_up = await workshop.submit("work", max_attempts=3)
    table = workshop.database.tables.task
    await workshop.change(sa.update(table).where(table.c.id == used_up).values(attempt=3))
    async with workshop.running() as runner:
        await workshop.ended(await workshop.submit("work"))
        await until(lambda: runner.claimer.idle)
    assert await workshop.state(used_up) == "waiting"


@pytest.mark.parametrize(("rescues", "most"), [(2, 16), (3, 4), (4, 1)])
async def test_suspects_run_in_groups_that_narrow_with_each_lost_runner_beside_others(
    workshop: Workshop, rescues: int, most: int
) -> None:
    suspects, others, full = Gauge(), Gauge(), asyncio.Event()

    @workshop.handler("suspect")
    async def suspect() -> None:
        with suspects:
            if suspects.now == most:
                full.set()
            await full.wait()
            await asyncio.sleep(0.005)

    @workshop.handler("other")
    async def other() -> None:
        with others:
            await asyncio.sleep(0.005)

    await submitted(workshop, "suspect", 20)
    table = workshop.database.tables.task
    await workshop.change(sa.update(table).values(rescues=rescues, max_attempts=20))
    await submitted(workshop, "other", 10)
    # Long enough for no suspect to run for the proof time.
    await workshop.work(
        poll_interval="1h",
        notify=False,
        sqlite_poll_interval="1h",
        concurrency=40,
        lease_timeout="1h",
        heartbeat_interval="30m",
    )
    assert (suspects.most, suspects.ended) == (most, 20)
    assert others.ended == 10


async def test_a_suspect_that_has_run_for_the_proof_time_makes_room_for_the_next_one(workshop: Workshop) -> None:
    begun: list[int] = []
    gate = asyncio.Event()

    @workshop.handler("slow")
    async def slow(ctx: Context) -> None:
        begun.append(ctx.id)
        await gate.wait()

    @workshop.handler("quick")
    async def quick(ctx: Context) -> None:
        begun.append(ctx.id)

    first, second = await submitted(workshop, "slow", 2)
    (other,) = await submitted(workshop, "quick", 1)
    table = workshop.database.tables.task
    await workshop.change(sa.update(table).values(rescues=4, max_attempts=20))
    async with workshop.running(lease_timeout="400ms", heartbeat_interval="100ms"):
        await workshop.ended(other)
        assert begun == [first, second, other], "none of them waits for the end of a slow one"
        gate.set()
        await workshop.ended(first, second)


async def test_a_suspect_that_fails_is_run_as_others_are_after_that(workshop: Workshop) -> None:
    @workshop.handler("flaky", max_attempts=20)
    async def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError

    (task,) = await submitted(workshop, "flaky", 1)
    await workshop.change(sa.update(workshop.database.tables.task).values(rescues=4))
    await workshop.work()
    row = await workshop.row(task)
    assert (row.state, row.attempt, row.rescues) == ("succeeded", 2, 0)


def test_removing_a_settled_claim_keeps_a_newer_claim_of_the_same_task() -> None:
    def work() -> None: ...

    in_flight, handler = InFlight(1, 1, 0), Handler("work", work)
    task = Claimed(7, "default", "work", None, "{}", 1, None, 1, 5, 1, None, 0, None)
    first = in_flight.add(task, handler)
    assert first is not None
    assert in_flight.add(task._replace(fence=3), handler) is None
    in_flight.remove(Running(task._replace(fence=3), handler, in_flight.in_threads))
    assert in_flight.tasks == {7: first}
    first.settled = True
    second = in_flight.add(task._replace(fence=3), handler)
    assert in_flight.tasks == {7: second}
    in_flight.remove(first)
    assert in_flight.tasks == {7: second}
