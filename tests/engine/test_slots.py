"""How much runs at once, and how much is taken in hand."""

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest
import sqlalchemy as sa

from runner.engine import process
from runner.engine.slots import InHand, Running
from runner.handlers import Handler
from runner.policy.polling import LookAhead
from runner.task import Claimed, State
from tests.engine.workshop import PATIENCE, Workshop, heard, until

MANY = 30


class Gauge:
    """Counts what runs now, and how many ran at once at most."""

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


async def in_hand(workshop: Workshop) -> int:
    task = workshop.database.tables.task
    return await workshop.count(task, task.c.state == State.RUNNING.value)


async def test_never_more_async_handlers_run_at_once_than_there_are_slots(workshop: Workshop) -> None:
    gauge = Gauge()

    @workshop.handler("work")
    async def work() -> None:
        with gauge:
            await asyncio.sleep(0.005)

    await submitted(workshop, "work")
    await workshop.work(slots=3)
    assert (gauge.most, gauge.ended) == (3, MANY)


async def test_never_more_plain_functions_run_at_once_than_there_are_threads(workshop: Workshop) -> None:
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
        await until(lambda: runner.working.in_hand.in_threads.taken == 2)
        await workshop.ended(*await submitted(workshop, "fast"))
        go_on.set()


async def test_no_more_is_claimed_than_fits(workshop: Workshop) -> None:
    go_on, gauge = asyncio.Event(), Gauge()

    @workshop.handler("work")
    async def work() -> None:
        with gauge:
            await go_on.wait()

    tasks = await submitted(workshop, "work")
    async with workshop.running(slots=3) as runner:
        await until(lambda: gauge.now == 3)
        assert await in_hand(workshop) == 3
        await runner.claiming.scan()
        assert await in_hand(workshop) == 3
        go_on.set()
        await workshop.ended(*tasks)
    assert gauge.most == 3


async def test_with_nothing_ahead_no_task_waits_in_hand_for_a_slot(workshop: Workshop) -> None:
    most_in_hand = 0

    @workshop.handler("work")
    async def work() -> None:
        nonlocal most_in_hand
        most_in_hand = max(most_in_hand, slots.taken + len(slots.waiting))

    for _ in range(MANY):
        await workshop.submit("work")
    async with workshop.running(slots=3, ahead=0) as runner:
        slots = runner.working.in_hand.on_loop
        for _ in range(100):  # as after a long while of quick work, which would have it look far ahead
            slots.ahead.ended(1_000)
        await until(lambda: runner.working.tally.verbs["succeed"] == MANY)
    assert 0 < most_in_hand <= 3


class OneAhead(LookAhead):
    def tasks(self, now: float) -> int:
        return 1


async def test_what_waits_in_hand_behind_slow_work_is_handed_back(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    @workshop.handler("work")
    async def work() -> None:
        await go_on.wait()

    slow = await workshop.submit("work")
    async with workshop.running(slots=1, every=timedelta(hours=1), beat=timedelta(seconds=1)) as runner:
        slots = runner.working.in_hand.on_loop
        await until(lambda: bool(slots.taken))
        slots.ahead = OneAhead()  # as after a while of quick work
        waiting = await workshop.submit("work")
        await runner.claiming.scan()
        await until(lambda: waiting in runner.working.in_hand.tasks)
        slots.ahead = LookAhead()
        await runner._beat()
        assert await in_hand(workshop) == 2  # for a moment it may well wait
        monkeypatch.setattr(process, "PATIENCE", 0.0)
        await until(lambda: runner.working.tally.verbs["release"] == 1)
        assert (await workshop.state(waiting), await in_hand(workshop)) == ("waiting", 1)
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
    await asyncio.gather(workshop.work(slots=2), workshop.work(slots=2))
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
        await runner.claiming.scan()
        assert (gauge.ended, await workshop.state(behind)) == (0, "waiting")
        go_on.set()
        await workshop.ended(behind)


async def test_what_is_in_hand_is_not_started_again_by_the_same_runner(workshop: Workshop) -> None:
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
        # As a rescue does it, without a lost lease: the runner still has the body in hand.
        taken_back = {"state": State.WAITING.value, "fence": table.c.fence + 1, "runner_id": None}
        await workshop.change(sa.update(table).where(table.c.id == task).values(taken_back))
        await runner.claiming.scan()
        assert starts == [False]
        go_on.set()
        await workshop.ended(task)
    assert starts == [False, True]
    assert await workshop.state(task) == "succeeded"


async def test_what_can_never_be_claimed_does_not_keep_a_scan_from_ending(workshop: Workshop) -> None:
    @workshop.handler("work")
    async def work() -> None: ...

    used_up = await workshop.submit("work", max_attempts=3)
    table = workshop.database.tables.task
    await workshop.change(sa.update(table).where(table.c.id == used_up).values(attempt=3))
    async with workshop.running() as runner:
        await workshop.ended(await workshop.submit("work"))
        await until(lambda: runner.claiming.idle)
    assert await workshop.state(used_up) == "waiting"


async def test_suspects_run_one_at_a_time_beside_others(workshop: Workshop) -> None:
    suspects, others = Gauge(), Gauge()

    @workshop.handler("suspect")
    async def suspect() -> None:
        with suspects:
            await asyncio.sleep(0.005)

    @workshop.handler("other")
    async def other() -> None:
        with others:
            await asyncio.sleep(0.005)

    await submitted(workshop, "suspect", 5)
    table = workshop.database.tables.task
    await workshop.change(sa.update(table).values(rescues=2))
    await submitted(workshop, "other", 10)
    await workshop.work(every="1h", notify=False, watch_every="1h")
    assert (suspects.most, suspects.ended) == (1, 5)
    assert others.ended == 10


def test_what_is_over_does_not_let_go_of_another_claim_of_the_same_task() -> None:
    def work() -> None: ...

    in_hand, handler = InHand(1, 1, 0), Handler("work", work)
    task = Claimed(7, "default", "work", None, "{}", 1, None, 1, 5, 1, None, 0, None)
    first = in_hand.add(task, handler)
    assert first is not None
    assert in_hand.add(task._replace(fence=3), handler) is None
    in_hand.drop(Running(task._replace(fence=3), handler, in_hand.in_threads))
    assert in_hand.tasks == {7: first}
    first.over = True
    second = in_hand.add(task._replace(fence=3), handler)
    assert in_hand.tasks == {7: second}
    in_hand.drop(first)
    assert in_hand.tasks == {7: second}
