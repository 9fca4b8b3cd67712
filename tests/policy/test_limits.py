from datetime import UTC, datetime
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from runner.errors import InvalidEdit, InvalidInput
from runner.operations.limit import LimitEdit, edited, parse_edit
from runner.policy.claim_policy import LIMITED
from runner.policy.lanes import Lane, LaneSchedule
from runner.policy.limits import LimitUsage, SharedLimits, retry_in, room
from runner.policy.rate import Rate
from runner.store.claim.tenants import shares

NOW = 1_000_000.0
MAIL, BULK = Lane("mail", "work", 1), Lane("bulk", "work", 1)


@pytest.mark.parametrize(
    ("text", "rate", "shown"),
    [
        ("5/s", Rate(5, 1.0), "5/s"),
        ("100/min", Rate(100, 60.0), "100/min"),
        (" 2,000 / hours ", Rate(2_000, 3600.0), "2000/h"),
        ("10/5min", Rate(10, 300.0), "10/5min"),
        ("1/90s", Rate(1, 90.0), "1/90s"),
    ],
)
def test_a_rate_is_read_and_shown(text: str, rate: Rate, shown: str) -> None:
    assert (Rate.parse(text), str(rate)) == (rate, shown)


@pytest.mark.parametrize("text", ["", "5", "5/", "/s", "0/s", "-1/s", "5/day", "1.5/s", "5/0s", "5/s/s", f"{10**13}/s"])
def test_another_text_is_no_rate(text: str) -> None:
    with pytest.raises(InvalidEdit):
        Rate.parse(text)


def test_a_token_is_back_after_each_interval() -> None:
    rate, spent = Rate(6, 60.0), Rate(6, 60.0).after(None, NOW, 6)
    assert [rate.available(spent, NOW + seconds) for seconds in (0, 9.9, 10, 35, 60, 600)] == [0, 0, 1, 3, 6, 6]
    assert rate.wait(spent, NOW + 4) == pytest.approx(6)


def test_a_clock_that_was_set_back_empties_the_bucket_for_one_period_at_most() -> None:
    rate = Rate(6, 60.0)
    spent = rate.after(None, NOW, 6)
    assert rate.available(spent, NOW - 3_600) == 0
    assert rate.after(spent, NOW - 3_600, 0) == NOW - 3_540


def usage(running: int = 0, spent: float | None = None, *, limits: SharedLimits, tenant: str = "") -> LimitUsage:
    return LimitUsage("queue", "mail", limits, NOW, spent, {tenant: running}, {"runner 1 (web-1)": running})


def test_the_room_is_the_least_of_all_limits() -> None:
    limits = SharedLimits(running=5, rate=Rate(3, 1.0))
    assert [room(usage(running, limits=limits)) for running in (0, 4, 5, 9)] == [3, 1, 0, 0]


def test_only_the_end_of_a_task_makes_room_in_a_full_queue() -> None:
    rate = Rate(6, 60.0)
    limits, spent = SharedLimits(running=5, rate=rate), rate.after(None, NOW, 6)
    assert retry_in(usage(5, spent, limits=limits)) == inf
    assert retry_in(usage(4, spent, limits=limits)) == pytest.approx(10)


def explained(of: LimitUsage, **values: Any) -> list[str]:
    task = SimpleNamespace(tenant=None) if not values else SimpleNamespace(**values)
    facts: Any = SimpleNamespace(task=task, limits=[of], later=False, at=datetime.now(UTC))
    return [each.text for each in LIMITED.explain(facts, UTC)]


def test_a_full_limit_is_explained_with_its_holders() -> None:
    text = "Queue mail runs at most 5 tasks at the same time; running are 5: 5 on runner 1 (web-1)."
    assert explained(usage(5, limits=SharedLimits(running=5))) == [text]
    assert explained(usage(4, limits=SharedLimits(running=5))) == []


def test_a_full_tenant_explains_only_its_own_tasks() -> None:
    full = usage(2, limits=SharedLimits(per_tenant=2), tenant="acme")
    text = "Queue mail runs at most 2 tasks per tenant at the same time; tenant acme has 2 running."
    assert explained(full, tenant="acme") == [text]
    assert explained(full, tenant="bolt") == explained(full) == []


def test_an_empty_bucket_is_explained_with_its_next_token() -> None:
    rate = Rate(6, 60.0)
    text = "Queue mail starts at most 6/min; the next task may start in 10s."
    assert explained(usage(0, rate.after(None, NOW, 6), limits=SharedLimits(rate=rate))) == [text]


def test_an_edit_changes_only_the_limits_that_it_names() -> None:
    limits = SharedLimits(5, 2, Rate(1, 1.0))
    assert edited(limits, {"concurrency": "10", "rate": "none"}) == SharedLimits(10, 2, None)
    assert parse_edit("concurrency=10 rate=none") == LimitEdit({"concurrency": "10", "rate": "none"})
    assert parse_edit(" default ") == LimitEdit({}, default=True)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "", "1" * 30])
def test_a_limit_is_a_whole_number_above_zero(value: str) -> None:
    with pytest.raises(InvalidEdit, match="concurrency"):
        edited(SharedLimits(), {"concurrency": value})


def test_an_unknown_limit_is_refused_with_the_similar_one() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'concurrency'"):
        parse_edit("concurency=5")


def test_tasks_are_divided_in_turns() -> None:
    rooms = {"a": 1, "b": 5, "c": 0, "d": 5}
    assert shares(list(rooms), rooms.__getitem__, 6) == {"a": 1, "b": 3, "d": 2}
    assert shares(list(rooms), rooms.__getitem__, 1) == {"a": 1}
    assert shares(["c", "d"], rooms.__getitem__, 1) == {"d": 1}
    assert shares(list(rooms), rooms.__getitem__, 100) == {"a": 1, "b": 5, "d": 5}


class TestLaneSchedule:
    """When a runner tries its lanes with limits."""

    def test_a_full_lane_is_tried_again_when_a_task_of_its_queue_ends(self) -> None:
        schedule = LaneSchedule()
        schedule.survey([MAIL, BULK], [MAIL, BULK])
        schedule.record([MAIL], {MAIL: inf}, [], {}, NOW)
        assert schedule.ready(NOW + 0.5) == [BULK]
        assert schedule.wait(NOW) == pytest.approx(1)
        assert schedule.wait(NOW + 2) == pytest.approx(0.01)  # its time has come, and no claim has tried it
        assert not schedule.reopen("other", "other")
        assert schedule.reopen("mail", "other")
        assert schedule.ready(NOW) == [MAIL, BULK]

    def test_a_lane_without_tasks_waits_for_the_next_survey(self) -> None:
        schedule = LaneSchedule()
        schedule.survey([MAIL], [MAIL])
        schedule.record([MAIL], {}, [MAIL], {}, NOW)
        assert schedule.ready(NOW) == []
        assert schedule.recall([MAIL, BULK]) == [BULK]
        assert schedule.ready(NOW) == [MAIL]

    def test_a_survey_forgets_no_wait_of_a_lane_that_is_still_due(self) -> None:
        schedule = LaneSchedule()
        schedule.survey([MAIL, BULK], [MAIL, BULK])
        schedule.record([MAIL, BULK], {MAIL: inf, BULK: inf}, [], {MAIL: "acme"}, NOW)
        schedule.survey([MAIL], [MAIL, BULK])
        schedule.survey([MAIL, BULK], [MAIL, BULK])
        assert schedule.ready(NOW) == [BULK]
        assert schedule.cursors == {MAIL: "acme"}
