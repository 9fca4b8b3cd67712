from math import inf

import pytest

from runner.policy.claim_order import AgedOrder
from runner.policy.lanes import FULL, LOOK_AGAIN, Head, Lane, Lanes, LaneSchedule
from runner.policy.positions import FIRST_ID, POSITION_LAG, LanePosition, TenantPositions

START = LanePosition("", 0)
LOW, HIGH, FOREIGN = Lane("q", "work", 1), Lane("q", "work", 9), Lane("q", "foreign", 9)


def surveyed(*heads: tuple[Lane, float] | tuple[Lane, float, bool]) -> Lanes:
    lanes = Lanes(lambda lane: lane.handler == "work", START)
    lanes.survey(Head(lane, "t", wait, any(paused)) for lane, wait, *paused in heads)
    return lanes


def test_due_lanes_are_ordered_by_priority_and_start_at_the_beginning() -> None:
    lanes = surveyed((LOW, -5.0), (HIGH, 0.0))
    assert list(lanes.positions.items()) == [(HIGH, START), (LOW, START)]
    assert lanes.heads == lanes.positions


def test_lanes_of_other_handlers_and_paused_lanes_are_skipped() -> None:
    lanes = surveyed((FOREIGN, -5.0), (LOW, -5.0, True))
    assert not lanes
    assert lanes.next_due is None


def test_a_survey_returns_the_time_of_the_next_due_lane() -> None:
    lanes = surveyed((LOW, 30.0), (HIGH, 20.0), (FOREIGN, 1.0), (Lane("p", "work", 1), 2.0, True))
    assert not lanes
    assert lanes.next_due == 20.0


def test_each_lane_of_a_claim_moves_past_its_last_task() -> None:
    lanes = surveyed((LOW, -5.0), (HIGH, -5.0))
    lanes.advance({HIGH: LanePosition("2", 9), LOW: LanePosition("1", 3)}, 0.0)
    assert lanes.positions == {HIGH: LanePosition("2", 9), LOW: LanePosition("1", 3)}
    assert lanes.heads == {HIGH: START, LOW: START}


def test_a_position_never_moves_back() -> None:
    lanes = surveyed((LOW, -5.0))
    lanes.advance({LOW: LanePosition("5", 5)}, 0.0)
    lanes.advance({LOW: LanePosition("4", 9)}, 0.0)
    assert lanes.positions == {LOW: LanePosition("5", 5)}


def test_lanes_without_more_due_tasks_are_removed_and_others_stay() -> None:
    lanes = surveyed((LOW, -5.0), (HIGH, -5.0))
    lanes.remove([HIGH])
    assert list(lanes.positions) == [LOW]
    lanes.remove([LOW])
    assert not lanes


def test_a_submit_recalls_the_lanes_of_the_last_due_tasks_and_of_the_new_ones() -> None:
    lanes = surveyed((LOW, -5.0))
    lanes.remove([LOW])
    lanes.expect([HIGH, FOREIGN])
    assert not lanes
    lanes.recall()
    assert list(lanes.positions) == [HIGH, LOW], "a lane of another runner's handlers is not tried"


def test_a_slow_start_is_replaced_by_a_position_that_lags() -> None:
    lanes = surveyed((LOW, -5.0))
    for tenth in range(40):
        lanes.advance({LOW: LanePosition(f"{tenth:02}", tenth)}, tenth / 10 * POSITION_LAG)
        lanes.remove([LOW])
        lanes.recall(from_start=False)
        (old,) = lanes.positions.values()
        assert old == START if tenth < 10 else tenth - 20 <= old.id <= tenth - 10
        lanes.remove([LOW])
    lanes.advance({LOW: LanePosition("20", 9)}, 4 * POSITION_LAG)
    lanes.advance({LOW: LanePosition("20", 9)}, 5 * POSITION_LAG)
    lanes.recall(from_start=False)
    assert lanes.positions == {LOW: LanePosition("39", 39)}, "a position never moves back"
    lanes.remove([LOW])
    lanes.recall()
    assert lanes.positions == {LOW: START}


def test_a_survey_beside_claims_adds_lanes_from_their_first_task() -> None:
    lanes = surveyed()
    lanes.find([Head(LOW, "6", -1.0, False), Head(FOREIGN, "6", -1.0, False), Head(HIGH, "7", 4.0, False)], str)
    assert lanes.positions == lanes.heads == {LOW: LanePosition("6", FIRST_ID)}, "not at the dead entries before it"
    lanes.advance({LOW: LanePosition("7", 7)}, POSITION_LAG)
    lanes.advance({LOW: LanePosition("8", 8)}, 2 * POSITION_LAG)
    lanes.remove([LOW])
    lanes.find([Head(LOW, "9", -1.0, False)], str)
    assert lanes.positions == {LOW: LanePosition("7", 7)}, "where transactions may still commit"
    lanes.find([Head(LOW, "5", -1.0, False)], str)
    assert lanes.positions == {LOW: LanePosition("5", FIRST_ID)}, "a task before the old position"


