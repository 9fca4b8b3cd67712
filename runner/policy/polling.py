"""Polling: how often to query and how much to claim; the time is an argument."""

import math
from dataclasses import dataclass

EVERY = 1.0
"""Seconds between surveys while claims return full. A higher priority is noticed at most this late."""

SHARE = 20
"""The shortest pause after a survey, as a multiple of its duration.

While another client holds an old snapshot, dead index entries accumulate, and every scan from the head of an index
reads them all. This bounds its share of the time to a twentieth."""


@dataclass
class Pace:
    """The schedule of a query that is usually cheap but can become slow.

    Args:
        every: seconds from the end of a query to the next one.
        most: longest pause in seconds, however slow the query is.
    """

    every: float = EVERY
    most: float = math.inf
    _next: float = 0.0

    def is_due(self, now: float) -> bool:
        """True if a query is due; `now` in monotonic seconds."""
        return now >= self._next

    def remaining(self, now: float) -> float:
        """Seconds until the next query; `now` in monotonic seconds."""
        return max(0.0, self._next - now)

    def record(self, start: float, end: float) -> None:
        """Record the start and end of a query, in monotonic seconds."""
        self._next = end + max(self.every, min(self.most, SHARE * (end - start)))


@dataclass
class LookAhead:
    """The prefetch: tasks to claim beyond the free slots, because others finish while a claim is running.

    Slow work gets no prefetch, so that no task waits in one runner while another could start it.

    Args:
        span: seconds that a claim and its settle take, estimated high.
        most: upper bound in tasks.
    """

    span: float = 0.05
    most: int = 2_000
    _rate: float = 0.0
    _ended: int = 0
    _since: float = 0.0

    def ended(self, tasks: int = 1) -> None:
        """Record finished tasks."""
        self._ended += tasks

    def tasks(self, now: float) -> int:
        """Return the number of tasks to prefetch; `now` in monotonic seconds."""
        elapsed = now - self._since
        if elapsed >= self.span:
            rate = self._ended / elapsed
            self._rate = rate if elapsed > 1 else 0.5 * self._rate + 0.5 * rate
            self._ended, self._since = 0, now
        return min(self.most, int(self._rate * self.span))


@dataclass
class BackOff:
    """The delay before the next attempt to reach a database that is down: doubling, bounded and spread.

    Args:
        first: seconds after the first failure.
        most: longest delay in seconds.
    """

    first: float = 0.25
    most: float = 10.0
    failures: int = 0

    def record_failure(self, random: float) -> float:
        """Record a failure.

        Args:
            random: in [0, 1); spreads the retries of several runners.

        Returns:
            Seconds to wait.
        """
        self.failures += 1
        wait: float = min(self.most, self.first * 2 ** min(self.failures - 1, 20))
        return wait * (0.75 + 0.5 * random)

    def reset(self) -> None:
        """Reset the delay."""
        self.failures = 0
