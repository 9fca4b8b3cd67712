"""When a screen queries the database: never in parallel, and less often if the database is slow or down."""

from dataclasses import dataclass

PERIOD = 1.0
"""Seconds between queries."""

SHARE = 40
"""The pause after a query, in multiples of its duration, so that the console adds little load."""

SLOWEST = 10.0
"""Maximum pause in seconds while the database responds."""

UNFOCUSED = 5.0
"""Seconds between queries while the terminal has no focus."""

LONGEST_WAIT = 30.0
"""Maximum seconds between attempts while the database is down."""


@dataclass(slots=True)
class Poller:
    """The query schedule of one screen; all times are seconds on the same clock.

    Args:
        next: time of the next query.
        looking: a query is running.
        failures: number of consecutive failures.
    """

    next: float = 0.0
    looking: bool = False
    failures: int = 0

    def due(self, now: float) -> bool:
        """True if it is time for a query."""
        return not self.looking and now >= self.next

    def begin(self) -> None:
        """Record the start of a query."""
        self.looking = True

    def succeeded(self, now: float, took: float, *, focused: bool = True) -> None:
        """Record the success of a query.

        Args:
            now: the current time.
            took: duration of the query.
            focused: the terminal has focus.
        """
        self.looking, self.failures = False, 0
        self.next = now + max(PERIOD if focused else UNFOCUSED, min(took * SHARE, SLOWEST))

    def failed(self, now: float) -> None:
        """Record a failure; the pause doubles each time."""
        self.looking = False
        self.failures += 1
        self.next = now + min(LONGEST_WAIT, PERIOD * 2 ** min(self.failures - 1, 10))

    def hurry(self) -> None:
        """Query as soon as possible, after a change or on request."""
        self.next = 0.0
