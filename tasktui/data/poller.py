"""When a screen queries the database: never in parallel, and less often if the database is slow or down."""

from dataclasses import dataclass

from runner.text import formatting

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

NO_ANSWER_AFTER = 5.0
"""Seconds of a query after which the heading reports a missing answer."""

OLD = 4.0
"""Seconds after which the heading shows the age of the data: ages on the screen do not advance between queries."""


@dataclass(slots=True)
class Poller:
    """The query schedule of one screen; all times are seconds on the same clock.

    Args:
        next: time of the next query.
        looking: a query is running.
        failures: number of consecutive failures.
        started_at: start of the last query.
        read_at: end of the last query that succeeded; None before the first one.
        error: error of the last query; empty if it succeeded.
    """

    next: float = 0.0
    looking: bool = False
    failures: int = 0
    started_at: float = 0.0
    read_at: float | None = None
    error: str = ""

    def due(self, now: float) -> bool:
        """True if it is time for a query."""
        return not self.looking and now >= self.next

    def begin(self, now: float) -> None:
        """Record the start of a query."""
        self.looking, self.started_at = True, now

    def succeeded(self, now: float, took: float, *, focused: bool = True) -> None:
        """Record the success of a query.

        Args:
            now: the current time.
            took: duration of the query.
            focused: the terminal has focus.
        """
        self.looking, self.failures, self.read_at, self.error = False, 0, now, ""
        self.next = now + max(PERIOD if focused else UNFOCUSED, min(took * SHARE, SLOWEST))

    def failed(self, now: float, error: str) -> None:
        """Record a failure; the pause doubles each time."""
        self.looking, self.error = False, error
        self.failures += 1
        self.next = now + min(LONGEST_WAIT, PERIOD * 2 ** min(self.failures - 1, 10))

    def hurry(self) -> None:
        """Query as soon as possible, after a change or on request."""
        self.next = 0.0

    def trouble(self, now: float) -> str:
        """The error or the missing answer, with the age of the data on the screen; empty if there is none."""
        waited = now - self.started_at
        waiting = f"no answer for {formatting.age(waited)}" if self.looking and waited > NO_ANSWER_AFTER else ""
        trouble = waiting or self.error
        prefix = f"data is {formatting.age(now - self.read_at)} old: " if self.read_at is not None else ""
        return f"{prefix}{trouble}" if trouble else ""

    def age(self, now: float) -> str:
        """The age of the data on the screen; empty while it is current."""
        seconds = now - self.read_at if self.read_at is not None else 0.0
        return formatting.age(int(seconds)) if seconds > OLD else ""
