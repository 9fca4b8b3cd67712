"""Metrics of a runner: counters of its work and its resources, and the log records of failed attempts and rescues."""

import contextlib
import logging
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.db.database import Database
from runner.engine.attempt_outcome import handler_frames
from runner.engine.settle_buffer import Settling
from runner.engine.slots import Running
from runner.errors import StoreError
from runner.model.outcome import Dead, Done, Outcome, Retry, Snooze
from runner.policy.histogram import Histogram, Times, merged
from runner.store.heartbeat import Usage
from runner.store.minute_statistics import COUNTED, record_times
from runner.store.rescue import Rescued
from runner.store.settle import Settlement
from runner.text import formatting
from runner.text.sanitize import count_noun

log = logging.getLogger("runner")
outcome_log = logging.getLogger("runner.outcome")
"""The failed attempts and the deaths."""

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
        late_results: handlers that returned a result after `ctx.transaction()`; the log names each once.
    """

    verbs: Counter[str] = field(default_factory=Counter)
    times: dict[tuple[str, str], Times] = field(default_factory=dict)
    late_results: set[str] = field(default_factory=set)

    def count(self, verb: str, items: Sequence[Settling]) -> None:
        """Count attempts of which the outcome is written.

        Args:
            verb: their move.
            items: the attempts.
        """
        self.verbs[verb] += len(items)
        if verb not in TIMED:
            return
        groups = defaultdict[tuple[str, str], list[Settling]](list)
        for item in items:
            task = item[0].task
            groups[task.queue, task.handler].append(item)
        for lane, settlings in groups.items():
            times = self.times.get(lane)
            if times is None:
                times = self.times[lane] = Times(Histogram(), Histogram())
            times.runs.add([took for _, settlement in settlings if (took := settlement.duration) is not None])
            times.waits.add(
                [
                    late + running.started - running.received_at
                    for running, settlement in settlings
                    if settlement.duration is not None and (late := running.task.late) is not None
                ]
            )

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
            for work_key, (runs, waits) in self.times.items():
                before = times.get(work_key, Times(Histogram(), Histogram()))
                times[work_key] = Times(merged([before.runs, runs]), merged([before.waits, waits]))
            self.times = times


class ResourceMeter:
    """Reads processor time and memory of this process and of its handler processes.

    Args:
        processes: returns the ids of the handler processes.
    """

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._read_at, self._used = time.monotonic(), self._cpu_seconds()

    def read(self) -> Usage:
        """Return the processors in use since the last call, and the memory in use now."""
        before, used_before = self._read_at, self._used
        self._read_at, self._used = time.monotonic(), self._cpu_seconds()
        seconds = self._read_at - before
        cpu = max(0.0, self._used - used_before) / seconds if seconds > 0 else None
        own = resident_memory(os.getpid())
        others = [resident_memory(pid) or 0 for pid in self._processes()]
        return Usage(cpu, sum(others, start=own) if own is not None else _largest_memory())

    def _cpu_seconds(self) -> float:
        """Processor time of this process, of its ended children, and on Linux of its handler processes."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (
            time.process_time() + children.ru_utime + children.ru_stime + sum(map(_cpu_seconds_of, self._processes()))
        )


def resident_memory(pid: int) -> int | None:
    """The resident memory of a process in bytes; None outside Linux, or if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def _cpu_seconds_of(pid: int) -> float:
    """Processor time of a process and of its ended children; zero outside Linux, or if it has ended."""
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _largest_memory() -> int:
    """The largest resident memory of this process so far, in bytes: systems without /proc have no other figure."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


_LEVELS = {"die": logging.ERROR, "retry": logging.WARNING, "rescue": logging.WARNING}
"""Levels of the moves that need attention; the others are information."""


def log_unfinished(running: Running) -> None:
    """Log a task that did not end when interrupted, without its payload."""
    task = running.task
    log.error("task %d (%s) ignored its interrupt: it ends with the process", task.id, task.handler)


MOST_NAMED = 20
"""Tasks that are named when a process ends with many."""


def log_immediate_exit(number: int, started: Sequence[Running]) -> None:
    """Log the tasks of a process that ends on a second signal.

    Args:
        number: all tasks of the runner, which other runners rescue.
        started: those whose body is running.
    """
    names = ", ".join(f"task {running.task.id} ({running.task.handler})" for running in started[:MOST_NAMED])
    more = f" and {len(started) - MOST_NAMED:,} more" if len(started) > MOST_NAMED else ""
    running = f"; running: {names}{more}" if started else ""
    log.warning("exiting immediately: %s will be rescued%s", count_noun(number, "task"), running)


def log_rescued(id: int, task: Rescued) -> None:
    """Log a task that this runner took from a lost one."""
    extra = {"task": id, "handler": task.handler, "queue": task.queue, "key": task.key, "attempt": task.attempt}
    outcome_log.log(
        _LEVELS.get(task.verb, logging.WARNING), "task %d (%s) %s", id, task.handler, task.text, extra=extra
    )


def log_failure(running: Running, settlement: Settlement, verb: str) -> None:
    """Log an attempt that did not succeed, without its payload: a death with its exception, for error trackers."""
    task, failure = running.task, getattr(settlement.outcome, "failure", None)
    why = failure.reason if failure else getattr(settlement.outcome, "why", None) or ""
    attempt = f"attempt {task.attempt}/{task.max_attempts}"
    level, error = _LEVELS.get(verb, logging.INFO), running.error if verb == "die" else None
    exc_info = error and (type(error), error, handler_frames(error))
    extra = {
        "task": task.id,
        "handler": task.handler,
        "queue": task.queue,
        "key": task.key,
        "attempt": task.attempt,
        "max_attempts": task.max_attempts,
        "error_type": failure.type if failure else None,
    }
    end = ": ".join(filter(None, (formatting.ended_as(verb), " ".join(why[:300].split()))))
    outcome_log.log(level, "task %d (%s) %s %s", task.id, task.handler, attempt, end, exc_info=exc_info, extra=extra)


def log_late_end(running: Running, outcome: Outcome, late_results: set[str]) -> None:
    """Log a result, an outcome or a failure that came after `ctx.transaction()` and changes nothing.

    Args:
        running: the task, which succeeded with its transaction.
        outcome: the outcome of the handler.
        late_results: the handlers of which a result is already in the log.
    """
    task, failure, text = running.task, getattr(outcome, "failure", None), ""
    if failure is not None:
        text = f"succeeded in its own transaction, then failed: {' '.join(failure.reason[:300].split())}"
    elif isinstance(outcome, (Retry, Dead, Snooze)):
        text = f"succeeded in its own transaction: its {type(outcome).__name__} after that is ignored"
    elif isinstance(outcome, Done) and outcome.result and not running.result_in_tx and task.handler not in late_results:
        late_results.add(task.handler)
        text = "returned a result after ctx.transaction(), which is not kept: set it within the block"
    if text:
        log.warning("task %d (%s) %s", task.id, task.handler, text)
