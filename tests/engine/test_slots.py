"""The number of running tasks and of prefetched tasks."""

import asyncio
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context
from runner.db.types import db_later, db_now
from runner.engine import runner as process
from runner.engine.claiming import suspect_claims
from runner.engine.in_flight import InFlight
from runner.engine.runner import Engine
from runner.engine.running import Running
from runner.engine.slots import MOST_EARLY, ExternalSlots
from runner.handlers.registry import Handler, Options
from runner.model.task import Claimed, State
from runner.policy.limits import read_limits
from runner.policy.polling import LookAhead, Pace
from tests.engine.harness import WAIT_SECONDS, Harness, OneAhead, until, wait_for_event

MANY = 30


class Gauge:
    """Counts the running tasks and their maximum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.finished = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1
            self.finished += 1


async def submitted(harness: Harness, handler: str, tasks: int = MANY) -> Sequence[int]:
    return [await harness.submit(handler) for _ in range(tasks)]


async def in_flight(harness: Harness) -> int:
    task = harness.database.tables.task
    return await harness.count(task, task.c.state == State.RUNNING.value)


async def test_async_handlers_never_exceed_the_slots(harness: Harness) -> None:
    gauge = Gauge()

    @harness.handler("work")
    async def work() -> None:
        with gauge:
            await asyncio.sleep(0.005)

    await submitted(harness, "work")
    await harness.work(concurrency=3)
    assert (gauge.most, gauge.finished) == (3, MANY)


async def test_plain_functions_never_exceed_the_threads(harness: Harness) -> None:
    gauge, together = Gauge(), threading.Barrier(2)

    @harness.handler("work")
    def work() -> None:
        with gauge:
            together.wait(WAIT_SECONDS)

    await submitted(harness, "work")
    await harness.work(threads=2)
    assert (gauge.most, gauge.finished) == (2, MANY)


async def test_slow_threads_do_not_starve_async_handlers(harness: Harness) -> None:
    go_on, gauge = threading.Event(), Gauge()

    @harness.handler("slow")
    def slow() -> None:
        go_on.wait(WAIT_SECONDS)

    @harness.handler("fast")
    async def fast() -> None:
        with gauge:
            pass

    await submitted(harness, "slow")
    async with harness.running(threads=2) as runner:
        await until(lambda: runner.worker.in_flight.in_threads.in_use == 2)
        await harness.wait_for(*await submitted(harness, "fast"))
        go_on.set()


async def test_no_more_is_claimed_than_fits(harness: Harness) -> None:
    go_on, gauge = asyncio.Event(), Gauge()

    @harness.handler("work")
    async def work() -> None:
        with gauge:
            await go_on.wait()

    tasks = await submitted(harness, "work")
    async with harness.running(concurrency=3) as runner:
        await until(lambda: gauge.now == 3)
        assert await in_flight(harness) == 3
        await runner.claimer.scan()
        assert await in_flight(harness) == 3
        go_on.set()
        await harness.wait_for(*tasks)
    assert gauge.most == 3


async def test_without_prefetch_no_claimed_task_waits_for_a_slot(harness: Harness) -> None:
    most_in_hand = 0

    @harness.handler("work")
    async def work() -> None:
        nonlocal most_in_hand
        most_in_hand = max(most_in_hand, slots.in_use + len(slots.waiting))

    for _ in range(MANY):
        await harness.submit("work")
    async with harness.running(concurrency=3, prefetch=0) as runner:
        slots = runner.worker.in_flight.on_loop
        for _ in range(100):  # as after a long while of quick work, which would have it look far ahead
            slots.look_ahead.ends += 1_000
        await until(lambda: runner.metrics.verbs["succeed"] == MANY)
    assert 0 < most_in_hand <= 3


async def test_a_full_claim_of_quick_tasks_is_followed_by_a_prefetch(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_clock = partial(LookAhead, span=600.0)  # The clock proves nothing.
    monkeypatch.setattr("runner.engine.in_flight.LookAhead", slow_clock)
    most_in_hand = 0

    @harness.handler("work")
    async def work() -> None:
        nonlocal most_in_hand
        most_in_hand = max(most_in_hand, slots.in_use + len(slots.waiting))

    for _ in range(100):
        await harness.submit("work")
    async with harness.running(concurrency=25) as runner:
        slots = runner.worker.in_flight.on_loop
        await until(lambda: runner.metrics.verbs["succeed"] == 100)
    assert most_in_hand > 25


class EightAhead(LookAhead):
    def tasks(self, now: float) -> int:
        return 8


def test_a_claim_for_an_external_executor_waits_until_half_of_the_early_tasks_have_left() -> None:
    slots = ExternalSlots("far", 4, look_ahead=EightAhead())
    slots.note_run(0.01)
    assert slots.to_claim(100) == 16, "one for each worker, one behind it, and eight in the runner"
    task = Claimed(7, "default", "work", None, "{}", 1, None, 1, 5, 1, None, 0, None)
    handler = Handler("work", lambda: None, Options())
    slots.waiting.extend(Running(task, handler, slots) for _ in range(16))
    while slots.next():
        pass
    room = []
    for _ in range(6):
        slots.release()
        slots.next()
        room.append(slots.to_claim(100))
    assert room == [0, 0, 0, 0, 0, 6]


@pytest.mark.parametrize(("mean", "early"), [(0.01, 40), (0.04, 10), (0.05, 8), (0.09, 4), (0.1, 0), (0.0, MOST_EARLY)])
def test_workers_that_are_far_away_receive_the_short_tasks_of_their_span_early(mean: float, early: int) -> None:
    slots = ExternalSlots("far", 4)
    slots.span = 0.1
    slots.note_run(mean)
    assert slots.ahead == early


def test_each_worker_of_a_large_cluster_receives_a_short_task_early() -> None:
    slots = ExternalSlots("far", 2 * MOST_EARLY)
    slots.note_run(0.01)
    assert slots.ahead == slots.size


@pytest.mark.slow
async def test_a_task_waiting_behind_slow_work_is_released(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = asyncio.Event()

    @harness.handler("work")
    async def work() -> None:
        await go_on.wait()

    slow = await harness.submit("work")
    async with harness.running(
        concurrency=1, poll_interval=timedelta(hours=1), heartbeat_interval=timedelta(seconds=1)
    ) as runner:
        slots = runner.worker.in_flight.on_loop
        await until(lambda: bool(slots.in_use))
        slots.look_ahead = OneAhead()  # as after a while of quick work
        waiting = await harness.submit("work")
        await runner.claimer.scan()
        await until(lambda: waiting in runner.worker.in_flight.tasks)
        slots.look_ahead = LookAhead()
        await runner._heartbeat()
        assert await in_flight(harness) == 2  # for a moment it may well wait
        await runner.claimer.scan()
        await until(lambda: runner.claimer.idle)  # as far as the runner knows, no due task remains
        monkeypatch.setattr(process, "MAX_SLOT_WAIT", 0.0)
        await until(lambda: runner.metrics.verbs["release"] == 1)
        assert (await harness.state(waiting), await in_flight(harness)) == ("waiting", 1)
        go_on.set()
        await harness.wait_for(slow, waiting)


async def test_two_runners_share_and_start_nothing_twice(harness: Harness) -> None:
    started: list[int] = []

    @harness.handler("work")
    async def work(n: int) -> None:
        started.append(n)
        await asyncio.sleep(0.002)

    for n in range(MANY):
        await harness.submit("work", {"n": n})
    await asyncio.gather(harness.work(concurrency=2), harness.work(concurrency=2))
    assert sorted(started) == list(range(MANY))


async def test_a_thread_that_was_given_up_keeps_its_slot_until_it_ends(harness: Harness) -> None:
    go_on, gauge = threading.Event(), Gauge()

    @harness.handler("stuck", timeout=0.05, max_attempts=1)
    def stuck() -> None:
        go_on.wait(WAIT_SECONDS)

    @harness.handler("quick")
    def quick() -> None:
        with gauge:
            pass

    given_up = await harness.submit("stuck")
    async with harness.running(threads=1, spare_threads=0) as runner:
        await harness.wait_for(given_up)
        assert await harness.state(given_up) == "dead"
        behind = await harness.submit("quick")
        await runner.claimer.scan()
        assert (gauge.finished, await harness.state(behind)) == (0, "waiting")
        go_on.set()
        await harness.wait_for(behind)


async def test_a_task_in_flight_is_not_started_again_by_the_same_runner(harness: Harness) -> None:
    """A lease can run out and be taken back while the body still runs; the task then runs here again, but later."""
    begun, go_on, starts = asyncio.Event(), threading.Event(), []

    @harness.handler("work")
    def work() -> None:
        starts.append(go_on.is_set())
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(WAIT_SECONDS)

    loop = asyncio.get_running_loop()
    task = await harness.submit("work")
    table = harness.database.tables.task
    async with harness.running() as runner:
        await wait_for_event(begun)
        # As after a rescue, but with a valid lease: the body is still running in the runner.
        taken_back = {"state": State.WAITING.value, "fence": table.c.fence + 1, "runner_id": None}
        await harness.change(sa.update(table).where(table.c.id == task).values(taken_back))
        await runner.claimer.scan()
        assert starts == [False]
        go_on.set()
        await harness.wait_for(task)
    assert starts == [False, True]
    assert await harness.state(task) == "succeeded"


async def test_a_scan_ends_despite_unclaimable_tasks(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    used_up = await harness.submit("work", max_attempts=3)
    table = harness.database.tables.task
    await harness.change(sa.update(table).where(table.c.id == used_up).values(attempt=3))
    async with harness.running() as runner:
        await harness.wait_for(await harness.submit("work"))
        await until(lambda: runner.claimer.idle)
    assert await harness.state(used_up) == "waiting"


@pytest.mark.representatives(1)
@pytest.mark.parametrize(("rescues", "most"), [(2, 16), (3, 4), (4, 1)])
async def test_suspects_run_in_groups_that_narrow_with_each_lost_runner_beside_others(
    harness: Harness, rescues: int, most: int
) -> None:
    suspects, others, full = Gauge(), Gauge(), asyncio.Event()

    @harness.handler("suspect")
    async def suspect() -> None:
        with suspects:
            if suspects.now == most:
                full.set()
            await full.wait()
            await asyncio.sleep(0.005)

    @harness.handler("other")
    async def other() -> None:
        with others:
            await asyncio.sleep(0.005)

    await submitted(harness, "suspect", 20)
    table = harness.database.tables.task
    await harness.change(sa.update(table).values(rescues=rescues, max_attempts=20))
    await submitted(harness, "other", 10)
    # Long enough for no suspect to run for the proof time.
    await harness.work(
        poll_interval="1h",
        notify=False,
        sqlite_poll_interval="1h",
        concurrency=40,
        lease_timeout="1h",
        heartbeat_interval="30m",
    )
    assert (suspects.most, suspects.finished) == (most, 20)
    assert others.finished == 10


async def test_a_suspect_that_has_run_for_the_proof_time_makes_room_for_the_next_one(harness: Harness) -> None:
    begun: list[int] = []
    gate = asyncio.Event()

    @harness.handler("slow")
    async def slow(ctx: Context) -> None:
        begun.append(ctx.id)
        await gate.wait()

    @harness.handler("quick")
    async def quick(ctx: Context) -> None:
        begun.append(ctx.id)

    first, second = await submitted(harness, "slow", 2)
    (other,) = await submitted(harness, "quick", 1)
    table = harness.database.tables.task
    await harness.change(sa.update(table).values(rescues=4, max_attempts=20))
    async with harness.running(lease_timeout="400ms", heartbeat_interval="100ms"):
        await harness.wait_for(other)
        assert begun == [first, second, other], "none of them waits for the end of a slow one"
        gate.set()
        await harness.wait_for(first, second)


@pytest.mark.parametrize(("share", "first"), [(0.0, "wide"), (1.0, "alone")])
async def test_most_claims_take_suspects_of_wide_groups_first_and_some_the_oldest(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, share: float, first: str
) -> None:
    """The suspects of wide groups are innocent most of the time, and each killer ahead of them costs a runner."""
    monkeypatch.setattr(suspect_claims, "OLDEST_FIRST", share)
    begun: list[int] = []

    @harness.handler("work")
    async def work(ctx: Context) -> None:
        begun.append(ctx.id)

    alone, *wide = await submitted(harness, "work", 4)
    table = harness.database.tables.task
    await harness.change(sa.update(table).values(rescues=2, max_attempts=20))
    await harness.change(sa.update(table).where(table.c.id == alone).values(rescues=4))
    await harness.work()
    assert begun == ([*wide, alone] if first == "wide" else [alone, *wide])


async def test_the_oldest_suspect_keeps_its_turn_until_its_group_allows_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a steady flow of suspects of wide groups would leave no moment in which it may run alone."""
    begun: list[int] = []
    gate = asyncio.Event()

    @harness.handler("work")
    async def work(ctx: Context) -> None:
        begun.append(ctx.id)
        if ctx.id == wide:
            await gate.wait()

    @harness.handler("other")
    async def other() -> None: ...

    alone, wide, later = await submitted(harness, "work", 3)
    table = harness.database.tables.task
    await harness.change(sa.update(table).values(rescues=2, max_attempts=20))
    await harness.change(sa.update(table).where(table.c.id == alone).values(rescues=4))
    await harness.change(sa.update(table).where(table.c.id == later).values(run_at=db_later(db_now(), 3600)))
    monkeypatch.setattr(suspect_claims, "OLDEST_FIRST", 0.0)
    async with harness.running(lease_timeout="1h", heartbeat_interval="30m") as run:
        await until(lambda: begun == [wide])
        monkeypatch.setattr(suspect_claims, "OLDEST_FIRST", 1.0)
        await harness.wait_for(await harness.submit("other"))
        await until(lambda: run.claimer.idle)
        monkeypatch.setattr(suspect_claims, "OLDEST_FIRST", 0.0)
        await harness.change(sa.update(table).where(table.c.id == later).values(run_at=db_now()))
        for _ in range(2):
            await harness.wait_for(await harness.submit("other"))
            await until(lambda: run.claimer.idle)
        assert begun == [wide]
        gate.set()
        await harness.wait_for(alone, wide, later)
    assert begun == [wide, alone, later]


