"""Histograms of durations: a few counts instead of every duration, which add up over runners and minutes."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, zip_longest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
_MINUTES = (1, 2, 5, 10, 20, 60)

BOUNDS: tuple[float, ...] = (*_SECONDS, *(60.0 * minutes for minutes in _MINUTES))
"""Upper bounds in seconds, each included: 1 ms to 1 h in 1-2-5 steps. Behind the last one is a place for the rest."""

PLACES = len(BOUNDS) + 1


def add(counts: list[int], seconds: float) -> None:
    """Count one duration.

    Args:
        counts: a histogram, changed in place; an empty one grows to PLACES.
        seconds: how long it took.
    """
    counts.extend([0] * (PLACES - len(counts)))
    counts[bisect_left(BOUNDS, seconds)] += 1


def merged(histograms: Iterable[Sequence[int]]) -> list[int]:
    """The sum of histograms, place by place; shorter ones count as if zeros followed."""
    return [sum(place) for place in zip_longest(*histograms, fillvalue=0)][:PLACES]


def percentile(counts: Sequence[int], q: float) -> float | None:
    """Estimate the duration that a share of all durations does not exceed.

    Within a place durations are taken to be spread evenly, as Prometheus' histogram_quantile does it; so the estimate
    is off by the width of that place at most. Beyond the last bound nothing is known but the bound.

    Args:
        counts: a histogram.
        q: the share, 0 to 1; 0.95 for the 95th percentile.

    Returns:
        Seconds; None when nothing was counted.
    """
    total = sum(counts)
    if not total:
        return None
    rank = max(round(q * total, 6), 1e-6)  # a rank that is meant to be whole must not end in the next place
    place = bisect_left(list(accumulate(counts)), rank)
    if place >= len(BOUNDS):
        return BOUNDS[-1]
    lower = BOUNDS[place - 1] if place else 0.0
    before = sum(counts[:place])
    return lower + (BOUNDS[place] - lower) * (rank - before) / counts[place]
