"""Metrics: the counters of the work of a runner."""

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence

from runner.db.database import Database
from runner.db.halves import write_in_halves
from runner.engine.events import AttemptsEnded, Events, TasksCancelled, TasksRescued
from runner.engine.slots import Running
from runner.errors import StoreError
from runner.model.stuck_row import RowFault
from runner.policy.histogram import Histogram, Times, merged
from runner.store.minute_statistics import COUNTED, record_times
from runner.store.settle import Settlement
from runner.text.sanitize import one_line

log = logging.getLogger("runner")

TIMED = frozenset(COUNTED) - {"rescue"}
"""The moves of attempts whose times count."""


class Metrics:
    """Counts since the start, and times since the last heartbeat.

    The times are not in the transaction of the outcome: one row per bin and settle would cost more than the settle.
    A runner that is killed loses the times of its last seconds, never a count.
    """

    def __init__(self, events: Events) -> None:
        self.verbs: Counter[str] = Counter()
        """Moves by verb."""
        self.times: dict[tuple[str, str], Times] = {}
        """Run times and waits of attempts by queue and handler."""
        self._refused: dict[tuple[str, str], str] = {}
        events.subscribe(AttemptsEnded, self._count_ends)
        events.subscribe(TasksRescued, self._count_rescues)
        events.subscribe(TasksCancelled, self._count_cancelled)

    def _count_ends(self, event: AttemptsEnded) -> None:
        self.verbs[event.verb or "fenced"] += len(event.attempts)
        if event.verb not in TIMED:
            return
        groups = defaultdict[tuple[str, str], list[tuple[Running, Settlement]]](list)
        for attempt in event.attempts:
            task = attempt[0].task
            groups[task.queue, task.handler].append(attempt)
        for lane, attempts in groups.items():
            times = self.times.get(lane)
            if times is None:
                times = self.times[lane] = Times(Histogram(), Histogram())
            times.runs.add([took for _, settlement in attempts if (took := settlement.duration) is not None])
            times.waits.add(
                [
                    late + running.started - running.received_at
                    for running, settlement in attempts
                    if settlement.duration is not None and (late := running.task.late) is not None
                ]
            )

    def _count_rescues(self, event: TasksRescued) -> None:
        self.verbs.update(task.verb for task in event.tasks.values())

    def _count_cancelled(self, event: TasksCancelled) -> None:
        self.verbs["cancel"] += len(event.tasks)

    async def write_times(self, database: Database, runner_id: int) -> None:
        """Add the times to the minute statistics. They stay here while the database is unavailable."""
        if not self.times:
            return
        rest, self.times = self.times, {}

        async def write(part: Sequence[tuple[str, str]]) -> None:
            await database.write(record_times, runner_id, {lane: rest[lane] for lane in part})
            for lane in part:
                del rest[lane]

        with contextlib.suppress(StoreError):  # the heartbeat logs an outage
            await write_in_halves(list(rest), write, self._log_refused)
        for lane, (runs, waits) in rest.items():
            after = self.times.get(lane, Times(Histogram(), Histogram()))
            self.times[lane] = Times(merged([runs, after.runs]), merged([waits, after.waits]))

    def _log_refused(self, lane: tuple[str, str], fault: RowFault) -> None:
        if self._refused.get(lane) != fault.fact:
            self._refused[lane] = fault.fact
            queue, handler = map(one_line, lane)
            text = "the times of handler %s in queue %s cannot be written, trying again with each heartbeat: %s"
            log.warning(text, handler, queue, one_line(fault.fact))
