"""ResourceMeter: the processor time and the memory of a runner."""

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from runner.engine.periodic.garbage_collection import GarbageCollection
from runner.store.heartbeat import Usage


class ResourceMeter:
    """Reads processor time and memory of this process and of its handler processes.

    Args:
        processes: returns the ids of the handler processes.
    """

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._garbage = GarbageCollection(lambda: resident_memory(os.getpid()))
        self._read_at, self._used = time.monotonic(), self._cpu_seconds()

    def read(self) -> Usage:
        """Return the processors in use since the last call, and the memory in use now, without garbage."""
        before, used_before = self._read_at, self._used
        self._read_at, self._used = time.monotonic(), self._cpu_seconds()
        seconds = self._read_at - before
        cpu = max(0.0, self._used - used_before) / seconds if seconds > 0 else None
        own = self._garbage.memory()
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
