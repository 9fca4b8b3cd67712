"""Runners keep limits together, and use the room of a limit as soon as there is some."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from math import inf
from typing import Any

import pytest
import sqlalchemy as sa

from runner import handler
from runner.db.types import db_later, db_now
from runner.engine.claiming.limited_claims import LimitedClaims
from runner.engine.slots import Slots
from runner.errors import InvalidHandler
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from runner.policy import lanes as policy
from runner.policy.claim_order import STRICT, AgedOrder, ClaimOrder
from runner.policy.lanes import Head, Lane, Lanes, LaneSchedule
from runner.policy.limits import read_limits
from runner.policy.positions import LanePosition
from tests.engine.harness import Harness, at_work, until
from tests.store.runners import Runner
from tests.store.test_limits import settled

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
        await harness.wait_for(*ids)
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
        await harness.wait_for(*quick)
        await until(lambda: meter.running["slow"] == 2)
        gate.set()
        await until(lambda: meter.done.count("slow") == 10)
    assert meter.most["slow"] == 2


async def test_the_end_of_a_task_under_a_limit_makes_room(harness: Harness) -> None:
    rooms: dict[str, bool] = {}

    def note(name: str) -> None:
        rooms[name] = any(each.makes_room for each in runner.worker.in_flight.tasks.values())

    @harness.handler("free")
    async def free() -> None:
        note("free")

    @harness.handler("shared")
    async def shared() -> None:
        note("shared")

    @harness.handler("own", limit_per_runner=2)
    async def own() -> None:
        note("own")

    await limit(harness, "handler", "shared", concurrency="2")
    async with harness.running(poll_interval="1h") as runner:
        for name in ("free", "shared", "own"):
            await harness.wait_for(await harness.submit(name))
    assert rooms == {"free": False, "shared": True, "own": True}


async def test_the_end_of_a_task_during_a_claim_opens_its_limit(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, submits, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    gates = {name: asyncio.Event() for name in ("first", "second", "third")}
    gates["third"].set()

    @harness.handler("work")
    async def work(name: str) -> None:
        started.set()
        await gates[name].wait()

    reopen, report = LaneSchedule.reopen, LimitedClaims._report_locked

    def reopened(schedule: LaneSchedule, queue: str, handler: str) -> bool:
        has_ended.set()
        return reopen(schedule, queue, handler)

    async def reported(claims: LimitedClaims, busy: list[Lane]) -> None:
        if submits.is_set():  # between the count of a claim and the record of its result
            gates["first"].set()
            await has_ended.wait()
        await report(claims, busy)

    monkeypatch.setattr(LaneSchedule, "reopen", reopened)
    monkeypatch.setattr(LimitedClaims, "_report_locked", reported)
    monkeypatch.setattr(policy, "FULL", inf)
    await limit(harness, "queue", "mail", concurrency="2")
    await harness.submit("work", {"name": "first"}, queue="mail")
    async with harness.running(poll_interval="1h"):
        await started.wait()
        submits.set()
        await harness.submit("work", {"name": "second"}, queue="mail", priority=9)
        await harness.wait_for(await harness.submit("work", {"name": "third"}, queue="mail", priority=9))
        gates["second"].set()


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
        await harness.wait_for(*quick)
        await until(lambda: meter.running["acme"] == 2)
        gate.set()
        await until(lambda: meter.done.count("acme") == 10)
    assert meter.most["acme"] == 2


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
        await harness.wait_for(*ids)


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


async def test_a_slow_handler_leaves_slots_to_quick_ones(harness: Harness) -> None:
    meter, gate = Meter(), asyncio.Event()

    @harness.handler("slow", limit_per_runner=3)
    async def slow() -> None:
        with meter.counting("slow"):
            await gate.wait()

    @harness.handler("quick")
    async def quick() -> None:
        with meter.counting("quick"):
            pass

    for _ in range(8):
        await harness.submit("slow", priority=9)
    async with harness.running(concurrency=4):
        await until(lambda: meter.running["slow"] == 3)
        await harness.wait_for(*[await harness.submit("quick") for _ in range(5)])
        assert meter.most["slow"] == 3
        gate.set()
        await until(lambda: meter.done.count("slow") == 8)
    assert meter.most["slow"] == 3


async def test_lanes_with_and_without_shared_limits_keep_the_limit_per_runner_together(harness: Harness) -> None:
    meter, gate = Meter(), asyncio.Event()

    @harness.handler("slow", limit_per_runner=2)
    async def slow() -> None:
        with meter.counting("slow"):
            await gate.wait()

    @harness.handler("quick")
    async def quick() -> None: ...

    edit = LimitEdit({"concurrency": "9"}, new=True)
    await harness.database.write(set_limits, PauseTarget(PauseKind.QUEUE, "mail"), edit, Actor("ana", "desk"))
    ids = [await harness.submit("slow", queue=queue) for queue in ("mail", "sms") for _ in range(3)]
    async with harness.running():
        await until(lambda: meter.running["slow"] > 1)
        await harness.wait_for(await harness.submit("quick"))
        gate.set()
        await harness.wait_for(*ids)
    assert meter.most["slow"] == 2


async def test_suspects_keep_the_limit_per_runner(harness: Harness) -> None:
    meter, gate = Meter(), asyncio.Event()

    @harness.handler("slow", limit_per_runner=1)
    async def slow() -> None:
        with meter.counting("slow"):
            await gate.wait()

    @harness.handler("quick")
    async def quick() -> None: ...

    ids = [await harness.submit("slow") for _ in range(6)]
    task = harness.database.tables.task
    await harness.change(sa.update(task).where(task.c.id.in_(ids[2:])).values(rescues=2, max_attempts=9))
    async with harness.running():
        await until(lambda: meter.running["slow"] > 0)
        await harness.wait_for(await harness.submit("quick"))
        gate.set()
        await harness.wait_for(*ids)
    assert meter.most["slow"] == 1


async def test_a_suspect_starts_as_soon_as_the_limit_per_runner_has_room(harness: Harness) -> None:
    started: list[str] = []
    gates = {name: asyncio.Event() for name in ("other", "first", "second")}

    @harness.handler("work", limit_per_runner=2)
    async def work(name: str) -> None:
        started.append(name)
        await gates[name].wait()

    ids = [await harness.submit("work", {"name": name}) for name in gates]
    task = harness.database.tables.task
    await harness.change(sa.update(task).where(task.c.id.in_(ids[1:])).values(rescues=2, max_attempts=9))
    async with harness.running(poll_interval="1h", heartbeat_interval="1m", lease_timeout="5m"):
        await until(lambda: len(started) == 2)
        gates["other"].set()
        await until(lambda: len(started) == 3)
        for gate in gates.values():
            gate.set()
        await harness.wait_for(*ids)
    assert sorted(started[:2]) == ["first", "other"]


async def test_suspects_of_a_limited_handler_run_without_other_tasks(harness: Harness) -> None:
    meter = Meter()

    @harness.handler("work", limit_per_runner=1)
    async def work() -> None:
        with meter.counting("work"):
            await asyncio.sleep(0)

    ids = [await harness.submit("work") for _ in range(3)]
    task = harness.database.tables.task
    await harness.change(sa.update(task).where(task.c.id.in_(ids)).values(rescues=2, max_attempts=9))
    await limit(harness, "handler", "work", concurrency="2")
    await harness.work()
    assert (len(meter.done), meter.most["work"]) == (3, 1)


@pytest.mark.parametrize(
    ("order", "priority", "waited", "is_first"),
    [
        (STRICT, 1, 1_000, False),
        (STRICT, 5, 0, False),
        (STRICT, 5, 2, True),
        (STRICT, 9, 0, True),
        (AgedOrder(), 1, 1_000, True),
        (AgedOrder(), 1, 60, False),
        (AgedOrder(), 9, 0, True),
    ],
)
async def test_lanes_with_and_without_limits_have_their_turns_in_the_order_of_the_runner(
    harness: Harness, order: ClaimOrder, priority: int, waited: float, is_first: bool
) -> None:
    lanes, slots = Lanes(lambda _: True, LanePosition(0, 0), order), Slots("async", 4)
    limited, other = Lane("mail", "work", priority), Lane("default", "work", 5)
    lanes.survey([Head(limited, 0, -waited, paused=False, limited=True), Head(other, 0, -1, paused=False)])
    claims = LimitedClaims(harness.database, lanes, {}, lambda _: slots, lambda _: None, lambda _: None, {})
    assert [turn.lanes for turn in claims.turns(slots)] == ([[limited], [other]] if is_first else [[other], [limited]])


async def test_counts_continue_from_the_last_one_while_surveys_are_slow(harness: Harness) -> None:
    runner, lane = await Runner.enter(harness.database), Lane("mail", "work", 1)
    ids = [await harness.submit("work", queue="mail") for _ in range(9)]
    await limit(harness, "queue", "mail", concurrency="6")
    lanes, slots = Lanes(lambda _: True, runner.start), Slots("async", 4)
    claims = LimitedClaims(harness.database, lanes, runner.terms, lambda _: slots, lambda _: None, lambda _: None, {})

    async def claim(*, slow: bool, number: int = 1) -> int:
        return len(await claims.claim(runner.who, [lane], number, True, from_start=not slow))

    assert await claim(slow=True) == 1
    assert claims._last is not None
    claims._last = settled(claims._last)
    # Another program moves a running task into the queue: only a full count has it.
    task = harness.database.tables.task
    values = {"state": "running", "runner_id": runner.id, "claimed_at": db_later(db_now(), -60), "attempt": 1}
    await harness.change(sa.update(task).where(task.c.id.in_(ids[-2:])).values(values))
    assert await claim(slow=True) == 1
    claims._count_at = 0.0
    assert await claim(slow=True, number=5) == 2
    (last,) = claims._last.values()
    claims._last = {("queue", "of last week"): last._replace(taken_at=last.taken_at - 60)}
    assert await claim(slow=True) == 0
    assert [*claims._last] == [("queue", "mail")]
    assert await claim(slow=False) == 0
    assert claims._last is None


async def limits_of(harness: Harness, name: str) -> tuple[int | None, int | None]:
    handler = harness.database.tables.handler
    (row,) = await harness.rows(sa.select(handler).where(handler.c.name == name))
    return row.max_running, row.rate_limit


async def test_the_limits_of_the_code_apply_until_an_operator_sets_others(harness: Harness) -> None:
    @harness.handler("work", limits=read_limits(2, None, "5/s"))
    async def work() -> None: ...

    await harness.work()
    assert await limits_of(harness, "work") == (2, 5)
    await limit(harness, "handler", "work", concurrency="7")
    await harness.work()
    assert await limits_of(harness, "work") == (7, 5)
    target, default = PauseTarget(PauseKind.HANDLER, "work"), LimitEdit({}, default=True)
    await harness.database.write(set_limits, target, default, ANA)
    assert await limits_of(harness, "work") == (2, 5)
    harness.handler("work")(work)
    await harness.work()
    assert await limits_of(harness, "work") == (None, None)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"limit": 0}, "limit"), ({"limit_per_runner": -1}, "limit_per_runner"), ({"rate": "5/day"}, "rate")],
)
def test_a_limit_that_is_not_valid_is_refused_at_the_definition(options: Any, name: str) -> None:
    with pytest.raises(InvalidHandler, match=f"'h'.*{name}"):
        handler("h", **options)
