"""When a screen looks at the database: never twice at once, less often when it is slow, away, or nobody watches."""

from dataclasses import dataclass

PERIOD = 1.0
"""Seconds between looks when all is well."""

SHARE = 40
"""A look that took long is followed by so many times its length without one, so that little of the load is ours."""

SLOWEST = 10.0
"""Seconds between looks at most, while the database answers."""

UNFOCUSED = 5.0
"""Seconds between looks while the terminal is not in front."""

LONGEST_WAIT = 30.0
"""Seconds between tries while the database is away, at most."""


@dataclass(slots=True)
class Feed:
    """The pace of one screen; all times are seconds on the same clock.

    Args:
        next: when to look.
        looking: a look is under way.
        failures: looks in a row that failed.
    """

    next: float = 0.0
    looking: bool = False
    failures: int = 0

    def due(self, now: float) -> bool:
        """Tell whether to look."""
        return not self.looking and now >= self.next

    def begin(self) -> None:
        """A look begins."""
        self.looking = True

    def succeeded(self, now: float, took: float, *, focused: bool = True) -> None:
        """A look has ended well.

        Args:
            now: when that is known.
            took: how long it took.
            focused: the terminal is in front.
        """
        self.looking, self.failures = False, 0
        self.next = now + max(PERIOD if focused else UNFOCUSED, min(took * SHARE, SLOWEST))

    def failed(self, now: float) -> None:
        """A look has failed: wait longer each time."""
        self.looking = False
        self.failures += 1
        self.next = now + min(LONGEST_WAIT, PERIOD * 2 ** min(self.failures - 1, 10))

    def hurry(self) -> None:
        """Look as soon as possible: something has been changed, or asked for."""
        self.next = 0.0
