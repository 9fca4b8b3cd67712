"""Thresholds: the largest numbers that cause no alert."""

from dataclasses import dataclass
from datetime import timedelta

from runner.queries.overview import MIN_SHARE


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The largest numbers that cause no alert.

    Args:
        dead: tasks that died within the span and are still dead.
        failing: share of the attempts of a queue or a handler that failed in the last ten minutes, from 0 to 1.
        late: time since the first ready task of a queue became due.
        locked: time since a runner first found a row locked that it could not change.
        refused: rows that the database refuses to change.
    """

    dead: int = 0
    span: timedelta = timedelta(hours=1)
    failing: float = MIN_SHARE
    late: timedelta = timedelta(minutes=5)
    locked: timedelta = timedelta()
    refused: int = 0


DEFAULT_THRESHOLDS = Thresholds()