@pytest.mark.slow
@pytest.mark.parametrize("limited", [False, True])
async def test_a_suspect_starts_while_other_tasks_take_every_slot(harness: Harness, limited: bool) -> None:
    """Other tasks are claimed before a slot is free, so that a suspect would wait for as long as there are some."""
    suspects: list[int] = []

    @harness.handler("suspect", limits=read_limits(2 if limited else None, None, None))
    async def suspect(ctx: Context) -> None:
        suspects.append(ctx.id)

    @harness.handler("busy")
    async def busy() -> None:
        if len(suspects) < 10:
            await harness.submit("busy")
        await asyncio.sleep(0.001)

    table = harness.database.tables.task
    await submitted(harness, "busy", MANY)
    ids = await submitted(harness, "suspect", 10)
    await harness.change(sa.update(table).where(table.c.id.in_(ids)).values(rescues=3, max_attempts=20))
    async with harness.running(concurrency=2):
        await harness.wait_for(*ids)


def test_a_task_that_its_claim_marked_as_started_starts_before_prefetched_ones() -> None:
    async def work() -> None: ...

    in_flight, handler = InFlight(1, 1, 10), Handler("work", work)
    task = Claimed(7, "default", "work", None, "{}", 1, None, 1, 5, 1, None, 0, None)
    for id, prefetched in ((1, False), (2, True), (3, True), (4, False), (5, False)):
        in_flight.add(task._replace(id=id), handler, prefetched)
    assert [running.task.id for running in in_flight.on_loop.waiting] == [1, 4, 5, 2, 3]
    in_flight.on_loop.waiting[1].received_at += 60
    assert [running.task.id for running in in_flight.unstarted(time.monotonic() + 1)] == [1, 5, 2, 3]


