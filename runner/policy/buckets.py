"""Buckets: numbers of times up to a few fixed bounds, since a start, as exporters report them."""

from bisect import bisect_left
from typing import NamedTuple

from runner.policy.histogram import Histogram, Times

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
