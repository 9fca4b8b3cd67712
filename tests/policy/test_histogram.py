from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.policy.histogram import BOUNDS, PLACES, add, merged, percentile

durations = st.lists(st.floats(0, 10_000), min_size=1, max_size=50)


def counted(*seconds: float) -> list[int]:
    counts: list[int] = []
    for duration in seconds:
        add(counts, duration)
    return counts


def test_the_bounds_rise_from_a_millisecond_to_an_hour() -> None:
    assert (BOUNDS[0], BOUNDS[-1], len(BOUNDS)) == (0.001, 3600, 20)
    assert all(lower < upper for lower, upper in pairwise(BOUNDS))


def test_a_bound_belongs_to_the_bin_below() -> None:
    assert counted(0.001) == [1] + [0] * 20
    assert counted(0.0010001) == [0, 1] + [0] * 19


def test_durations_over_an_hour_have_a_bin() -> None:
    assert counted(3601)[-1] == 1
    assert percentile(counted(3601, 90_000), 0.5) == 3600


def test_histograms_of_different_lengths_add_up() -> None:
    assert merged([[], [1, 2], [0, 0, 3]]) == [1, 2, 3]
    assert merged([]) == []
    assert len(merged([[1] * 500])) == PLACES


def test_a_percentile_is_between_the_bounds_of_its_bin() -> None:
    assert percentile([0, 0, 0, 0, 0, 0, 0, 0, 0, 100], 0.5) == pytest.approx(0.75)
    assert percentile([], 0.5) is None
    assert percentile([0, 0], 0.5) is None


@given(durations, st.integers(1, 50))
def test_a_percentile_is_in_the_bin_of_the_exact_percentile(seconds: list[float], rank: int) -> None:
    rank = min(rank, len(seconds))
    exact = sorted(seconds)[rank - 1]
    estimate = percentile(counted(*seconds), rank / len(seconds))
    assert estimate is not None
    lower = max((bound for bound in (0.0, *BOUNDS) if bound < exact), default=0.0)
    upper = min((bound for bound in BOUNDS if bound >= exact), default=BOUNDS[-1])
    assert lower - 1e-9 <= estimate <= upper + 1e-9


@given(durations)
def test_percentiles_rise_with_the_share(seconds: list[float]) -> None:
    counts = counted(*seconds)
    percentiles = [percentile(counts, share / 20) or 0.0 for share in range(21)]
    assert percentiles == sorted(percentiles)
