import pytest

from runner.policy.polling import EVERY, SHARE, BackOff, LookAhead, Pace


def test_the_first_survey_is_due_at_once() -> None:
    assert Pace().due(0.0)


def test_surveys_keep_their_distance() -> None:
    pace = Pace()
    pace.done(100.0, 100.001)
    assert not pace.due(100.0 + EVERY)
    assert pace.due(100.001 + EVERY)


def test_a_slow_survey_takes_a_small_share_of_the_time() -> None:
    pace = Pace()
    pace.done(100.0, 102.0)
    assert not pace.due(102.0 + 2.0 * SHARE - 0.01)
    assert pace.due(102.0 + 2.0 * SHARE)


def test_what_somebody_waits_for_is_looked_at_again_in_time_however_slow_it_was() -> None:
    pace = Pace(every=0.0, most=3.0)
    pace.done(100.0, 102.0)
    assert not pace.due(104.99)
    assert pace.due(105.0)


def ahead(per_second: float, seconds: int = 10, **options: int) -> int:
    """How far to look ahead after so many seconds of steady work."""
    look = LookAhead(**options)
    look.tasks(1_000.0)
    for step in range(1, 10 * seconds + 1):
        look.ended(round(per_second / 10))
        tasks = look.tasks(1_000.0 + step / 10)
    return tasks


def test_quick_work_is_claimed_ahead_of_its_end() -> None:
    assert ahead(10_000) == pytest.approx(10_000 * LookAhead().span, abs=1)
    assert ahead(1_000) == pytest.approx(1_000 * LookAhead().span, abs=1)


def test_slow_work_is_left_to_others() -> None:
    assert ahead(10) == 0


def test_there_is_a_bound_to_looking_ahead() -> None:
    assert ahead(10**6, most=500) == 500


def test_a_runner_that_has_just_begun_does_not_look_ahead() -> None:
    assert LookAhead().tasks(1_000.0) == 0


def test_a_rate_of_long_ago_is_forgotten_at_once() -> None:
    look = LookAhead()
    look.tasks(1_000.0)
    look.ended(10_000)
    assert look.tasks(1_000.5) > 0
    assert look.tasks(1_010.0) == 0


def test_within_its_span_a_rate_stays() -> None:
    look = LookAhead()
    look.tasks(1_000.0)
    look.ended(1_000)
    rate = look.tasks(1_000.1)
    look.ended(50_000)
    assert look.tasks(1_000.11) == rate > 0


def test_waits_double_up_to_their_bound() -> None:
    back_off = BackOff()
    waits = [back_off.failed(0.5) for _ in range(100)]
    assert waits[:7] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert max(waits) == 10.0


def test_waits_are_spread_around_their_middle() -> None:
    assert [BackOff().failed(random) for random in (0.0, 0.5, 0.999)] == pytest.approx([0.1875, 0.25, 0.3125], abs=1e-3)


def test_a_success_begins_anew() -> None:
    back_off = BackOff()
    for _ in range(5):
        back_off.failed(0.5)
    back_off.succeeded()
    assert back_off.failed(0.5) == 0.25