async def test_a_suspect_that_fails_is_run_as_others_are_after_that(harness: Harness) -> None:
    @harness.handler("flaky", max_attempts=20)
    async def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError

    (task,) = await submitted(harness, "flaky", 1)
    await harness.change(sa.update(harness.database.tables.task).values(rescues=4))
    await harness.work()
    row = await harness.row(task)
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


async def test_a_new_runner_rescues_before_it_claims_a_suspect(harness: Harness) -> None:
    """A suspect that kills each new runner within its first lease would keep the tasks of lost runners running."""
    states: list[str] = []

    @harness.handler("suspect")
    async def suspect() -> None:
        states.append((await harness.row(lost)).state + str((await harness.row(lost)).rescues))

    @harness.handler("work")
    async def work() -> None: ...

    (suspected,) = await submitted(harness, "suspect", 1)
    lost = await harness.submit("work", run_at=datetime.now(UTC) + timedelta(hours=1))
    table = harness.database.tables.task
    await harness.change(sa.update(table).where(table.c.id == suspected).values(rescues=4, max_attempts=20))
    running = {"state": "running", "runner_id": 10**6, "fence": 1, "attempt": 1, "started_at": db_now()}
    await harness.change(sa.update(table).where(table.c.id == lost).values(running))
    async with harness.running(lease_timeout="500ms", heartbeat_interval="100ms"):
        await harness.wait_for(suspected)
    assert states == ["waiting1"]


