"""ForcedEnd: ends a process that does not end by itself."""

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from runner import log_queue

ARM, EXIT_SOON, DISARM = b"a", b"h", b"d"


GRACE = 1.0
"""Seconds for the event loop to end the process after a second signal, before the thread does."""


REPORT_LIMIT = 2.0
"""Seconds for the last log lines of a process that ends."""


class ForcedEnd:
    """Ends the process from a thread, which a blocked event loop cannot stop.

    Args:
        seconds: time in seconds from `arm` to the end of the process.
        report: logs the unfinished tasks; its argument is the exit code.
    """

    def __init__(self, seconds: float, report: Callable[[int], None], code: int) -> None:
        self.code = code
        self._seconds = seconds
        self._report = report
        self._reader, self._writer = os.pipe()
        # Signal handlers write to a pipe: they can interrupt any line, even one that has a lock.
        self._thread = threading.Thread(target=self._run, name="runner-forced-end", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """Start the countdown; further calls have no effect. Safe in signal handlers."""
        self._send(ARM)

    def exit_soon(self, code: int) -> None:
        """End the process within a second with another exit code. Safe in signal handlers."""
        self.code = code
        self._send(EXIT_SOON)

    def disarm(self) -> None:
        """Cancel the countdown and end the thread."""
        self._send(DISARM)
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _send(self, command: bytes) -> None:
        with suppress(OSError):
            os.write(self._writer, command)

    def _run(self) -> None:
        end: float | None = None
        while True:
            remaining = None if end is None else max(0.0, end - time.monotonic())
            try:
                if not select.select([self._reader], [], [], remaining)[0]:
                    return self._end()
                command = os.read(self._reader, 1)
            except (OSError, ValueError):  # a handler has closed it: the watchdog or the event loop reports that
                return None
            if command == DISARM:
                return None
            wait = self._seconds if command == ARM else GRACE
            end = min(end or time.monotonic() + wait, time.monotonic() + wait)

    def _end(self) -> None:
        _try_in_thread(lambda: self._report(self.code))
        exit_now(self.code)


def exit_now(code: int) -> NoReturn:
    """End the process without waiting for threads and coroutines, nor for readers of the log that stand still."""
    log_queue.drain()
    _try_in_thread(logging.shutdown)
    os._exit(code)


def _try_in_thread(function: Callable[[], object]) -> None:
    """Call a function in a thread, and wait for its end at most REPORT_LIMIT seconds.

    The log handlers of an application may wait for a reader, or for a lock of a thread that waits for one.
    """
    thread = threading.Thread(target=function, daemon=True)
    with suppress(RuntimeError):  # the system allows no further thread
        thread.start()
        thread.join(REPORT_LIMIT)
