"""The capacity of runners, with numbers computed by hand."""

from math import inf
from typing import Any

import pytest

from runner.policy.breaker import OpenBreaker
from runner.policy.capacity import (
    CapacityRow,
    Demand,
    Pool,
    Situation,
    capacity_rows,
)
from runner.policy.limits import LimitUsage, SharedLimits
from runner.policy.rate import MOST_BY_RUN_TIME, Rate
from runner.queries.capacity import CAPACITY_COLUMNS, drained_in
from runner.text.columns import cells as cells_of

OPEN = OpenBreaker(probes=1, next_in=9.0, wait=9.0)
SEND, MAKE = ("mail", "send"), ("reports", "make")


def texts(row: CapacityRow) -> list[str]:
    return cells_of(CAPACITY_COLUMNS, row)


def about(number: float) -> Any:
    return pytest.approx(number)


def one(situation: Situation) -> CapacityRow:
    (row,) = capacity_rows(situation)
    return row


def limited(*limits: object, kind: str = "queue", name: str = "mail", breaker: OpenBreaker | None = None) -> LimitUsage:
    return LimitUsage(kind, name, SharedLimits(*limits), breaker=breaker)  # type: ignore[arg-type]


def test_slots_divided_by_the_duration_are_the_capacity() -> None:
    # 10 slots do 10 x 60 / 3 = 200 attempts a minute; 120 arrive, so that 80 a minute are left for 400.
    row = one(Situation({SEND: Demand(100, 120, 3.0, 400, 77.0)}, [Pool(10, frozenset({SEND}))]))
    assert (row.slots, row.per_minute, row.bound.name) == (10, about(200), "slots")
    assert (row.utilisation, row.behind, row.drained_in) == (about(0.6), about(2), about(5))


def test_a_slot_executes_a_chunk_at_the_same_time_and_a_limit_counts_its_tasks() -> None:
    # 2 slots do 2 x 10 x 60 / 30 = 40 attempts a minute in chunks of 10, and 4 without chunks.
    demand = Demand(10, 10, 30.0, 60, per_slot=10)
    pools = [Pool(2, frozenset({SEND, MAKE}))]
    row = one(Situation({SEND: demand}, pools))
    assert (row.per_minute, row.drained_in, row.bound.name) == (about(40), about(2), "slots")
    limited_row = one(Situation({SEND: demand}, pools, [limited(5)]))
    assert (limited_row.per_minute, limited_row.bound.name) == (about(10), "queue mail: at most 5 running")
    # The chunks need 0.5 slots, and the other tasks the rest: 1.5 x 60 / 30 = 3 attempts a minute.
    rows = {row.name: row for row in capacity_rows(Situation({SEND: demand, MAKE: Demand(3, 3, 30.0, 1)}, pools))}
    assert rows["reports"].per_minute == about(3)


@pytest.mark.parametrize(
    ("done", "finished", "per_day", "cell"),
    [
        (0, 0, 288_000, "288,000"),  # 200 attempts a minute
        (120, 100, 240_000, "240,000"),  # each task needs 1.2 attempts
        (20, 0, None, "-"),  # each attempt failed, so that the attempts per task are unknown
    ],
)
def test_the_capacity_per_day_counts_tasks_with_the_measured_attempts(
    done: float, finished: float, per_day: float | None, cell: str
) -> None:
    demand = Demand(100, 120, 3.0, done=done, finished=finished)
    row = one(Situation({SEND: demand}, [Pool(10, frozenset({SEND}))]))
    assert (row.per_day, texts(row)[3]) == (None if per_day is None else about(per_day), cell)
    unknown = one(Situation({SEND: Demand(100, 100)}, [Pool(10, frozenset({SEND}))]))
    assert (unknown.per_day, texts(unknown)[3]) == (None, "-")
    ghost = one(Situation({SEND: Demand(100, 100, 3.0)}))
    assert (ghost.per_day, texts(ghost)[3]) == (0, "0")


@pytest.mark.parametrize("seconds", [0.0004, 0.0])
def test_above_1000_attempts_a_second_the_run_time_no_longer_limits(seconds: float) -> None:
    # 100 slots with 0.4 ms each would do 15,000,000 attempts a minute, which no database does.
    idle = one(Situation({SEND: Demand(300, 300, seconds, done=300, finished=300)}, [Pool(100, frozenset({SEND}))]))
    assert (idle.per_minute, idle.bound.at_least) == (MOST_BY_RUN_TIME, True)
    cells = texts(idle)
    assert cells == ["mail", "300", ">60,000", ">86.4 M", "<2 %", "0", "-", "-", "-", "claims and settles"]
    burst = one(Situation({SEND: Demand(6_000, 6_000, seconds, 27_000, 2.0)}, [Pool(100, frozenset({SEND}))]))
    cells = texts(burst)
    assert cells[2:] == [">60,000", ">86.4 M", "<11 %", "27,000", "2s", "<27s", "<30s", "claims and settles"]


