"""Histograms of times, which add up over runners and minutes.

The bins are log-linear, as in HdrHistogram: one millisecond wide up to 40 ms, and from there a twentieth of the lower
power of two. A percentile is the mean of the times in its bin. It therefore never lies outside the real minimum and
maximum, and its error is below 5 % from 20 ms on, and below one millisecond under that.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

FINE = 20
"""Bins per power of two."""

ROUNDING = 5e-7
"""Milliseconds by which a time may exceed the bound of a bin, so that rounding errors move no time to the next bin."""

HIGHEST = 2**31 - 1
"""The bound of the last bin in milliseconds, 24 days; it holds longer times too."""


def bin_ms(seconds: float) -> int:
    """The inclusive upper bound, in milliseconds, of the bin of a time in seconds; at least 1."""
    exact = seconds * 1_000 - ROUNDING
    if exact <= 2 * FINE:
        return ceil(exact) if exact > 0 else 1
    if exact >= HIGHEST:
        return HIGHEST
    ms = ceil(exact)
    width = ((ms - 1) // FINE).bit_length() - 1
    bound = -(-ms >> width) << width
    return bound if bound < HIGHEST else HIGHEST


@dataclass(slots=True)
class Bin:
    """The times of one bin.

    Args:
        seconds: their sum in seconds.
    """

    number: int
    seconds: float

    def __iter__(self) -> Iterator[Any]:
        return iter((self.number, self.seconds))


@dataclass(slots=True)
class Histogram:
    """The numbers and sums of times.

    Args:
        bins: by the upper bound of the bin in milliseconds.
    """

    bins: dict[int, Bin] = field(default_factory=dict)

    def add(self, times: Iterable[float]) -> None:
        """Count times in seconds; those below zero count as zero.

        They are sorted, so that each bin costs a search and a sum, and not each time.
        """
        ordered = sorted(times)
        first, end = 0, len(ordered)
        while first < end:
            bound = bin_ms(ordered[first])
            last = bisect_right(ordered, (bound + ROUNDING) / 1_000, first) if bound < HIGHEST else end
            last = max(last, first + 1)
            seconds = sum(ordered[first:last])
            if ordered[first] < 0:
                seconds = sum(time for time in ordered[first:last] if time > 0)
            self.put(bound, last - first, seconds)
            first = last

    def put(self, bound: int, number: int, seconds: float) -> None:
        """Count the times of a bin.

        Args:
            bound: the bin, from `bin_ms`.
            number: how many times.
        """
        each = self.bins.get(bound)
        if each is None:
            self.bins[bound] = Bin(number, seconds)
        else:
            each.number += number
            each.seconds += seconds

    def without(self, part: "Histogram") -> "Histogram":
        """The times that are not in a part of this histogram."""
        result = Histogram()
        for bound, (number, seconds) in self.bins.items():
            earlier = part.bins.get(bound, Bin(0, 0.0))
            if number > earlier.number:
                result.put(bound, number - earlier.number, max(0.0, seconds - earlier.seconds))
        return result

    @property
    def number(self) -> int:
        """The number of times."""
        return sum(each.number for each in self.bins.values())

    @property
    def seconds(self) -> float:
        """The sum of the times in seconds."""
        return sum(each.seconds for each in self.bins.values())

    @property
    def mean(self) -> float | None:
        """The mean time in seconds; None without times."""
        return self.seconds / self.number if self.number else None

    def percentile(self, q: float) -> float | None:
        """Estimate a percentile: the mean of the bin that holds the nearest rank.

        Args:
            q: share of times not above the result, 0 to 1; 0.95 for the 95th percentile.

        Returns:
            Seconds; None for an empty histogram.
        """
        rank = max(1, ceil(round(q * self.number, 6)))  # rounding errors must not move a rank to the next bin
        for _, each in sorted(self.bins.items()):
            rank -= each.number
            if rank <= 0 < each.number:
                return each.seconds / each.number
        return None


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms."""
    result = Histogram()
    for histogram in histograms:
        for bound, (number, seconds) in histogram.bins.items():
            result.put(bound, number, seconds)
    return result


class Times(NamedTuple):
    """Histograms of attempts: their run times, and their waits from the due time to the start."""

    runs: Histogram
    waits: Histogram


BOUNDS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000)
"""Inclusive upper bounds of the buckets in milliseconds; the last bucket has no bound."""


class Buckets(NamedTuple):
    """The number of times in each bucket, and the sum of all times in seconds."""

    numbers: tuple[int, ...] = (0,) * (len(BOUNDS_MS) + 1)
    seconds: float = 0.0

    def plus(self, histogram: Histogram) -> "Buckets":
        """Add the times of a histogram, whose bins another thread may be adding to."""
        numbers, seconds = list(self.numbers), self.seconds
        for bound, each in tuple(histogram.bins.items()):
            numbers[bisect_left(BOUNDS_MS, bound)] += each.number
            seconds += each.seconds
        return Buckets(tuple(numbers), seconds)


class ExportedTimes(NamedTuple):
    """The buckets of attempts: their run times, and their waits from the due time to the start."""

    runs: Buckets = Buckets()
    waits: Buckets = Buckets()

    def plus(self, times: Times) -> "ExportedTimes":
        """Add times."""
        return ExportedTimes(self.runs.plus(times.runs), self.waits.plus(times.waits))
