"""ResourceMeter: the processor time and the memory of a runner."""

import ctypes
import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

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
    with suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _largest_memory() -> int:
    """The largest resident memory of this process so far, in bytes: systems without /proc have no other figure."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


GROWTH, SPARE = 1.1, 8 * 2**20
"""The factor and the bytes by which the memory grows between two collections."""

RETURN_GROWTH, RETURN_SPARE = 1.02, 4 * 2**20
"""Those after which free memory returns to the system: this takes a millisecond or two."""

M_MMAP_THRESHOLD, LARGE_BLOCK = -3, 256 * 2**10
"""The option of glibc, and the bytes from which a block has pages of its own."""


class GarbageCollection:
    """Collects all garbage when memory has grown, beside the collections that the number of new objects causes.

    A few objects of a handler can keep much memory, and the thresholds of a runner are high. The allocator of glibc
    keeps free memory between used blocks, in an arena for each thread, until it is told to return it. A process that
    has not frozen its modules belongs to an application, which collects as it wants.

    Args:
        read: returns the resident memory in bytes; None if it is unknown.
    """

    def __init__(self, read: Callable[[], int | None]) -> None:
        self._read = read
        self._last = self._collected = read() or 0

    def memory(self) -> int | None:
        """Return the resident memory in bytes, after a collection if it has grown."""
        now = self._read()
        if now is None or now <= self._last * RETURN_GROWTH + RETURN_SPARE or not gc.get_freeze_count():
            return now
        is_large = now > self._collected * GROWTH + SPARE
        if is_large:
            gc.collect()
        return_memory()
        self._last = self._read() or now
        if is_large:
            self._collected = self._last
        return self._last


def return_memory() -> None:
    """Let the allocator return free memory to the system; without glibc, do nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def return_large_blocks() -> None:
    """Let the allocator return each large block to the system when it is free; without glibc, do nothing.

    By default, glibc raises the size of these blocks to that of the largest one that was freed, up to 32 MB. Later
    blocks of a batch then lie between small ones, in an arena for each thread, which keeps the gaps that they leave.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
