from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import InvalidRetryPlan
from runner.policy.retry import (
    LONGEST_DELAY,
    MOST_STAGES,
    PLANS,
    BackOff,
    Exponential,
    Never,
    RetryPlan,
    Sidekiq,
    Spread,
    Stages,
    next_runs,
    parse_plan,
)

START = datetime(2026, 11, 20, 13, 0, tzinfo=UTC)

delays = st.timedeltas(timedelta(0), LONGEST_DELAY)
first_delays = st.timedeltas(timedelta(microseconds=1), LONGEST_DELAY)
factors = st.integers(1_000, 999_999).map(lambda thousandths: thousandths / 1_000)
exponentials = st.tuples(first_delays, factors, first_delays).map(
    lambda parts: Exponential(min(parts[0], parts[2]), parts[1], max(parts[0], parts[2]))
)
stages = st.lists(delays, min_size=1, max_size=MOST_STAGES).map(lambda items: Stages(tuple(items)))
steady: st.SearchStrategy[RetryPlan] = st.just(Sidekiq()) | exponentials | stages
percents = st.integers(1, 100)
spreads = st.builds(Spread, steady, percents)
plans: st.SearchStrategy[RetryPlan] = st.just(Never()) | steady | spreads
attempts = st.integers(-1, 100) | st.integers(1, 10**6) | st.sampled_from([10**6, 2**31, 2**63])
randoms = st.floats(0, 1, exclude_max=True)
typed = st.text("exp:1230*.,<~%smhd sidekqnvr", max_size=25)


def seconds(text: str, *attempts: int, random: float = 0.5) -> list[float | None]:
    result = [parse_plan(text).delay(attempt, random) for attempt in attempts]
    return [None if delay is None else delay.total_seconds() for delay in result]


def test_the_last_stage_repeats() -> None:
    assert seconds("1m,5m,20m", 1, 2, 3, 4, 1_000_000) == [60, 300, 1_200, 1_200, 1_200]


def test_a_single_stage_is_a_fixed_delay() -> None:
    assert seconds("30s", 1, 2, 1_000_000) == [30, 30, 30]


def test_exponential_multiplies_up_to_its_cap() -> None:
    assert seconds("exp:10s*2<1h", 1, 2, 3, 9, 10) == [10, 20, 40, 2_560, 3_600]
    assert seconds("exp:4s*1.5", 1, 2, 3) == [4, 6, 9]


def test_exponential_without_a_cap_is_limited_to_ten_years() -> None:
    assert seconds("exp:10s*2", 10**6) == [LONGEST_DELAY.total_seconds()]


def test_sidekiq_is_the_fourth_power_with_a_growing_random_part() -> None:
    assert seconds("sidekiq", 1, 2, 3, random=0) == [15, 16, 31]
    assert seconds("sidekiq", 1, 2, 11, random=0.5) == [30, 46, 10_015 + 165]
    assert seconds("sidekiq", 10**6) == [LONGEST_DELAY.total_seconds()]


def test_never_has_no_further_attempt() -> None:
    assert seconds("never", 1, 2) == [None, None]


def test_a_spread_plan_stays_within_its_percentage() -> None:
    assert seconds("100s~10%", 1, random=0) == [90]
    assert seconds("100s~10%", 1, random=0.5) == [100]
    assert seconds("100s~100%", 1, random=0) == [0]
    assert seconds("1m,5m~50%", 2, random=0.75) == [375]


def test_an_invalid_attempt_number_counts_as_the_first() -> None:
    assert seconds("1m,5m,20m", 0, -7) == [60, 60]


@given(plans, attempts, randoms)
def test_a_delay_is_never_negative_or_infinite(plan: RetryPlan, attempt: int, random: float) -> None:
    delay = plan.delay(attempt, random)
    assert delay is None or timedelta(0) <= delay <= LONGEST_DELAY


@given(steady, percents, attempts, randoms)
def test_spreading_changes_a_delay_by_at_most_the_percentage(
    plan: RetryPlan, percent: int, attempt: int, random: float
) -> None:
    plain, spread = plan.delay(attempt, random), Spread(plan, percent).delay(attempt, random)
    assert plain is not None
    assert spread is not None
    assert abs(spread - plain) <= plain * percent / 100 + timedelta.resolution


@given(exponentials, st.integers(1, 200))
def test_exponential_delays_never_decrease(plan: Exponential, attempt: int) -> None:
    assert plan.delay(attempt, 0) <= plan.delay(attempt + 1, 0) <= plan.cap


