"""FileChanges: the writes to a SQLite file, as Linux reports them."""

import asyncio
import os
import struct
from contextlib import suppress
from typing import Self

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.008
"""Seconds from a change to the first check, and between two checks while changes go on."""

CHECKS = 9
"""Checks after a change, over 55 ms: a commit is visible only when the disk has synced the writes before it."""

IN_MODIFY, IN_IGNORED = 0x2, 0x8000
"""From inotify(7): a file was written, and a file is no longer followed because it was deleted."""

EVENT = struct.Struct("iIII")


class FileChanges:
    """The changes of a SQLite file and its write-ahead log, reported by Linux; other systems report none.

    A transaction writes each page with calls of its own. The reports are read only where a wait ends, because a busy
    runner would otherwise wake up for each page that it writes itself.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._followed: dict[int, str] = {}
        self._checks = 0
        self._pause = FIRST_PAUSE
        with suppress(OSError, AttributeError, ImportError):
            import ctypes  # only a program that waits for changes needs it

            self._libc = ctypes.CDLL(None, use_errno=True)
            descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            self._descriptor = descriptor if descriptor >= 0 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def follow(self, path: str) -> bool:
        """Follow the write-ahead log of a SQLite file; True if its changes are reported.

        A log is deleted with the last connection and created again, and its new file must be followed then.
        """
        log_file = f"{path}-wal"
        if self._descriptor is not None and log_file not in self._followed.values():
            watched = self._libc.inotify_add_watch(self._descriptor, os.fsencode(log_file), IN_MODIFY)
            if watched >= 0:
                self._followed[watched] = log_file
        return bool(self._followed)

    async def pause(self, longest: float) -> None:
        """Wait until the next check: briefly after a change, otherwise until the next one or `longest` seconds."""
        if not self._checks and self._read():  # changes since the first of the last checks
            self._checks = CHECKS
        if self._checks:
            self._checks -= 1
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            return
        self._pause = FIRST_PAUSE
        await self._wait(longest)
        if self._read():
            self._checks = CHECKS

    async def _wait(self, longest: float) -> None:
        """Wait until a change is reported, or `longest` seconds."""
        loop, reported = asyncio.get_running_loop(), asyncio.Event()
        timer = loop.call_later(longest, reported.set)
        if self._descriptor is not None:
            loop.add_reader(self._descriptor, reported.set)
        try:
            await reported.wait()
        finally:
            timer.cancel()
            if self._descriptor is not None:
                loop.remove_reader(self._descriptor)

    def _read(self) -> bool:
        """Read the reported changes; True if there were any."""
        changed = False
        with suppress(BlockingIOError):
            while self._descriptor is not None:
                events, position = os.read(self._descriptor, 65_536), 0
                changed = True
                while position + EVENT.size <= len(events):
                    watched, mask, _, length = EVENT.unpack_from(events, position)
                    if mask & IN_IGNORED:
                        self._followed.pop(watched, None)
                    position += EVENT.size + length
        return changed
