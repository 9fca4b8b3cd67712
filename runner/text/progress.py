"""The progress of a task, which its handler reports."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from runner.text import formatting
from runner.text.times import format_age


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The progress of the current or last attempt.

    Args:
        done: finished units.
        total: all units; None if unknown.
        unit: name of the units; None without one.
        rate: units per second; None if unknown.
        at: when it was written.
    """

    done: float
    total: float | None
    unit: str | None
    rate: float | None
    at: datetime | None

    @property
    def remaining(self) -> timedelta | None:
        """The time left at the current rate; None if unknown."""
        if not self.rate or self.total is None or self.total < self.done:
            return None
        seconds = (self.total - self.done) / self.rate
        return timedelta(seconds=seconds) if seconds < timedelta.max.total_seconds() / 2 else None

    def describe(self, now: datetime, *, running: bool = True) -> str:
        """The progress as a line, such as "42 of 105 files (40 %), 3.1/s, 20s left".

        Args:
            running: False to leave out the rate and the time left.
        """
        share = f" ({min(100.0, 100 * self.done / self.total):.0f} %)" if self.total else ""
        of = f" of {_amount(self.total)}" if self.total is not None else ""
        parts = [f"{_amount(self.done)}{of}{f' {self.unit}' if self.unit else ''}{share}"]
        if running:
            parts += [f"{_amount(self.rate)}/s"] if self.rate else []
            parts += [f"{format_age(self.remaining)} left"] if self.remaining else []
        parts += [f"reported {formatting.distance(self.at, now)}"] if self.at else []
        return ", ".join(parts)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
