"""Thresholds: the largest numbers that cause no alert."""

from datetime import timedelta
from typing import NamedTuple, Self

from runner.queries.overview import MIN_SHARE
from runner.settings import Settings


class Thresholds(NamedTuple):
    """The largest numbers that cause no alert.

    Args:
        dead: tasks that died within the span and are still dead.
        failing: share of the attempts of a queue or a handler that failed in the last ten minutes, from 0 to 1.
        failures: failed attempts of a task that is not dead.
        late: time since the first ready task of a queue, or the run of a schedule, became due.
        locked: time since a runner first found a row locked that it could not change.
        refused: rows that the database refuses to change.
    """

    dead: int = 0
    span: timedelta = timedelta(hours=1)
    failing: float = MIN_SHARE
    failures: int = 3
    late: timedelta = timedelta(minutes=5)
    locked: timedelta = timedelta()
    refused: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The thresholds of the settings."""
        return cls(
            dead=settings.alert_max_dead,
            failing=settings.alert_max_failing / 100,
            failures=settings.alert_max_failures,
            late=settings.alert_max_late,
        )


DEFAULT_THRESHOLDS = Thresholds()
