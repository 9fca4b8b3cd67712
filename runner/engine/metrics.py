"""Metrics: the counters of the work of a runner."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from runner.db.database import Database
from runner.db.errors import row_fault
from runner.db.halves import write_in_halves
from runner.engine.events import AttemptsEnded, Events, TasksCancelled, TasksRescued
from runner.engine.running import Running
from runner.engine.stuck_rows import locks_of_faults
from runner.engine.turns import in_turns
from runner.errors import StoreError
from runner.model.stuck_row import RowFault, StuckCause
from runner.policy.histogram import ExportedTimes, Histogram, Times, merged
from runner.policy.work_keys import OTHERS, WorkKey, WorkKeys
from runner.store.minute_statistics import COUNTED, record_times
from runner.store.settle import Settlement
from runner.text.sanitize import one_line
from runner.text.stuck_row import lock_text

log = logging.getLogger("runner")

TIMED = frozenset(COUNTED) - {"rescue"}
"""The moves of attempts whose times count."""


class Metrics:
    """Counts since the start, and times since the last heartbeat.

    The times are not in the transaction of the outcome: one row per bin and settle would cost more than the settle.
    A runner that is killed loses the times of its last seconds, never a count.

    Args:
        exports: count by queue and handler since the start too, for an exporter.
    """

    def __init__(self, events: Events, *, exports: bool = False) -> None:
        self.verbs: Counter[str] = Counter()
        """Moves by verb."""
        self.ended: Counter[tuple[str, str, str]] = Counter()
        """With `exports`, the ends of attempts by queue, handler and verb."""
        self._exports = exports
        self.work_keys = WorkKeys()
        """With `exports`, the names of queues and handlers."""
        self._times: tuple[Mapping[WorkKey, ExportedTimes], dict[WorkKey, Times]] = ({}, {})
        """The times until the last heartbeat, with `exports`, and those since then: replaced together, for a reader in
        another thread."""
        self._unwritten: dict[WorkKey, Times] = {}
        self._refused: dict[WorkKey, str] = {}
        self._lock: object = None
        """The lock that was logged last; None after a write."""
        events.subscribe(AttemptsEnded, self._count_ends)
        events.subscribe(TasksRescued, self._count_rescues)
        events.subscribe(TasksCancelled, self._count_cancelled)

    @property
    def times(self) -> dict[WorkKey, Times]:
        """Run times and waits of attempts since the last heartbeat."""
        return self._times[1]

    def exported_times(self) -> Mapping[WorkKey, ExportedTimes]:
        """With `exports`, run times and waits of attempts since the start. Any thread may ask."""
        earlier, recent = self._times
        return self._sum(earlier, in_turns(tuple(recent.items())))

    def _count_ends(self, event: AttemptsEnded) -> None:
        verb = event.verb or "fenced"
        self.verbs[verb] += len(event.attempts)
        if verb not in TIMED and not self._exports:
            return
        groups = defaultdict[WorkKey, list[tuple[Running, Settlement]]](list)
        for attempt in event.attempts:
            task = attempt[0].task
            groups[task.queue, task.handler].append(attempt)
        for work_key, attempts in groups.items():
            if self._exports:
                self.ended[*self.work_keys.name(work_key), verb] += len(attempts)
            if verb in TIMED:
                self._add_times(work_key, attempts)

    def _add_times(self, work_key: WorkKey, attempts: Sequence[tuple[Running, Settlement]]) -> None:
        times = self.times.get(work_key)
        if times is None:
            times = self.times[work_key] = Times(Histogram(), Histogram())
        times.runs.add([took for _, settlement in attempts if (took := settlement.duration) is not None])
        times.waits.add(
            [
                late + running.started - running.received_at
                for running, settlement in attempts
                if settlement.duration is not None and (late := running.task.late) is not None
            ]
        )

    def _sum(
        self, earlier: Mapping[WorkKey, ExportedTimes], recent: Iterable[tuple[WorkKey, Times]]
    ) -> Mapping[WorkKey, ExportedTimes]:
        """Add up times by exported work key; both arguments stay as they are."""
        result = dict(earlier)
        for work_key, times in recent:
            name = work_key if work_key in self.work_keys.listed else OTHERS
            result[name] = result.get(name, ExportedTimes()).plus(times)
        return result

    def _count_rescues(self, event: TasksRescued) -> None:
        self.verbs.update(task.verb for task in event.tasks.values())

    def _count_cancelled(self, event: TasksCancelled) -> None:
        self.verbs["cancel"] += len(event.tasks)

    async def write_times(self, database: Database, runner_id: int) -> None:
        """Add the times to the minute statistics. They stay here while the database is unavailable."""
        earlier, recent = self._times
        if recent:
            self._times = (self._sum(earlier, recent.items()) if self._exports else {}, {})
        rest, self._unwritten = self._unwritten, {}  # the last heartbeat may still write when the shutdown does
        _add(rest, recent)
        if not rest:
            return

        async def write(part: Sequence[WorkKey]) -> None:
            await database.write(record_times, runner_id, {work_key: rest[work_key] for work_key in part})
            for work_key in part:
                del rest[work_key]

        try:
            await write_in_halves(list(rest), write, self._log_refused, _refusal)
            await self._report_locked(database, None)
        except StoreError as error:  # the heartbeat logs an outage
            await self._report_locked(database, row_fault(error))
        finally:
            _add(self._unwritten, rest)

    async def _report_locked(self, database: Database, fault: RowFault | None) -> None:
        """Log the row whose lock delays all times, once per session that holds it.

        They are not written in halves: each one would wait for the lock, and delay the next heartbeat.
        """
        if fault is None:
            self._lock = None
            return
        lock = (await locks_of_faults(database, {0: fault})).get(0)
        name = (lock.table, lock.key, lock.session.pid) if lock else fault.place
        if self._lock != name:
            self._lock = name
            text = lock_text(lock) if lock else one_line(fault.fact)
            log.warning("the times of attempts wait for the next heartbeats: %s", text)

    def _log_refused(self, work_key: WorkKey, fault: RowFault) -> None:
        if self._refused.get(work_key) != fault.fact:
            self._refused[work_key] = fault.fact
            queue, handler = map(one_line, work_key)
            text = "the times of handler %s in queue %s cannot be written, trying again with each heartbeat: %s"
            log.warning(text, handler, queue, one_line(fault.fact))


def _refusal(error: StoreError) -> RowFault | None:
    """The fault of a row that the database refuses; None for an outage or a lock, which concern all rows."""
    fault = row_fault(error)
    return None if fault is None or fault.cause is StuckCause.LOCKED else fault


def _merged(times: Sequence[Times]) -> Times:
    return Times(merged([each.runs for each in times]), merged([each.waits for each in times]))


def _add(target: dict[WorkKey, Times], more: Mapping[WorkKey, Times]) -> None:
    for work_key, times in more.items():
        before = target.get(work_key)
        target[work_key] = _merged([before, times]) if before else times
