from datetime import timedelta

from runner.demo.pace import WINDOW, Pace


def test_nothing_is_known_at_first() -> None:
    pace = Pace()
    assert pace.rate == 0.0
    pace.see(10.0, 5)
    assert pace.rate == 0.0
    assert pace.rest(100) is None


def test_the_rate_is_what_ended_between_looks() -> None:
    pace = Pace()
    for second in range(4):
        pace.see(float(second), 50 * second)
    assert pace.rate == 50.0
    assert pace.rest(200) == timedelta(seconds=4)


def test_only_the_last_seconds_count() -> None:
    pace = Pace()
    pace.see(0.0, 0)
    pace.see(100.0, 100_000)
    pace.see(100.0 + WINDOW, 100_000 + 10 * int(WINDOW))
    assert pace.rate == 10.0


def test_tasks_that_came_back_to_life_are_no_negative_pace() -> None:
    pace = Pace()
    pace.see(0.0, 10)
    pace.see(1.0, 7)
    assert pace.rate == 0.0
    assert pace.rest(3) is None