class Overtaken:
    """A database that lets the lease of a runner expire before a rescue, as a clock that steps does."""

    def __init__(self, harness: Harness, runner: Engine) -> None:
        self._harness, self._runner = harness, runner

    async def expire(self) -> None:
        row = self._runner.database.tables.runner
        past = db_later(db_now(), -60)
        expired = {"lease_until": db_later(db_now(), -1), "started_at": past, "available_since": past}
        await self._harness.change(sa.update(row).where(row.c.id == self._runner.lease.id).values(expired))

    async def write(self, verb: Any, *arguments: Any, **options: Any) -> Any:
        await self.expire()
        return await self._runner.database.write(verb, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner.database, name)


async def test_a_rescue_without_a_result_does_not_allow_claims_of_suspects(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    lost = await harness.submit("work")
    table = harness.database.tables.task
    running = {"state": "running", "runner_id": 10**6, "fence": 1, "attempt": 1, "started_at": db_now()}
    await harness.change(sa.update(table).where(table.c.id == lost).values(running))
    runner = harness.runner()
    loop, overtaken = runner.rescue_loop, Overtaken(harness, runner)
    for pace in ("_pace", "_task_pace"):
        monkeypatch.setattr(loop, pace, Pace(every=0.0, most=0.0))
    await loop.look()
    await runner.lease.register()
    monkeypatch.setattr(runner.lease, "_trusts_from", 0.0)

    async def renew() -> None:
        """Renew the lease after its end, as if the database had been available for a minute."""
        await runner.lease.renew(0, lambda _: None)
        proof = {"available_since": db_later(db_now(), -60)}
        await harness.change(sa.update(harness.database.tables.runner).values(proof))
        monkeypatch.setattr(runner.lease, "_trusts_from", 0.0)

    await overtaken.expire()
    await loop.run()
    assert not loop.is_done(), "the database does not let this runner search"

    await renew()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_database", overtaken)
        await loop.run()
    assert not loop.is_done(), "the search had a result, and the rescue had none"

    await renew()
    await loop.run()
    assert loop.is_done()
    assert await harness.state(lost) == "waiting"
    await runner.database.dispose()


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
def test_the_waiting_tasks_of_a_handler_are_found_in_each_pool(executor: str) -> None:
    async def work() -> None: ...

    def plain() -> None: ...

    in_flight = InFlight(1, 1, 0, 1)
    handler = Handler("work", work if executor == "async" else plain, Options(executor=executor))
    running = in_flight.add(Claimed(7, "default", "work", None, "{}", 1, None, 1, 5, 1, None, 0, None), handler)
    assert running is not None
    assert in_flight.unstarted_of("other") == []
    assert in_flight.unstarted_of("work") == [running]
    assert in_flight.unstarted_of("work") == []
