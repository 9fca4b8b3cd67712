"""Histograms of durations: counts that add up over runners and minutes, instead of every duration."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, zip_longest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
_MINUTES = (1, 2, 5, 10, 20, 60)

BOUNDS: tuple[float, ...] = (*_SECONDS, *(60.0 * minutes for minutes in _MINUTES))
"""Inclusive upper bounds of the bins in seconds: 1 ms to 1 h in 1-2-5 steps. One more bin holds longer durations."""

PLACES = len(BOUNDS) + 1


def add(counts: list[int], seconds: float) -> None:
    """Count a duration.

    Args:
        counts: histogram, changed in index; an empty one grows to PLACES bins.
        seconds: duration.
    """
    counts.extend([0] * (PLACES - len(counts)))
    counts[bisect_left(BOUNDS, seconds)] += 1


def merged(histograms: Iterable[Sequence[int]]) -> list[int]:
    """Return the sum of histograms, bin by bin. A shorter one counts as if zeros followed."""
    return [sum(bins) for bins in zip_longest(*histograms, fillvalue=0)][:PLACES]


def percentile(counts: Sequence[int], q: float) -> float | None:
    """Estimate a percentile of the durations.

    The estimate assumes that durations are evenly distributed within a bin, as Prometheus' histogram_quantile does.
    Its error is at most the width of the bin. In the last bin, the estimate is its lower bound.

    Args:
        counts: histogram.
        q: share of durations not above the result, 0 to 1; 0.95 for the 95th percentile.

    Returns:
        Seconds; None for an empty histogram.
    """
    total = sum(counts)
    if not total:
        return None
    rank = max(round(q * total, 6), 1e-6)  # rounding errors must not move a rank to the next bin
    index = bisect_left(list(accumulate(counts)), rank)
    if index >= len(BOUNDS):
        return BOUNDS[-1]
    lower = BOUNDS[index - 1] if index else 0.0
    before = sum(counts[:index])
    return lower + (BOUNDS[index] - lower) * (rank - before) / counts[index]
