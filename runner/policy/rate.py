"""Rates: limits of starts per second, minute or hour, as a token bucket.

The limit of a queue or a handler that uses it is StartRate in runner.policy.limits.
"""

import re
from typing import NamedTuple, Self

from runner.errors import InvalidEdit

MAX_LIMIT = 1_000_000_000
"""The highest limit."""

PERIODS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "m": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
"""Seconds of each unit of a rate."""

SPELLINGS = {1.0: "s", 60.0: "min", 3600.0: "h"}

RATE = re.compile(r"\s*(\d[\d_,]*)\s*/\s*(\d*)\s*([a-z]+)\s*")


MOST_BY_RUN_TIME = 60_000.0
"""The highest attempts per minute that the run time decides; above, claims and settles do, which differ by machine."""


class Bound(NamedTuple):
    """A bound on the attempts of a work key per minute.

    Args:
        name: the bound, for people: slots, queue mail: at most 5 running.
        per_minute: attempts per minute.
        at_least: True if more are possible, but how many is unknown.
    """

    name: str
    per_minute: float
    at_least: bool = False


class Rate(NamedTuple):
    """A token bucket: `tokens` starts per `period`, all of them together after a pause of a period.

    The bucket is stored as one number, the time when all its tokens are back (GCRA, ITU-T I.371): a start adds
    `interval` to it.

    Args:
        tokens: number of starts, and the size of the bucket.
        period: seconds.
    """

    tokens: int
    period: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a rate such as 100/min, 5/s, 2000/h or 10/5min.

        Raises:
            InvalidEdit: the text is not a rate, or zero.
        """
        match = RATE.fullmatch(text.lower())
        period = PERIODS.get(match[3].removesuffix("s") or "s") if match else None
        if match is None or period is None:
            raise InvalidEdit(field="rate", value=text, why="expected starts per time, such as 5/s, 100/min or 2000/h")
        number, length = int(re.sub("[_,]", "", match[1])[:12]), int(match[2][:6] or 1)
        if not (1 <= number <= MAX_LIMIT and length):
            raise InvalidEdit(field="rate", value=text, why=f"it must allow 1 to {MAX_LIMIT:,} starts")
        return cls(number, period * length)

    @property
    def interval(self) -> float:
        """Seconds until one token is back."""
        return self.period / self.tokens

    def used(self, spent: float | None, now: float) -> float:
        """Seconds until all tokens are back; at most a period, also after the clock was set back."""
        return min(max(0.0, (spent or 0.0) - now), self.period)

    def available(self, spent: float | None, now: float) -> int:
        """The tokens in the bucket.

        Args:
            spent: when all used tokens are back, in seconds since 1970; None if none was ever used.
            now: the database's time in seconds since 1970.
        """
        return int((self.period - self.used(spent, now)) / self.interval + 1e-6)

    def after(self, spent: float | None, now: float, starts: int) -> float:
        """The time when all tokens are back after some more starts; arguments as for `available`."""
        return now + self.used(spent, now) + starts * self.interval

    def wait(self, spent: float | None, now: float) -> float:
        """Seconds until the next token is back; 0 if there is one. Arguments as for `available`."""
        return max(0.0, self.used(spent, now) - self.period + self.interval)

    def __str__(self) -> str:
        unit = SPELLINGS.get(self.period)
        if unit is None:
            size = next(size for size in (3600.0, 60.0, 1.0) if self.period % size == 0 or size == 1.0)
            unit = f"{self.period / size:g}{SPELLINGS[size]}"
        return f"{self.tokens}/{unit}"


def checked(field: str, value: int | None) -> int | None:
    """Return a limit on running tasks, if it is valid.

    Raises:
        InvalidEdit: it is not a whole number from 1 to MAX_LIMIT.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LIMIT):
        why = f"it must be a whole number from 1 to {MAX_LIMIT:,}; `runner pause` stops all tasks"
        raise InvalidEdit(field=field, value=str(value), why=why)
    return value
