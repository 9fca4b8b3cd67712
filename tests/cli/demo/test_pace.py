from datetime import timedelta

from runner.cli.demo import WINDOW, ThroughputEstimate


def test_nothing_is_known_at_first() -> None:
    pace = ThroughputEstimate()
    assert pace.rate == 0.0
    pace.add(10.0, 5)
    assert pace.rate == 0.0
    assert pace.time_left(100) is None


def test_the_rate_is_what_ended_between_looks() -> None:
    pace = ThroughputEstimate()
    for second in range(4):
        pace.add(float(second), 50 * second)
    assert pace.rate == 50.0
    assert pace.time_left(200) == timedelta(seconds=4)


def test_only_the_last_seconds_count() -> None:
    pace = ThroughputEstimate()
    pace.add(0.0, 0)
    pace.add(100.0, 100_000)
    pace.add(100.0 + WINDOW, 100_000 + 10 * int(WINDOW))
    assert pace.rate == 10.0


def test_tasks_that_came_back_to_life_are_no_negative_pace() -> None:
    pace = ThroughputEstimate()
    pace.add(0.0, 10)
    pace.add(1.0, 7)
    assert pace.rate == 0.0
    assert pace.time_left(3) is None