def test_a_scheduled_task_is_no_position_of_its_lane() -> None:
    lanes = surveyed()
    lanes.find([Head(LOW, "9", 4.0, False)], str)
    lanes.recall(from_start=False)
    assert lanes.positions == {LOW: START}


def test_a_survey_that_starts_over_forgets_the_positions_of_tenants() -> None:
    lanes = surveyed((LOW, -5.0))
    lanes.limited.tenants[LOW] = TenantPositions(START)
    lanes.find([], str)
    assert LOW in lanes.limited.tenants, "a lane that recently had due tasks"
    lanes.survey([Head(LOW, "6", -1.0, False)])
    assert lanes.limited.tenants == {}


def test_a_full_lane_does_not_wait_after_the_end_of_a_task_during_the_claim() -> None:
    limited = LaneSchedule()
    for ended, ready in (((), []), ((("q", "other"),), [LOW]), ((("p", "work"),), [LOW]), ((("p", "other"),), [])):
        limited.add(LOW)
        limited.begin()
        for queue, handler in ended:
            assert not limited.reopen(queue, handler)
        limited.record([LOW], {LOW: inf}, (), {}, 5.0)
        assert limited.ready(5.0) == ready
        limited.reopen("q", "work")


def test_the_end_of_a_task_opens_no_lane_that_waits_for_a_lock_or_a_time() -> None:
    limited = LaneSchedule()
    limited.add(LOW)
    limited.record([LOW], {LOW: 0.5}, (), {}, 5.0)
    assert not limited.reopen("q", "work")
    assert (limited.ready(5.4), limited.ready(5.5)) == ([], [LOW])


def test_a_full_lane_with_more_tasks_to_read_is_tried_sooner() -> None:
    limited = LaneSchedule()
    for further, wait in (((), FULL), ([LOW], LOOK_AGAIN)):
        limited.add(LOW)
        limited.record([LOW], {LOW: inf}, (), {}, 5.0, further)
        assert limited.wait(5.0) == pytest.approx(wait)
    assert limited.reopen("q", "work")


def test_a_submit_keeps_the_order_of_limited_lanes() -> None:
    lanes = Lanes(lambda _: True, START)
    lanes.survey(Head(lane, "t", wait, False, limited=True) for lane, wait in ((HIGH, 5.0), (LOW, -1.0)))
    lanes.expect([HIGH])
    lanes.recall()
    assert lanes.limited.ready(0.0) == [HIGH, LOW]


def test_a_survey_beside_claims_keeps_the_order_of_claims() -> None:
    lanes = Lanes(lambda _: True, START, AgedOrder())
    lanes.survey([Head(LOW, "", -600.0, False)])
    lanes.limited.add(HIGH)
    late, early = Lane("r", "work", 1), Lane("s", "work", 1)
    heads = [Head(late, "6", -700.0, False, None, True), Head(early, "5", -900.0, False, None, True)]
    assert lanes.find([*heads, Head(LOW, "8", 5.0, False)], str) == 5.0
    assert list(lanes.heads) == list(lanes.limited.due)[:2] == [early, late]


def test_a_survey_starts_over() -> None:
    lanes = surveyed((LOW, -5.0))
    lanes.advance({LOW: LanePosition("5", 5)}, 0.0)
    lanes.survey([Head(LOW, "6", -1.0, False), Head(HIGH, "7", 4.0, False)])
    assert lanes.positions == {LOW: START}
    assert lanes.next_due == 4.0


def test_a_survey_lets_limited_claims_start_over() -> None:
    lanes = surveyed((LOW, -5.0))
    limited, plain = Head(HIGH, "1", -9.0, False, None, True), Head(LOW, "1", -5.0, False)
    lanes.survey([limited, plain])
    for at in (0.0, 2 * POSITION_LAG, 4 * POSITION_LAG):
        lanes.advance({HIGH: LanePosition("5", 5), LOW: LanePosition("5", 5)}, at)
    assert lanes.passed([HIGH, LOW]) == {HIGH: LanePosition("5", 5), LOW: LanePosition("5", 5)}
    lanes.survey([limited, plain])
    assert lanes.passed([HIGH, LOW]) == {LOW: LanePosition("5", 5)}