def test_the_attempts_that_ended_raise_a_capacity_that_the_run_time_does_not_limit() -> None:
    pools = [Pool(100, frozenset({SEND}))]
    idle = one(Situation({SEND: Demand(90_000, 90_000, 0.0004, done=90_000)}, pools))
    assert texts(idle)[2:5:2] == [">90,000", "<100 %"]
    # With a backlog, the runners do as many as they can.
    busy = one(Situation({SEND: Demand(120_000, 120_000, 0.0004, 5_000, 3.0, done=90_000)}, pools))
    assert (busy.per_minute, busy.bound.at_least, busy.drained_in) == (90_000, False, inf)


def test_a_slow_machine_promises_no_capacity_that_it_has_not_shown() -> None:
    demand = Demand(40_000, 40_000, 0.0004, 50_000, 75.0, done=30_000)
    row = one(Situation({SEND: demand}, [Pool(100, frozenset({SEND}))]))
    assert (row.per_minute, row.bound.at_least, row.drained_in) == (30_000, True, None)
    assert texts(row)[4:] == ["-", "50,000", "1m15s", "<1m40s", "unknown", "claims and settles"]


def test_a_limit_below_the_capacity_of_short_tasks_decides() -> None:
    limits = [limited(None, None, Rate(50, 60.0))]
    row = one(Situation({SEND: Demand(10, 10, 0.0004)}, [Pool(100, frozenset({SEND}))], limits))
    assert (row.per_minute, row.bound.at_least, row.bound.name) == (50, False, "queue mail: 50/min started")


def test_a_queue_with_more_arrivals_than_capacity_is_never_drained() -> None:
    row = one(Situation({SEND: Demand(320, 320, 3.0, 400)}, [Pool(10, frozenset({SEND}))]))
    assert (row.drained_in, row.surplus, row.utilisation) == (inf, about(-120), about(1.6))


@pytest.mark.parametrize(
    ("limit", "per_minute", "name"),
    [
        (limited(5), 100, "queue mail: at most 5 running"),
        (limited(None, None, Rate(50, 60.0)), 50, "queue mail: 50/min started"),
        (limited(50), 200, "slots"),
        (limited(None, None, Rate(5, 60.0), kind="handler", name="send"), 5, "handler send: 5/min started"),
        (
            limited(kind="handler", name="send", breaker=OPEN),
            0,
            "the breaker of handler send is open",
        ),
    ],
)
def test_the_tightest_bound_decides(limit: LimitUsage, per_minute: float, name: str) -> None:
    demands = {SEND: Demand(10, 10, 3.0, 400)}
    row = one(Situation(demands, [Pool(10, frozenset({SEND}))], [limit]))
    assert (row.per_minute, row.bound.name) == (about(per_minute), name)


def test_a_pause_and_missing_runners_leave_nothing() -> None:
    demands = {SEND: Demand(10, 10, 3.0, 400)}
    paused = one(Situation(demands, [Pool(10, frozenset({SEND}))], paused=frozenset({("queue", "mail")})))
    assert (paused.per_minute, paused.bound.name, paused.drained_in) == (0, "queue mail is paused", inf)
    assert one(Situation(demands)).bound.name == "no runner takes send"


def test_tasks_that_no_runner_takes_keep_their_queue_from_draining() -> None:
    ghost, other = ("mail", "ghost"), ("mail", "other")
    pools = [Pool(10, frozenset({SEND}))]
    for seconds in (3.0, None):  # without an attempt that ended, the time of the others is unknown
        row = one(Situation({SEND: Demand(10, 10, seconds, 4), ghost: Demand(0, 0, None, 1)}, pools))
        assert (row.drained_in, row.deciding.bound.name) == (inf, "no runner takes ghost")
        assert texts(row)[-2:] == ["not now", "no runner takes ghost"]
    both = one(Situation({ghost: Demand(backlog=2), other: Demand(backlog=1), SEND: Demand(10, 10, 3.0)}))
    assert both.bound.name == "no runner takes ghost and 1 more"


