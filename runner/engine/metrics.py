"""Metrics: counters of a runner for its log, and the times of its attempts for the minute statistics."""

from collections import Counter
from dataclasses import dataclass, field

from runner.db.database import Database
from runner.engine.slots import Running
from runner.errors import StoreError
from runner.policy.histogram import Histogram, Times, merged
from runner.store.minute_statistics import COUNTED, record_times

TIMED = frozenset(COUNTED) - {"rescue"}
"""The moves of attempts whose times count."""


@dataclass
class Metrics:
    """Counts since the start, and times since the last heartbeat.

    The times are not in the transaction of the outcome: one row per bin and settle would cost more than the settle.
    A runner that is killed loses the times of its last seconds, never a count.

    Args:
        verbs: moves by verb.
        times: run times and waits of attempts by queue and handler.
    """

    verbs: Counter[str] = field(default_factory=Counter)
    times: dict[tuple[str, str], Times] = field(default_factory=dict)

    def count(self, running: Running, verb: str, took: float | None) -> None:
        """Count an attempt of which the outcome is written.

        Args:
            running: the attempt.
            verb: its move.
            took: its run time in seconds; None if it did not run.
        """
        self.verbs[verb] += 1
        if verb not in TIMED or took is None:
            return
        task = running.task
        times = self.times.get((task.queue, task.handler))
        if times is None:
            times = self.times[task.queue, task.handler] = Times(Histogram(), Histogram())
        times.runs.add(took)
        if (late := task.late) is not None:
            times.waits.add(max(0.0, late + running.started - running.received_at))

    async def write_times(self, database: Database, runner_id: int) -> None:
        """Add the times to the minute statistics. They stay here while the database is unavailable.

        Args:
            database: the database of the runner.
            runner_id: id of the runner.
        """
        if not self.times:
            return
        times, self.times = self.times, {}
        try:
            await database.write(record_times, runner_id, times)
        except StoreError:  # the heartbeat logs this
            for place, (runs, waits) in self.times.items():
                before = times.get(place, Times(Histogram(), Histogram()))
                times[place] = Times(merged([before.runs, runs]), merged([before.waits, waits]))
            self.times = times
