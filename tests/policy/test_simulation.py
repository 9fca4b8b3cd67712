"""Simulated queues: cases computed by hand, floods, limits and batches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from runner.policy.capacity import Pool
from runner.policy.claim_order import STRICT, AgedOrder, ClaimOrder, known_order
from runner.policy.histogram import Histogram
from runner.policy.lanes import Lane
from runner.policy.limits import SharedLimits
from runner.policy.rate import Rate
from runner.policy.retry import MOST_ATTEMPTS, Retries, parse_plan
from runner.policy.simulation import Backlog, Configuration, QueueResult, Simulation, TaskKind, Workload

LOW, HIGH = Lane("low", "work", 1), Lane("high", "work", 9)
PLACES = frozenset({("low", "work"), ("high", "work")})


def times(*seconds: float) -> Histogram:
    histogram = Histogram()
    for each in seconds:
        histogram.add([each])
    return histogram


def work(minutes: int = 10, arrivals: Mapping[Any, int] | None = None, **backlogs: int) -> Workload:
    lanes = {"low": LOW, "high": HIGH}
    return Workload(
        minutes,
        arrivals or {},
        {lanes[name]: Backlog(tasks, 0.0) for name, tasks in backlogs.items()},
        {work_key: times(2.0) for work_key in PLACES},
        {(lane.queue, lane.handler): [TaskKind(lane.priority, None, 1)] for lane in lanes.values()},
    )


def run(workload: Workload, slots: int = 2, order: ClaimOrder = STRICT, **options: Any) -> Mapping[str, QueueResult]:
    seed, most = options.pop("seed", 1), options.pop("most", 200_000)
    return Simulation(workload, Configuration(order, [Pool(slots, PLACES)], **options), seed, most).run()


def test_a_backlog_is_drained_as_computed_by_hand() -> None:
    # Two slots run tasks of 2 s: high has 4 tasks at 0, 0, 2, 2 s; low has 3 at 4, 4, 6 s.
    result = run(work(low=3, high=4))
    assert (result["high"].longest, result["high"].drained) == (2.0, 2.0)
    assert (result["low"].longest, result["low"].drained) == (6.0, 6.0)
    assert (result["low"].tasks, result["low"].started, result["low"].remaining) == (3, 3, 0)


def test_tasks_that_do_not_start_wait_until_the_end() -> None:
    # In one minute, one slot starts 31 tasks of 2 s: at 0, 2, ... 60 s.
    result = run(work(minutes=1, low=40), slots=1)
    assert (result["low"].started, result["low"].remaining, result["low"].longest, result["low"].drained) == (
        31,
        9,
        60,
        None,
    )


def flood() -> Workload:
    """A low task at the start, and 2 high tasks per slot-second of work, for 20 minutes."""
    return work(20, {(minute, ("high", "work")): 120 for minute in range(20)}, low=1, high=5)


def test_an_aged_order_starts_the_low_priority_in_a_flood_and_a_strict_one_does_not() -> None:
    strict, aged = run(flood()), run(flood(), order=AgedOrder())
    assert strict["low"].started == 0
    assert strict["low"].longest == 20 * 60
    assert aged["low"].started == 1
    # It waits for the 5 at the start and the 960 of the first 8 minutes, of which two start every 2 s.
    assert aged["low"].longest == 964


def test_weights_divide_the_slots() -> None:
    order = known_order("weighted:high=3,low=1")
    assert order is not None
    result = run(work(minutes=1, low=1_000, high=1_000), slots=8, order=order)
    assert result["high"].started / result["low"].started == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(
    ("limits", "started"),
    [
        (SharedLimits(running=1), 31),
        (SharedLimits(rate=Rate(10, 60.0)), 20),  # ten at the start, and one every 6 s
        (SharedLimits(running=1, rate=Rate(600, 60.0)), 31),
    ],
)
def test_limits_and_rates_hold(limits: SharedLimits, started: int) -> None:
    result = run(work(minutes=1, low=100, high=5), slots=50, limits={("queue", "low"): limits})
    assert result["low"].started in (started, started - 1 + (limits.rate is not None))
    assert result["high"].started == 5


def test_tenants_take_turns() -> None:
    kinds = [TaskKind(1, tenant, number) for tenant, number in (("big", 9), ("small", 1))]
    workload = work(minutes=1, low=400)
    tenants = Workload(1, {}, workload.backlogs, workload.durations, {("low", "work"): kinds})
    free = run(tenants, slots=10)
    limited = run(tenants, slots=10, limits={("queue", "low"): SharedLimits(per_tenant=1)})
    assert free["low"].started == 310
    assert limited["low"].started == 62  # one of each tenant every 2 s


def test_the_tasks_of_a_paused_queue_wait() -> None:
    result = run(work(low=3, high=3), paused=frozenset({("queue", "low")}))
    assert (result["low"].started, result["low"].drained, result["high"].started) == (0, None, 3)


def test_the_same_seed_gives_the_same_result() -> None:
    workload = work(low=300, high=300)
    varied = Workload(
        10, {}, workload.backlogs, {work_key: times(0.1, 3.0, 9.0) for work_key in PLACES}, workload.kinds
    )
    assert run(varied) == run(varied)
    assert run(varied) != run(varied, seed=2)


def test_many_tasks_are_simulated_in_batches() -> None:
    exact = run(work(minutes=600, low=4_000, high=1_000))
    rough = Simulation(work(minutes=600, low=4_000, high=1_000), Configuration(STRICT, [Pool(2, PLACES)]), 1, 500)
    result = rough.run()
    assert rough.batch == 10
    assert result["low"].started == exact["low"].started == 4_000
    assert result["low"].longest == pytest.approx(exact["low"].longest, rel=0.02)
    assert len(rough._lines) == 2


def failing(workload: Workload, plan: str, max_attempts: int, share: float = 1.0) -> Workload:
    return replace(workload, retries=dict.fromkeys(PLACES, Retries(share, parse_plan(plan), max_attempts)))


def test_failed_attempts_come_back_by_their_retry_plan_as_computed_by_hand() -> None:
    # One slot: 3 tasks start at 0, 2, 4 s, and their second attempts, due at 2, 4, 6 s, at 6, 8, 10 s.
    result = run(failing(work(low=3), "0s", 2), slots=1)["low"]
    assert (result.tasks, result.started, result.retries, result.remaining) == (3, 3, 3, 0)
    assert (result.longest, result.drained) == (4.0, 10.0)


def test_a_delayed_attempt_meets_the_tasks_of_its_time() -> None:
    # The low task fails at 2 s. At 62 s it finds 60 tasks of the second minute, which need 2 s each, until 180 s.
    fails = {("low", "work"): Retries(1.0, parse_plan("1m"), 2)}
    busy = replace(work(4, {(1, ("high", "work")): 60}, low=1), retries=fails)
    assert run(busy, slots=1)["low"].longest == pytest.approx(118)
    assert run(replace(work(4, low=1), retries=fails), slots=1)["low"].longest == 0


@pytest.mark.parametrize(("plan", "most", "retries"), [("never", 5, 0), ("1s", 1, 0), ("1s", 5, 4), ("1s,1h", 5, 1)])
def test_attempts_end_with_the_plan_the_maximum_and_the_simulated_time(plan: str, most: int, retries: int) -> None:
    assert run(failing(work(low=1), plan, most))["low"].retries == retries


def test_a_task_that_fails_forever_without_time_and_delay_ends() -> None:
    plans = dict.fromkeys(PLACES, Retries.of(10, 10, parse_plan("0s"), 10**9))
    instant = replace(work(low=1), durations={work_key: times(0.0) for work_key in PLACES}, retries=plans)
    assert run(instant)["low"].retries == MOST_ATTEMPTS - 1


def test_due_retries_that_still_wait_at_the_end_are_left() -> None:
    result = run(failing(work(minutes=1, low=40), "1s", 2), slots=1)["low"]
    assert (result.started, result.remaining) == (31, 9 + 29)


@pytest.mark.parametrize(
    ("attempts", "retries", "most", "share"),
    [(100, 0, 5, 0.0), (500, 400, 5, 1.0), (400, 400, 5, 1.0), (110, 10, 2, 0.1), (110, 10, 100, 1 / 11)],
)
def test_the_share_of_failures_gives_as_many_attempts_per_task_as_counted(
    attempts: int, retries: int, most: int, share: float
) -> None:
    assert Retries.of(attempts, retries, parse_plan("1s"), most).share == pytest.approx(share, abs=1e-6)


def test_batches_fail_in_part() -> None:
    workload = failing(work(minutes=60, low=4_000), "1s", 5, share=0.25)
    exact = run(workload, slots=20)["low"].retries
    rough = Simulation(workload, Configuration(STRICT, [Pool(20, PLACES)]), 1, 400).run()["low"].retries
    # Each task needs 1 + 1/4 + 1/16 + ... attempts.
    assert exact == pytest.approx(4_000 / 3, rel=0.1)
    assert rough == pytest.approx(exact, rel=0.1)