@given(plans)
def test_a_formatted_plan_parses_to_an_equal_plan(plan: RetryPlan) -> None:
    assert parse_plan(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" 60s , 5m,1200 ", "1m,5m,20m"),
        ("90", "1m30s"),
        ("exp:10s*2.0<60m", "exp:10s*2<1h"),
        ("exp: 10s * 2 < 1h", "exp:10s*2<1h"),
        ("exp:10s*2<3650d", "exp:10s*2"),
        ("1w ~ 5 %", "7d~5%"),
        ("sidekiq~20%", "sidekiq~20%"),
        (" never ", "never"),
    ],
)
def test_a_plan_has_one_format(text: str, canonical: str) -> None:
    assert str(parse_plan(text)) == canonical


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "unknown plan"),
        ("often", "unknown plan"),
        ("-5m", "unknown plan"),
        ("Never", "unknown plan"),
        ("1m,,5m", "'' is not a delay"),
        ("1m 5m 20m", "is not a delay"),
        ("1m,5x", "'5x' is not a delay"),
        ("1m,4000d", "'4000d' is longer than ten years"),
        (",".join(["1s"] * (MOST_STAGES + 1)), "51 stages, more than 50"),
        ("9" * 2_001, "longer than 2000 characters"),
        ("exp:10s", "write exp:, a delay"),
        ("exp:10s*", "write exp:, a delay"),
        ("exp:10s*1000", "write exp:, a delay"),
        ("exp:10s*-2", "write exp:, a delay"),
        ("exp:10s*2<", "write exp:, a delay"),
        ("exp:0s*2", "the first delay must be more than zero"),
        ("exp:10s*0.5", "must be 1 or more"),
        ("exp:10s*2<5s", "must not be below the first delay"),
        ("exp:10x*2", "'10x' is not a delay"),
        ("1m~0%", "write a whole percentage"),
        ("1m~101%", "write a whole percentage"),
        ("1m~10", "write a whole percentage"),
        ("1m~10%~10%", "write a whole percentage"),
        ("~10%", "write a whole percentage"),
        ("never~10%", "no delay to spread"),
    ],
)
def test_an_invalid_plan_is_rejected_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidRetryPlan, match=why):
        parse_plan(text)


@pytest.mark.slow
@given(st.text(max_size=25) | typed)
def test_every_text_is_parsed_or_rejected(text: str) -> None:
    try:
        plan = parse_plan(text)
    except InvalidRetryPlan:
        return
    assert parse_plan(str(plan)) == plan


def test_the_same_text_is_parsed_once() -> None:
    assert parse_plan("1m,7m") is parse_plan("1m,7m")


def test_every_kind_of_plan_is_listed() -> None:
    examples = ("never", "sidekiq", "exp:1s*2", "1m,5m")
    assert {type(parse_plan(text)) for text in examples} == set(PLANS)


def test_next_runs_list_all_attempts_of_the_plan() -> None:
    runs = next_runs(parse_plan("1m,5m,20m"), attempt=1, max_attempts=5, start=START)
    assert [run - START for run in runs] == [timedelta(minutes=passed) for passed in (1, 6, 26, 46)]


def test_next_runs_start_with_the_next_stage() -> None:
    runs = next_runs(parse_plan("1m,5m,20m"), attempt=3, max_attempts=4, start=START)
    assert runs == [START + timedelta(minutes=20)]


def test_next_runs_use_the_mean_of_a_spread_plan() -> None:
    assert next_runs(parse_plan("10m~50%"), 1, 2, START) == [START + timedelta(minutes=10)]


@pytest.mark.parametrize(("plan", "attempt", "max_attempts"), [("never", 1, 5), ("1m", 5, 5), ("1m", 6, 5)])
def test_next_runs_are_empty_without_attempts_left(plan: str, attempt: int, max_attempts: int) -> None:
    assert next_runs(parse_plan(plan), attempt, max_attempts, START) == []


def test_next_runs_have_a_limit() -> None:
    assert len(next_runs(parse_plan("1m"), 1, 10**9, START, limit=7)) == 7


def test_next_runs_end_with_the_calendar() -> None:
    near_the_end = START.replace(year=9985)
    assert len(next_runs(parse_plan("3650d"), 1, 100, near_the_end)) == 1


def test_delays_double_up_to_the_bound() -> None:
    back_off = BackOff()
    waits = [back_off.record_failure(0.5) for _ in range(100)]
    assert waits[:7] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert max(waits) == 10.0


def test_delays_are_spread_around_their_mean() -> None:
    assert [BackOff().record_failure(random) for random in (0.0, 0.5, 0.999)] == pytest.approx(
        [0.1875, 0.25, 0.3125], abs=1e-3
    )


def test_a_success_resets_the_delay() -> None:
    back_off = BackOff()
    for _ in range(5):
        back_off.record_failure(0.5)
    back_off.reset()
    assert back_off.record_failure(0.5) == 0.25
