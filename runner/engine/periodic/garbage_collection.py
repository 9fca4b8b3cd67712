"""GarbageCollection: collects all garbage when the memory of a runner has grown, and returns free memory."""

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress

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
