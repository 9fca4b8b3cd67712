from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.model.outcome import (
    INTERRUPTED,
    Cancelled,
    Dead,
    Failure,
    Interrupted,
    Outage,
    Outcome,
    Release,
    Retry,
    Snooze,
)
from runner.model.task import MOVES, State
from runner.policy.attempt_verdict import FREE_RELEASES, AttemptState, Verdict, judge

FRESH = AttemptState(attempt=1, max_attempts=3, retry="1m,5m", default_retry="20m", releases=0, cancel_requested=False)
LAST = replace(FRESH, attempt=3)
UNWANTED = replace(FRESH, cancel_requested=True)
BROKEN = Failure("ValueError", "no")
AWAY = Failure("DatabaseUnavailable", "no answer")

failures = st.none() | st.builds(Failure, st.text(), st.text())
delays = st.none() | st.timedeltas(timedelta(0), timedelta(days=3_000))
outcomes: st.SearchStrategy[Outcome] = (
    st.builds(Retry, delays, st.text(), failures)
    | st.builds(Dead, st.text(), failures)
    | st.builds(Snooze, st.timedeltas(timedelta(0), timedelta(days=3_000)), st.text())
    | st.builds(Release, st.text())
    | st.builds(Cancelled, st.text())
    | st.builds(Interrupted, st.none() | st.integers(1, 10))
    | st.builds(Outage, st.just(AWAY), st.none() | st.integers(0, 10))
)
standings = st.builds(
    AttemptState,
    st.integers(1, 10),
    st.none() | st.integers(1, 10),
    st.none() | st.sampled_from(["1m", "never", "nonsense", ""]),
    st.sampled_from(["20m", "never", "sidekiq"]),
    st.integers(0, 2 * FREE_RELEASES),
    st.booleans(),
    st.integers(0, 12),
)


def test_a_failure_waits_for_the_delay_of_the_plan() -> None:
    expected = Verdict("retry", timedelta(minutes=1), failure=BROKEN, why="ValueError: no")
    assert judge(Retry(failure=BROKEN), FRESH, 0) == expected
    assert judge(Retry(), replace(FRESH, attempt=2), 0).delay == timedelta(minutes=5)


def test_the_tasks_plan_takes_precedence_over_the_handlers() -> None:
    assert judge(Retry(), replace(FRESH, retry=None), 0).delay == timedelta(minutes=20)
    assert judge(Retry(), replace(FRESH, retry="2m"), 0).delay == timedelta(minutes=2)


def test_an_invalid_plan_is_replaced_by_the_handlers() -> None:
    assert judge(Retry(), replace(FRESH, retry="sometimes"), 0).delay == timedelta(minutes=20)


def test_an_explicit_delay_takes_precedence_over_the_plan() -> None:
    assert judge(Retry("7s"), replace(FRESH, retry="never"), 0).delay == timedelta(seconds=7)


@pytest.mark.parametrize("row", [LAST, replace(FRESH, attempt=7), replace(FRESH, retry="never")])
def test_a_failure_without_another_attempt_is_final(row: AttemptState) -> None:
    assert judge(Retry(failure=BROKEN), row, 0) == Verdict("die", failure=BROKEN, why="ValueError: no")


def test_an_explicit_delay_grants_no_further_attempt() -> None:
    assert judge(Retry("1s"), LAST, 0).verb == "die"


def test_without_a_maximum_there_is_always_another_attempt() -> None:
    assert judge(Retry(), replace(LAST, max_attempts=None), 0).verb == "retry"


def test_dead_needs_no_reason() -> None:
    assert judge(Dead("gone"), FRESH, 0) == Verdict("die", failure=Failure("Dead", "gone"), why="Dead: gone")
    assert judge(Dead(), FRESH, 0).why == "Dead"


def test_a_snooze_does_not_count_even_at_the_last_attempt() -> None:
    expected = Verdict("snooze", timedelta(minutes=10), counted=False, why="later")
    assert judge(Snooze("10m", "later"), LAST, 0) == expected


