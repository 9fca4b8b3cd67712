from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.policy.histogram import FINE, HIGHEST, Histogram, bin_ms, merged

LINEAR = FINE / 1_000
"""Seconds up to which the error is absolute."""

times = st.lists(st.floats(0, 100_000), min_size=1, max_size=50)


def counted(*seconds: float) -> Histogram:
    histogram = Histogram()
    histogram.add(seconds)
    return histogram


@pytest.mark.parametrize(
    ("seconds", "bound"),
    [(0.0, 1), (0.001, 1), (0.0011, 2), (0.04, 40), (0.0401, 42), (4.0, 4_096), (300.0, 303_104), (1e9, HIGHEST)],
)
def test_a_bound_belongs_to_the_bin_below(seconds: float, bound: int) -> None:
    assert bin_ms(seconds) == bound


@given(st.floats(LINEAR + 1e-6, 1_000_000))
def test_a_bin_is_narrower_than_five_percent(seconds: float) -> None:
    bound = bin_ms(seconds)
    assert bin_ms(bound / 1_000) == bound
    assert seconds <= bound / 1_000 + 1e-9
    assert bin_ms(bound / 1_000 / (1 + 1 / FINE) - 1e-6) < bound


@pytest.mark.parametrize("seconds", [4.0, 300.0, 0.00042])
def test_every_percentile_of_one_time_is_that_time(seconds: float) -> None:
    assert {counted(seconds).percentile(q) for q in (0.0, 0.5, 0.95, 1.0)} == {seconds}


@given(times, st.integers(1, 100))
def test_a_percentile_is_within_five_percent_and_within_the_minimum_and_the_maximum(
    seconds: list[float], percent: int
) -> None:
    exact = sorted(seconds)[max(1, ceil(percent * len(seconds) / 100)) - 1]
    estimate = counted(*seconds).percentile(percent / 100)
    assert estimate is not None
    assert min(seconds) - 1e-9 <= estimate <= max(seconds) * (1 + 1e-12) + 1e-9
    assert abs(estimate - exact) <= max(0.05 * exact, 0.001) + 1e-9


@given(times)
def test_percentiles_rise_with_the_share(seconds: list[float]) -> None:
    histogram = counted(*seconds)
    percentiles = [histogram.percentile(share / 20) or 0.0 for share in range(21)]
    assert percentiles == sorted(percentiles)


@given(times, times)
def test_histograms_add_up(some: list[float], others: list[float]) -> None:
    total = merged([counted(*some), Histogram(), counted(*others)])
    assert total.number == len(some) + len(others)
    assert total.seconds == pytest.approx(sum(some) + sum(others))
    assert total.percentile(0.5) == pytest.approx(counted(*some, *others).percentile(0.5))


@given(st.lists(st.floats(-1, 100_000) | st.integers(0, 3_000).map(lambda ms: ms / 1_000), max_size=50))
def test_times_together_fall_into_the_same_bins_as_one_by_one(seconds: list[float]) -> None:
    together, apart = counted(*seconds), Histogram()
    for each in seconds:
        apart.add([each])
    assert {bound: each.number for bound, each in together.bins.items()} == {
        bound: each.number for bound, each in apart.bins.items()
    }
    assert {bin_ms(each) for each in seconds} == set(together.bins)
    assert together.seconds == pytest.approx(sum(max(0.0, each) for each in seconds))


def test_a_histogram_without_times_has_no_percentile() -> None:
    assert (Histogram().percentile(0.5), Histogram().mean) == (None, None)
