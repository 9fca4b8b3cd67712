"""Each strategy while tasks keep coming: every submit wakes the runner, over at least three periods.

The tests start the periodic scans themselves, so that a period is as long as its submits take.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from runner.engine.events import TasksSubmitted
from runner.engine.runner import Engine
from runner.engine.slots import Slots
from runner.model.task import BUCKETS
from runner.operations.breaker import open_by_hand
from runner.policy.breaker import Breaker
from runner.policy.claim_order import AgedOrder, StrictOrder, WeightedOrder, known_order
from runner.policy.lanes import Lane
from runner.policy.limits import LIMITS
from runner.policy.polling import MODES, FixedDelay
from tests.engine.harness import Harness, at_work, until
from tests.engine.test_breakers import is_open
from tests.engine.test_limits import ANA, Meter, limit
from tests.engine.test_scans import NO_WAKES, SELDOM, counts
from tests.engine.test_slices import divided, owned

PERIODS = 3
SUBMITS = 5
"""Submits in each period."""


async def submit(harness: Harness, runner: Engine, *names: str, **options: Any) -> list[int]:
    """Submit a task of each handler, wake the runner, and wait until it has claimed all that it may."""
    ids = [await harness.submit(name, **options) for name in names]
    runner.events.publish(TasksSubmitted(frozenset(Lane(options.get("queue", "default"), name, 5) for name in names)))
    await runner.scans._scan_task
    await quiet(runner)
    return ids


async def quiet(runner: Engine) -> None:
    await until(lambda: runner.claimer.idle and not len(runner.worker.in_flight))


async def periodic_scan(runner: Engine, begin: Callable[[], None] | None = None) -> None:
    """The periodic scan of the poll mode, or another one."""
    runner.scans._begin_soon(begin or runner.claimer.scope.begin)
    await runner.scans._scan_task
    await quiet(runner)


def own_scan(runner: Engine) -> Callable[[], None]:
    (scan,) = runner._own_scans
    return lambda: runner.claimer.scope.begin_own(scan)


async def test_own_scans_keep_their_period(harness: Harness) -> None:
    done = counts(harness, "rare", "common")
    runner = harness.runner(scans="rare=1h", **SELDOM)
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        for period in range(PERIODS):
            for number in range(SUBMITS):
                await submit(harness, runner, "rare", "common")
                assert (done["rare"], done["common"]) == (SUBMITS * period, SUBMITS * period + number + 1)
            await periodic_scan(runner)
            assert done["rare"] == SUBMITS * period, "a scan of the others does not take it"
            await periodic_scan(runner, own_scan(runner))
            assert done["rare"] == SUBMITS * (period + 1)


@pytest.mark.slow
async def test_own_scans_keep_their_period_by_the_clock(harness: Harness) -> None:
    counts(harness, "rare", "common")
    runner = harness.runner(scans="rare=300ms", concurrency=200, **SELDOM)
    scans = 0
    begin = runner.claimer.scope.begin_own

    def count(scan: Any) -> None:
        nonlocal scans
        scans += 1
        begin(scan)

    runner.claimer.scope.begin_own = count  # type: ignore[method-assign]
    ids: list[int] = []
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        while scans < PERIODS:
            ids += [await harness.submit("rare"), await harness.submit("common")]
            runner.events.publish(TasksSubmitted())
            await asyncio.sleep(0.02)
        await harness.wait_for(*ids)
    history = harness.database.tables.history
    rare = await harness.rows(history.select().where(history.c.handler == "rare"))
    assert len({row.claimed_at for row in rare}) <= scans, "one claim takes all that a scan finds"


async def test_own_scans_keep_their_period_under_a_backlog_of_others(harness: Harness) -> None:
    begins, submitted, early = 0, 0, 0

    @harness.handler("rare")
    async def rare(begun: int) -> None:
        nonlocal early
        early += begun == begins

    @harness.handler("common")
    async def common() -> None:
        nonlocal submitted, begins
        submitted += 1
        await harness.submit("rare", {"begun": begins}, priority=9)
        runner.events.publish(TasksSubmitted(frozenset({Lane("default", "rare", 9)})))
        if submitted % 20 == 0:
            begins += 1
            own_scan(runner)()

    ids = [await harness.submit("common") for _ in range(20 * PERIODS)]
    runner = harness.runner(scans="rare=1h", concurrency=1, prefetch=0, **SELDOM)
    async with at_work(runner):
        await harness.wait_for(*ids)
        own_scan(runner)()
        runner.scans.soon()
        await until(lambda: runner.claimer.idle)
        history = harness.database.tables.history
        await quiet(runner)
        assert await harness.count(history, history.c.handler == "rare") == len(ids)
    assert early <= 2 * (PERIODS + 1), "the claim that reaches the tasks of the next period ends the scan"


async def test_an_own_scan_that_begins_while_another_scan_ends_is_not_lost(harness: Harness) -> None:
    done = counts(harness, "rare")
    runner = harness.runner(scans="rare=1h", **SELDOM)
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        await submit(harness, runner, "rare")
        scope, end = runner.claimer.scope, runner.claimer.suspects.claim

        async def begin_at_the_end(pools: Collection[Slots] | None = None) -> None:
            await end(pools)
            runner.claimer.suspects.claim = end  # type: ignore[method-assign]
            own_scan(runner)()  # as the tick does, whose scan starts in the next turn of the loop

        runner.claimer.suspects.claim = begin_at_the_end  # type: ignore[method-assign]
        runner.claimer.suspects._group = 1  # the scan ends with a claim of suspects
        await runner.claimer.scan()
        assert scope.is_new
        await runner.claimer.scan()
        await until(lambda: done["rare"] == 1)


class Patient(FixedDelay):
    """A mode of a user."""

    def wait(self, period: float, runners: int, random: float) -> float:
        return 2 * period


@pytest.mark.representatives(2)
@pytest.mark.parametrize("mode", ["fixed-rate", "fixed-delay", "spread", "throttle", f"{__name__}:Patient"])
async def test_scans_go_on_beside_submits(harness: Harness, mode: str) -> None:
    done = counts(harness, "loud", "quiet")
    async with harness.running(poll_mode=mode, poll_interval="60ms", **NO_WAKES) as runner:
        for period in range(PERIODS):
            await harness.submit("quiet")  # no submit wakes the runner for it
            while done["quiet"] <= period:
                await harness.submit("loud")
                runner.events.publish(TasksSubmitted(frozenset({Lane("default", "loud", 5)})))
                await asyncio.sleep(0.01)
    assert done["quiet"] == PERIODS


async def test_a_throttle_takes_one_batch_per_period(harness: Harness) -> None:
    done = counts(harness, "work")
    runner = harness.runner(poll_mode="throttle", claim_batch_size=3, **SELDOM)
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        for period in range(PERIODS):
            for _ in range(SUBMITS):
                await harness.submit("work")
                runner.events.publish(TasksSubmitted())
                await runner.scans._scan_task
                await until(lambda: not len(runner.worker.in_flight))
            assert done["work"] == 3 * (period + 1)
            runner.scans._begin_soon(runner.claimer.scope.begin)
            await runner.scans._scan_task
            await until(lambda: not len(runner.worker.in_flight))


async def test_tiers_take_failed_tasks_at_their_periods_only(harness: Harness) -> None:
    tried: list[int] = []
    done = counts(harness, "fresh")

    @harness.handler("failing", retry="1ms", max_attempts=100)
    async def failing() -> None:
        tried.append(1)
        raise ConnectionError

    runner = harness.runner(poll_mode="tiers:0=10m,50=20m,99=40m", **SELDOM)
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        await submit(harness, runner, "failing")
        for number in range(1, 2 * PERIODS + 1):
            before = len(tried)
            for _ in range(SUBMITS):
                await submit(harness, runner, "fresh")
                await asyncio.sleep(0.002)  # the next attempt is due
            assert len(tried) == before, "a submit takes no failed task"
            await periodic_scan(runner)
            assert (len(tried) > before) == (number % 2 == 0), "every second scan takes failed tasks"
    assert done["fresh"] == 2 * PERIODS * SUBMITS


async def test_tiers_keep_their_periods_under_a_backlog(harness: Harness) -> None:
    tries, begins = Counter[int](), 0

    @harness.handler("failing", retry="1ms", max_attempts=1000)
    async def failing() -> None:
        tries[begins] += 1
        raise ConnectionError

    @harness.handler("fresh")
    async def fresh(number: int) -> None:
        nonlocal begins
        await asyncio.sleep(0.001)
        if number % 20 == 10:
            begins += 1
            runner.claimer.scope.begin()
            runner.claimer.scope.begin()

    await harness.submit("failing", priority=9)
    ids = [await harness.submit("fresh", {"number": number}) for number in range(20 * PERIODS)]
    runner = harness.runner(poll_mode="tiers:0=10m,2000=20m", concurrency=1, prefetch=0, **SELDOM)
    async with at_work(runner):
        await harness.wait_for(*ids)
    assert sum(tries.values()) <= 3 * (PERIODS + 1), "not between the scans of their tier"


@pytest.mark.representatives(2)
@pytest.mark.parametrize("kind", ["queue", "handler", "tenant", "runner"])
async def test_a_limit_holds(harness: Harness, kind: str) -> None:
    meter, release = Meter(), asyncio.Event()
    own: dict[str, Any] = {"limit_per_runner": 2} if kind == "runner" else {}

    @harness.handler("work", **own)
    async def work() -> None:
        with meter.counting("work"):
            await release.wait()

    done = counts(harness, "other")
    if kind in ("queue", "handler"):
        await limit(harness, kind, "mail" if kind == "queue" else "work", concurrency="2")
    if kind == "tenant":
        await limit(harness, "handler", "work", per_tenant="2")
    runner = harness.runner(concurrency=8, **SELDOM)
    ids: list[int] = []
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        for period in range(PERIODS):
            for number in range(SUBMITS):
                ids.append(await harness.submit("work", queue="mail", tenant="acme"))
                await harness.submit("other")
                runner.events.publish(TasksSubmitted(frozenset({Lane("mail", "work", 5), Lane("default", "other", 5)})))
                await until(lambda: done["other"] == SUBMITS * period + number + 1)  # noqa: B023 - used in this turn
            await until(lambda: meter.running["work"] == 2)
            release.set()
            await harness.wait_for(*ids)
            release.clear()
    assert meter.most["work"] == 2
    assert len(meter.done) == PERIODS * SUBMITS


@pytest.mark.representatives(1)
@pytest.mark.parametrize("backlog", ["of others", "of its own"])
@pytest.mark.parametrize("kind", ["runner", "queue"])
async def test_a_backlog_takes_no_turns_from_other_claims(harness: Harness, kind: str, backlog: str) -> None:
    """Tasks with a limit are claimed apart from those without one."""
    own: dict[str, Any] = {"limit_per_runner": 4} if kind == "runner" else {}
    queues = {"limited": "mail", "plain": "default"}
    flood, few = ("plain", "limited") if backlog == "of others" else ("limited", "plain")
    order: list[str] = []

    async def body(name: str) -> None:
        order.append(name)
        await asyncio.sleep(0.001)
        if name == flood and (order.count(few) < 2 or len(order) < 30):
            await harness.submit(flood, queue=queues[flood])
            runner.events.publish(TasksSubmitted())

    @harness.handler("limited", **own)
    async def limited() -> None:
        await body("limited")

    @harness.handler("plain")
    async def plain() -> None:
        await body("plain")

    if kind == "queue":
        await limit(harness, "queue", "mail", concurrency="4")
    for _ in range(20):
        await harness.submit(flood, queue=queues[flood])
    urgent = await harness.submit(few, queue=queues[few], priority=9)
    ids = [urgent, await harness.submit(few, queue=queues[few])]
    runner = harness.runner(concurrency=2, prefetch=0, **SELDOM)
    runner.claimer.survey.pace.every = 0.02
    async with at_work(runner):
        await harness.wait_for(*ids)
        assert order.index(few) < 4, "the higher priority first"
        await until(lambda: runner.claimer.idle and not len(runner.worker.in_flight))


@pytest.mark.parametrize(("kind", "name"), [("handler", "work"), ("queue", "mail")])
async def test_a_rate_holds(harness: Harness, kind: str, name: str) -> None:
    done = counts(harness, "work", "other")
    await limit(harness, kind, name, rate="3/h")
    runner = harness.runner(**SELDOM)
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        for number in range(PERIODS * SUBMITS):
            await harness.submit("work", queue="mail")
            await harness.submit("other")
            runner.events.publish(TasksSubmitted())
            await until(lambda: done["other"] == number + 1)  # noqa: B023 - used in this turn
    assert done["work"] == 3


BREAKERS = {
    "failures": Breaker("3/min", probe="1h"),
    "errors": Breaker("3/min", errors=ConnectionError, probe="1h"),
    "opens_on": Breaker(opens_on=ConnectionError, probe="1h"),
    "by hand": Breaker("1000/min", probe="1h"),
}


@pytest.mark.representatives(2)
@pytest.mark.parametrize("kind", BREAKERS)
async def test_a_breaker_stays_open(harness: Harness, kind: str) -> None:
    calls, done = 0, counts(harness, "other")

    @harness.handler("sms", retry="1ms", max_attempts=100, breaker=BREAKERS[kind])
    async def sms() -> None:
        nonlocal calls
        calls += 1
        raise ConnectionError

    runner = harness.runner(concurrency=1, prefetch=0, **SELDOM)
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        if kind == "by hand":
            await harness.database.write(open_by_hand, "sms", ANA)
        else:
            for _ in range(3):
                await harness.submit("sms")
            runner.events.publish(TasksSubmitted())
        await until(is_open(harness))
        opened = calls
        for number in range(PERIODS * SUBMITS):
            await harness.submit("sms")
            await harness.submit("other")
            runner.events.publish(TasksSubmitted(frozenset({Lane("default", "sms", 5)})))
            await until(lambda: done["other"] == number + 1)  # noqa: B023 - used in this turn
    assert calls <= opened + 1, "at most the first probe, which follows at once"


class Newest(StrictOrder):
    """An order of a user: the lower priority first."""

    def of_lanes(self, task: Any, forward: bool = True) -> Any:
        return (task.priority if forward else task.priority.desc(),)

    def lane_key(self, priority: int, wait: float) -> Any:
        return priority, wait

    def sort_key(self, priority: int, run_at: Any, id: int) -> Any:
        return priority, run_at, id

    def rank(self, priority: int) -> int:
        return priority


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("order", "first"), [("strict", 9), ("aged:1h", 9), ("aged:1ms", 5), (f"{__name__}:Newest", 1)]
)
async def test_a_claim_order_holds(harness: Harness, order: str, first: int) -> None:
    ran: list[int] = []

    @harness.handler("work")
    async def work(priority: int) -> None:
        ran.append(priority)
        if len(ran) % 10 == 0 and len(ran) < 10 * PERIODS * 2:
            await asyncio.sleep(0.02)
            for other in (1, 9):
                await harness.submit("work", {"priority": other}, priority=other)
            runner.events.publish(TasksSubmitted(frozenset({Lane("default", "work", other) for other in (1, 9)})))

    for _ in range(60):
        await harness.submit("work", {"priority": 5}, priority=5)
    runner = harness.runner(claim_order=order, concurrency=1, prefetch=0, **SELDOM)
    async with at_work(runner):
        await until(lambda: len(ran) == 60 + 2 * (len(ran) // 10) or len(ran) >= 70)
    assert Counter(ran[10:14])[first] >= 1, ran
    if first != 5:
        assert all(first in ran[index : index + 4] for index in range(10, 50, 10)), ran
    else:
        assert set(ran[:60]) == {5}, "the backlog is older than a step per priority"


@pytest.mark.slow
async def test_weights_hold(harness: Harness) -> None:
    ran: list[str] = []

    @harness.handler("work")
    async def work(queue: str) -> None:
        ran.append(queue)
        if len(ran) < 120:
            await harness.submit("work", {"queue": queue}, queue=queue)
            runner.events.publish(TasksSubmitted(frozenset({Lane(queue, "work", 5)})))

    for _ in range(8):
        for queue in ("mail", "sms"):
            await harness.submit("work", {"queue": queue}, queue=queue)
    runner = harness.runner(claim_order="weighted:mail=3,sms=1", concurrency=4, prefetch=0, **SELDOM)
    async with at_work(runner):
        await until(lambda: len(ran) >= 120)
    share = Counter(ran[:100])["mail"]
    assert 65 <= share <= 85, f"three of four, not {share} of 100"


async def test_buckets_hold(harness: Harness) -> None:
    done = counts(harness, "work", "other")
    runner = harness.runner(buckets="0-499,700", **SELDOM)
    async with at_work(runner):
        await until(lambda: runner.claimer.idle)
        for number in range(PERIODS * SUBMITS):
            for bucket in (number, 500 + number, 700, 701):
                await harness.submit("work", bucket=bucket)
            await harness.submit("other", bucket=0)
            runner.events.publish(TasksSubmitted())
            await until(lambda: done["other"] == number + 1)  # noqa: B023 - used in this turn
            if number % SUBMITS == SUBMITS - 1:
                await periodic_scan(runner)
        await until(lambda: done["work"] == 2 * PERIODS * SUBMITS)
    history = harness.database.tables.history
    buckets = {row.bucket for row in await harness.rows(history.select())}
    assert buckets == {*range(PERIODS * SUBMITS), 700}


def test_each_strategy_of_the_code_has_a_test_here() -> None:
    text = Path(__file__).read_text()
    assert [mode for mode in MODES if f'"{mode}"' not in text and f'"{mode}:' not in text] == []
    assert {limit.name for limit in LIMITS} == {"concurrency", "concurrency per tenant", "rate", "breaker"}
    assert {*Breaker._fields} - {"probe", "probes"} == {*BREAKERS} - {"by hand"}
    assert {type(known_order(name)) for name in ("strict", "aged", "weighted:mail=3")} == {
        StrictOrder,
        AgedOrder,
        WeightedOrder,
    }


OWN_SLICES = f"{__name__}:Parity"


class Parity:
    """Even and odd buckets."""

    def share(self, member: str, members: frozenset[str]) -> range:
        return range(sorted(members).index(member), BUCKETS, len(members))


@pytest.mark.representatives(2)
@pytest.mark.parametrize("slices", [("0/2", "1/2"), ("live", "live"), ("single", "single"), (OWN_SLICES, OWN_SLICES)])
async def test_slices_hold(harness: Harness, slices: tuple[str, str]) -> None:
    counts(harness, "work")
    runners = [harness.runner(slice=text, lease_timeout="3s", **SELDOM) for text in slices]
    async with AsyncExitStack() as stack:
        for runner in runners:
            await stack.enter_async_context(at_work(runner))
        is_live = "live" in slices or OWN_SLICES in slices
        await until(lambda: divided(*runners) if is_live else sum(map(len, map(owned, runners))) == BUCKETS)
        ids: list[int] = []
        for number in range(PERIODS * SUBMITS):
            ids.append(await harness.submit("work", bucket=number * 67 % 1000))
            for runner in runners:
                runner.events.publish(TasksSubmitted())
        await harness.wait_for(*ids)
        history = harness.database.tables.history
        rows = await harness.rows(history.select())
        by_id = {runner.lease.id: runner.slices._buckets for runner in runners if runner.slices}
    by_runner: defaultdict[int, set[int]] = defaultdict(set)
    for row in rows:
        by_runner[row.runner_id].add(row.bucket)
    assert all(buckets <= by_id[runner_id] for runner_id, buckets in by_runner.items())
    assert len(by_runner) == (1 if "single" in slices else 2)
