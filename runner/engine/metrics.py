"""Metrics: counters of a runner for its log and for the minute statistics."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from runner.db.database import Database
from runner.engine.heartbeat import Lease
from runner.errors import StoreError
from runner.model.task import Claimed, State
from runner.policy import histogram
from runner.store.minute_statistics import Arrival, Minute, write_statistics

COUNTED: dict[str, str] = {
    "succeed": State.SUCCEEDED,
    "retry": "retried",
    "die": "died",
    "cancel": State.CANCELLED,
    "rescue": "rescued",
}
"""The statistics column for each move."""

EARLY = {1: "first_try", 2: "second_try"}
"""The additional column for a success on an early attempt."""

FIRST = 1
"""The fence of the first claim of a task."""

KEPT = 120.0
"""Seconds that a minute stays in memory."""


class Metrics:
    """Counts moves in total and per minute.

    Args:
        now: returns the database's time in seconds since 1970.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.verbs: Counter[str] = Counter()
        self._minutes: dict[tuple[int, str, str], Minute] = {}
        self._changed: set[tuple[int, str, str]] = set()
        self._arrivals: Counter[Arrival] = Counter()

    def count_arrivals(self, claimed: Iterable[Claimed]) -> None:
        """Count the tasks that were claimed for the first time as submitted."""
        self._arrivals.update([(task.submitted, task.queue, task.handler) for task in claimed if task.fence == FIRST])

    def add(self, verb: str, queue: str, handler: str, attempt: int, duration: float | None) -> None:
        """Count one move.

        Args:
            verb: a verb of MOVES.
            queue: queue of the task.
            handler: handler of the task.
            attempt: attempt count.
            duration: duration in seconds; None if unknown.
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

    def take_minutes(self) -> list[Minute]:
        """Return the minutes that changed since the last call."""
        changed = [self._minutes[key] for key in self._changed]
        self._changed.clear()
        oldest = int((self._now() - KEPT) // 60)
        self._minutes = {key: minute for key, minute in self._minutes.items() if key[0] >= oldest}
        return changed

    def take_arrivals(self) -> Mapping[Arrival, int]:
        """Return the submitted tasks counted since the last call."""
        arrivals, self._arrivals = self._arrivals, Counter()
        return arrivals

    def forget_minutes(self) -> None:
        """Clear the minutes for a new registration, whose rows must not repeat earlier ones."""
        self._minutes.clear()
        self._changed.clear()

    async def write(self, database: Database, lease: Lease) -> None:
        """Write the counts since the last call; if that fails, keep them for the next one."""
        minutes, arrivals = self.take_minutes(), self.take_arrivals()
        try:
            if minutes or arrivals:
                await database.write(write_statistics, lease.id, minutes, arrivals)
        except StoreError:
            self.restore(minutes, arrivals)

    def restore(self, minutes: list[Minute], arrivals: Mapping[Arrival, int]) -> None:
        """Keep counts that could not be written for the next attempt."""
        self._arrivals.update(arrivals)
        for minute in minutes:
            key = (int(minute.minute.timestamp() // 60), minute.queue, minute.handler)
            self._minutes.setdefault(key, minute)
            self._changed.add(key)

    def _minute(self, queue: str, handler: str) -> Minute:
        key = (int(self._now() // 60), queue, handler)
        minute = self._minutes.get(key)
        if minute is None:
            start = datetime.fromtimestamp(key[0] * 60, UTC)
            minute = self._minutes[key] = Minute(start, queue, handler)
        self._changed.add(key)
        return minute
