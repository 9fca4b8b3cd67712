"""How often to look, and how much to take: decisions on time, with the time as an argument."""

import math
from dataclasses import dataclass

EVERY = 1.0
"""Seconds between surveys while claims keep coming back full: so late may a higher priority be noticed at worst."""

SHARE = 20
"""A look that took t is followed by at least so many t without one.

Under an old snapshot elsewhere, dead index entries pile up and whatever starts at the head of an index walks over them
all; it then takes at most a twentieth of the time.
"""


@dataclass
class Pace:
    """When to look anew at something that is usually cheap to look at, but not always.

    Args:
        every: seconds from the end of one look to the next.
        most: seconds without a look at most, however long one takes: somebody may wait for what it finds.
    """

    every: float = EVERY
    most: float = math.inf
    _next: float = 0.0

    def due(self, now: float) -> bool:
        """Tell whether a look is due; `now` in monotonic seconds."""
        return now >= self._next

    def left(self, now: float) -> float:
        """Seconds until a look is due; `now` in monotonic seconds."""
        return max(0.0, self._next - now)

    def done(self, started: float, ended: float) -> None:
        """Note a look, in monotonic seconds."""
        self._next = ended + max(self.every, min(self.most, SHARE * (ended - started)))


@dataclass
class LookAhead:
    """How many more tasks than free slots to claim: what ends while a claim is on its way.

    Slow work gets none, so that nothing waits in one runner's hands that another could start.

    Args:
        span: seconds that a claim and its settling take, generously.
        most: a bound.
    """

    span: float = 0.05
    most: int = 2_000
    _rate: float = 0.0
    _ended: int = 0
    _since: float = 0.0

    def ended(self, tasks: int = 1) -> None:
        """Note that tasks have ended."""
        self._ended += tasks

    def tasks(self, now: float) -> int:
        """How many tasks to hold ready; `now` in monotonic seconds."""
        passed = now - self._since
        if passed >= self.span:
            rate = self._ended / passed
            self._rate = rate if passed > 1 else 0.5 * self._rate + 0.5 * rate
            self._ended, self._since = 0, now
        return min(self.most, int(self._rate * self.span))


@dataclass
class BackOff:
    """How long to wait before asking a database again that was away: doubling, bounded, spread.

    Args:
        first: seconds after the first failure.
        most: seconds at most.
    """

    first: float = 0.25
    most: float = 10.0
    failures: int = 0

    def failed(self, random: float) -> float:
        """Note a failure.

        Args:
            random: in [0, 1); spreads runners that lost the same database.

        Returns:
            Seconds to wait.
        """
        self.failures += 1
        wait: float = min(self.most, self.first * 2 ** min(self.failures - 1, 20))
        return wait * (0.75 + 0.5 * random)

    def succeeded(self) -> None:
        """Begin anew."""
        self.failures = 0
