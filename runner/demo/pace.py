"""Pace: how fast a round goes of late, and how long the rest will take."""

from collections import deque
from datetime import timedelta

WINDOW = 5.0
"""Seconds that count as of late."""


class Pace:
    """Speed over the last few seconds, from looks at how far something is."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def see(self, now: float, ended: int) -> None:
        """Take in how far it is.

        Args:
            now: seconds on a clock that is never set.
            ended: how many tasks have ended by now.
        """
        self._seen.append((now, ended))
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        """Tasks that end in a second; 0.0 as long as that is not known."""
        if not self._seen:
            return 0.0
        (start, before), (now, after) = self._seen[0], self._seen[-1]
        return max(0.0, (after - before) / (now - start)) if now > start else 0.0

    def rest(self, left: int) -> timedelta | None:
        """How long so many tasks will take at this pace, in whole seconds; None when nothing moves."""
        return timedelta(seconds=round(left / self.rate)) if self.rate else None
