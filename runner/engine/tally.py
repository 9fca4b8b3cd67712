"""Tally: what a runner counts for its own display and for the minute statistics."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from runner.policy import histogram
from runner.store.statistics import Arrival, Minute
from runner.task import Claimed, State

COUNTED: dict[str, str] = {
    "succeed": State.SUCCEEDED,
    "retry": "retried",
    "bury": "died",
    "cancel": State.CANCELLED,
    "rescue": "rescued",
}
"""Under which name a move is counted."""

EARLY = {1: "first_try", 2: "second_try"}
"""Under which name a success of an early attempt is counted besides."""

FIRST = 1
"""The fence that the first claim of a task hands out."""

KEPT = 120.0
"""Seconds for which a minute is kept after it was last written to."""


class Tally:
    """Counts moves, in total and by minute."""

    def __init__(self) -> None:
        self.verbs: Counter[str] = Counter()
        self._minutes: dict[tuple[int, str, str], Minute] = {}
        self._changed: set[tuple[int, str, str]] = set()
        self._arrivals: Counter[Arrival] = Counter()

    def arrived(self, claimed: Iterable[Claimed]) -> None:
        """Count as submitted what nobody has claimed before."""
        self._arrivals.update([(task.submitted, task.queue, task.handler) for task in claimed if task.fence == FIRST])

    def add(self, verb: str, queue: str, handler: str, attempt: int, duration: float | None) -> None:
        """Count one move.

        Args:
            verb: of MOVES.
            queue: of the task.
            handler: of the task.
            attempt: the attempt's number.
            duration: seconds that it took; None when that is not known.
        """
        self.verbs[verb] += 1
        name = COUNTED.get(verb)
        if name is None:
            return
        minute = self._minute(queue, handler)
        minute.counts[name] += 1
        if verb == "succeed" and attempt in EARLY:
            minute.counts[EARLY[attempt]] += 1
        if duration is not None:
            histogram.add(minute.durations, duration)

    def changed(self) -> list[Minute]:
        """The minutes that were counted in since the last call."""
        changed = [self._minutes[key] for key in self._changed]
        self._changed.clear()
        oldest = int((time.time() - KEPT) // 60)
        self._minutes = {key: minute for key, minute in self._minutes.items() if key[0] >= oldest}
        return changed

    def arrivals(self) -> Mapping[Arrival, int]:
        """What was counted as submitted since the last call."""
        arrivals, self._arrivals = self._arrivals, Counter()
        return arrivals

    def forget_minutes(self) -> None:
        """Begin the minutes anew: as another incarnation, whose rows must not repeat those of the last one."""
        self._minutes.clear()
        self._changed.clear()

    def again(self, minutes: list[Minute], arrivals: Mapping[Arrival, int]) -> None:
        """Keep what could not be written for the next time."""
        self._arrivals.update(arrivals)
        for minute in minutes:
            key = (int(minute.minute.timestamp() // 60), minute.queue, minute.handler)
            self._minutes.setdefault(key, minute)
            self._changed.add(key)

    def _minute(self, queue: str, handler: str) -> Minute:
        key = (int(time.time() // 60), queue, handler)
        minute = self._minutes.get(key)
        if minute is None:
            start = datetime.fromtimestamp(key[0] * 60, UTC)
            minute = self._minutes[key] = Minute(start, queue, handler)
        self._changed.add(key)
        return minute