def test_a_release_counts_only_beyond_the_free_releases() -> None:
    free, beyond = replace(LAST, releases=FREE_RELEASES - 1), replace(FRESH, releases=FREE_RELEASES)
    assert judge(Release(), free, 0) == Verdict("release", timedelta(0), counted=False)
    assert judge(Release(), beyond, 0) == Verdict("release", timedelta(0))


def test_too_many_releases_at_the_last_attempt_are_final() -> None:
    assert judge(Release(), replace(LAST, releases=FREE_RELEASES), 0).verb == "die"


def test_an_interruption_costs_no_attempt() -> None:
    expected = Verdict("interrupt", timedelta(0), counted=False, failure=INTERRUPTED, why=INTERRUPTED.reason)
    assert judge(Interrupted(2), replace(LAST, interruptions=1), 0) == expected
    assert judge(Interrupted(None), replace(LAST, interruptions=1_000), 0) == expected


def test_a_task_that_outlives_every_runner_is_dead_with_the_reason_and_the_remedy() -> None:
    verdict = judge(Interrupted(2), replace(FRESH, interruptions=2), 0)
    assert (verdict.verb, verdict.failure and verdict.failure.type) == ("die", "Interrupted")
    assert "stops of runners and outages interrupted the task 3 times before it ended" in verdict.why
    assert "raise drain_timeout" in verdict.why


@pytest.mark.parametrize(("number", "seconds"), [(0, 1), (1, 2), (3, 8), (6, 60), (1_000, 60)])
def test_an_outage_costs_no_attempt_and_the_pause_doubles(number: int, seconds: int) -> None:
    verdict = judge(Outage(AWAY), replace(LAST, interruptions=number), 0)
    expected = Verdict("interrupt", timedelta(seconds=seconds), counted=False, failure=AWAY, why=AWAY.reason)
    assert verdict == expected
    assert judge(Outage(AWAY, delay="5m"), replace(LAST, interruptions=number), 0).delay == timedelta(minutes=5)


def test_attempts_count_after_too_many_outages() -> None:
    tired = replace(FRESH, interruptions=2)
    assert judge(Outage(AWAY, 3), tired, 0).verb == "interrupt"
    verdict = judge(Outage(AWAY, 2), tired, 0)
    assert (verdict.verb, verdict.counted, verdict.delay) == ("retry", True, timedelta(minutes=1))
    assert judge(Outage(AWAY, 2), replace(tired, attempt=3), 0).verb == "die"


OUTCOMES = [Retry(), Dead(), Snooze("1m"), Release(), Interrupted(), Outage(AWAY), Cancelled()]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
def test_a_requested_termination_is_carried_out(outcome: Outcome) -> None:
    verdict = judge(outcome, UNWANTED, 0)
    assert (verdict.verb, verdict.delay) == ("cancel", None)
    assert (verdict.failure is not None) == isinstance(outcome, (Retry, Dead))


def test_a_withdrawn_termination_releases_the_task() -> None:
    verdict = judge(Cancelled("terminated while running"), FRESH, 0)
    assert (verdict.verb, verdict.delay, verdict.counted) == ("release", timedelta(0), False)
    assert "withdrew" in verdict.why


@given(outcomes, standings, st.floats(0, 1, exclude_max=True))
def test_every_verdict_is_a_legal_move_and_leaves_no_task_stuck(
    outcome: Outcome, row: AttemptState, random: float
) -> None:
    verdict = judge(outcome, row, random)
    move = MOVES[verdict.verb]
    assert State.RUNNING in move.sources
    assert (verdict.delay is not None) == (move.target is State.WAITING)
    if move.target is State.WAITING:
        used = row.attempt if verdict.counted else row.attempt - 1
        assert row.max_attempts is None or used < row.max_attempts or row.attempt > row.max_attempts
        assert not row.cancel_requested
