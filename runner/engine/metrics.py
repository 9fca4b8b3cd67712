"""Metrics: counters of a runner for its log, the times of its attempts for the minute statistics, and its resources."""

import contextlib
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from runner.db.database import Database
from runner.engine.slots import Running
from runner.errors import StoreError
from runner.policy.histogram import Histogram, Times, merged
from runner.store.heartbeat import Usage
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
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_cpu_seconds_of, self._processes()))


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