def test_backlogs_share_the_slots_that_arrivals_leave() -> None:
    # Arrivals need 1 + 3 of 10 slots. Backlogs of 60 x 1 s and 5 x 24 s, 1 and 2 minutes of a slot, share the other 6:
    # mail gets 1 + 2 slots, reports 3 + 4. Both are done after 3 minutes of work in 6 slots: half a minute.
    demands = {SEND: Demand(60, 60, 1.0, 60), MAKE: Demand(7.5, 7.5, 24.0, 5)}
    rows = {row.name: row for row in capacity_rows(Situation(demands, [Pool(10, frozenset({SEND, MAKE}))]))}
    assert rows["mail"].per_minute == about(3 * 60)
    assert rows["reports"].per_minute == about(7 * 60 / 24)
    assert [row.drained_in for row in rows.values()] == [about(0.5)] * 2
    # Without its backlog, the other one gets the rest.
    alone = {SEND: demands[SEND], MAKE: demands[MAKE]._replace(backlog=0)}
    rows = {row.name: row for row in capacity_rows(Situation(alone, [Pool(10, frozenset({SEND, MAKE}))]))}
    assert rows["mail"].per_minute == about(7 * 60)


def test_a_queue_is_drained_with_its_slowest_handler() -> None:
    slow, quick = ("mail", "slow"), ("mail", "quick")
    demands = {slow: Demand(0, 0, 1.0, 60), quick: Demand(0, 0, 1.0, 600)}
    limit = limited(1, kind="handler", name="slow")
    row = one(Situation(demands, [Pool(100, frozenset({slow, quick}))], [limit]))
    # All 100 slots would need 660 / 6000 minutes, but the limit does 60 a minute.
    assert (row.drained_in, row.deciding.bound.name) == (about(1), "handler slow: at most 1 running")


def test_unknown_durations_are_not_guessed() -> None:
    row = one(Situation({SEND: Demand(10, 10, None, 400)}, [Pool(10, frozenset({SEND}))]))
    assert (row.per_minute, row.utilisation, row.drained_in, row.behind) == (None, None, None, None)


def test_rows_can_be_of_handlers() -> None:
    demands = {("a", "send"): Demand(1, 1, 1.0, 3), ("b", "send"): Demand(2, 2, 1.0, 4)}
    (row,) = capacity_rows(Situation(demands, [Pool(1, frozenset(demands))]), "handler")
    assert (row.name, row.demand.arrivals, row.demand.backlog) == ("send", 3, 7)


def test_attempts_that_a_limit_holds_back_take_no_slots_from_others() -> None:
    # 10 slots. The failing queue would keep 15 busy, but its limit is 2: 8 are left for mail, which needs 4.
    failing = ("sms", "call")
    demands = {failing: Demand(30, 300, 3.0, 900), SEND: Demand(240, 240, 1.0, 40)}
    limits = [limited(2, kind="handler", name="call")]
    rows = {row.name: row for row in capacity_rows(Situation(demands, [Pool(10, frozenset(demands))], limits))}
    assert (rows["mail"].per_minute, rows["mail"].drained_in) == (about(480), about(40 / 240))
    assert (rows["sms"].bound.name, rows["sms"].drained_in) == ("handler call: at most 2 running", inf)
    # A paused one takes none either.
    paused = Situation(demands, [Pool(10, frozenset(demands))], paused=frozenset({("queue", "sms")}))
    rows = {row.name: row for row in capacity_rows(paused)}
    assert rows["mail"].per_minute == about(600)


def test_a_queue_with_a_throughput_of_its_own_is_steady_beside_one_that_grows() -> None:
    # Both need more than the 10 slots; mail is claimed first, and did what arrived.
    failing = ("sms", "call")
    demands = {failing: Demand(60, 400, 3.0, 900, done=120), SEND: Demand(240, 240, 1.0, 4, done=238)}
    rows = {row.name: row for row in capacity_rows(Situation(demands, [Pool(10, frozenset(demands))]))}
    assert texts(rows["mail"])[4:9:4] == ["101 %", "steady"]
    assert drained_in(rows["mail"]) == "steady: about as many attempts end as arrive (slots)"
    assert drained_in(rows["sms"]).startswith("not at this rate: +2")


def test_a_paused_queue_without_arrivals_is_not_drained_now() -> None:
    demands = {SEND: Demand(0, 0, 1.0, 4)}
    row = one(Situation(demands, [Pool(10, frozenset({SEND}))], paused=frozenset({("queue", "mail")})))
    assert (texts(row)[8], drained_in(row)) == ("not now", "not now: queue mail is paused")
