"""ForcedEnd: a thread that ends the process when draining exceeds its time limit."""

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable

log = logging.getLogger("runner")

ARM, EXIT_SOON, DISARM = b"a", b"h", b"d"

GRACE = 1.0
"""Seconds for the event loop to end the process after a second signal, before the thread does."""


class ForcedEnd:
    """Ends the process from a thread, which a blocked event loop cannot stop.

    Args:
        seconds: time in seconds from `arm` to the end of the process.
        report: logs the unfinished tasks; its argument is the exit code.
        code: the exit code.
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
        with contextlib.suppress(OSError):
            os.write(self._writer, command)

    def _run(self) -> None:
        end: float | None = None
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._reader], [], [], left)[0]:
                return self._end()
            command = os.read(self._reader, 1)
            if command == DISARM:
                return None
            wait = self._seconds if command == ARM else GRACE
            end = min(end or time.monotonic() + wait, time.monotonic() + wait)

    def _end(self) -> None:
        try:
            self._report(self.code)
        finally:
            exit_now(self.code)


def exit_now(code: int) -> None:
    """End the process without waiting for threads and coroutines."""
    logging.shutdown()
    os._exit(code)
