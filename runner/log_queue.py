"""Log queue: log lines that a thread writes, so that a reader that stands still never stops the runner."""

import errno
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TextIO

from runner.text.sanitize import count_noun

log = logging.getLogger("runner")

MOST_LINES = 10_000
MOST_BYTES = 8 * 1024 * 1024
"""The lines that wait at most; further ones are dropped."""

FLUSH_LIMIT = 1.0
"""Seconds that the exit of the process waits for a reader that accepts nothing."""

BLOCK = 64 * 1024
"""Bytes of lines that are written together, as many as a pipe holds."""

RETRY = 1.0
"""Seconds after which a write that failed is tried again: the disk of a log file may have room by then."""

GONE = (errno.EPIPE, errno.EBADF, errno.ECONNRESET, errno.EIO)
"""Errors of an output whose other end does not come back."""


_QUEUES: dict[int, "LogQueue"] = {}
"""The queues of this process, by the descriptor of the file."""


def queued(stream: TextIO) -> "TextIO | LogQueue":
    """Return a stream whose lines a thread writes to the file of a standard stream; another stream as it is."""
    if stream not in (sys.stdout, sys.stderr):
        return stream
    try:
        file = stream.fileno()
    except (OSError, ValueError):  # a test's stream, without a file
        return stream
    if file not in _QUEUES:
        _QUEUES[file] = LogQueue(stream)
    return _QUEUES[file]


def drain(limit: float = FLUSH_LIMIT) -> None:
    """Wait until the queues of this process are empty.

    Args:
        limit: as for `LogQueue.drain`.
    """
    for queue in _QUEUES.values():
        queue.drain(limit)


class LogQueue:
    """A text stream whose lines a thread writes to the file of another stream, in order.

    Lines that the file does not accept wait, up to MOST_LINES and MOST_BYTES. Further lines are dropped; the next line
    that finds room is preceded by a warning with their number. In a forked process lines are written directly.

    Args:
        stream: standard error or standard output.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.name = "stdout" if stream is sys.stdout else "stderr"
        self._file = stream.fileno()
        self._reset(is_direct=False)
        os.register_at_fork(after_in_child=lambda: self._reset(is_direct=True))

    def _reset(self, *, is_direct: bool) -> None:
        """Begin without lines. The thread and the lines of a parent process stay there."""
        self._lines: deque[bytes] = deque()
        self._bytes = self._blocks = self._dropped = 0
        self._failure: OSError | None = None
        self._reason = ""
        self._thread: threading.Thread | None = None
        self._change = threading.Condition()
        self._is_direct = is_direct

    def isatty(self) -> bool:
        """True on a terminal."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """The descriptor of the file."""
        return self._file

    def write(self, text: str) -> int:
        """Queue a line; never waits for the file."""
        data = text.encode(self.stream.encoding or "utf-8", "backslashreplace")
        if self._is_direct or not self._has_thread():
            self._write_all(data)
        elif len(self._lines) >= MOST_LINES or self._bytes + len(data) > MOST_BYTES:
            self._dropped += 1
        else:
            self._report()
            with self._change:
                self._lines.append(data)
                self._bytes += len(data)
                self._change.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing: each line is written as soon as the file accepts it. See `drain`."""

    def drain(self, limit: float = FLUSH_LIMIT) -> bool:
        """Wait until all lines are written.

        Args:
            limit: seconds to wait while the file accepts nothing; in all, five times as long.

        Returns:
            False if lines remain; they are lost when the process ends.
        """
        self._report()
        end = time.monotonic() + 5 * limit
        with self._change:
            blocks = -1
            while self._bytes and blocks != self._blocks and time.monotonic() < end:
                blocks = self._blocks
                self._change.wait_for(lambda: not self._bytes or self._blocks != blocks, limit)  # noqa: B023 - runs here
        return not self._bytes

    def _report(self) -> None:
        """Log how many lines were dropped, unless the file still refuses them."""
        if self._failure is None and self._dropped:
            with self._change:
                dropped, self._dropped = self._dropped, 0
                reason, self._reason = self._reason, ""
            text = f"{count_noun(dropped, 'log line')} dropped: {self.name} did not accept them"
            log.warning("%s%s", text, f" ({reason})" if reason else "")

    def _has_thread(self) -> bool:
        """Start the thread with the first line; False if the system allows no further thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="runner-log", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._is_direct = True
        return not self._is_direct

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._lines)
                block, count = self._next_block()
            error = self._write_all(block)
            with self._change:
                self._bytes -= len(block)
                self._blocks += 1
                self._failure = error
                if error is not None:
                    self._dropped += count
                    self._reason = f"errno {error.errno}, {error.strerror}"
                is_empty = not self._lines
                self._change.notify_all()
            if error is not None and error.errno in GONE:
                return self._discard()
            if error is not None:
                time.sleep(RETRY)
            elif is_empty:
                self._report()

    def _next_block(self) -> tuple[bytes, int]:
        block = [self._lines.popleft()]
        size = len(block[0])
        while self._lines and size + len(self._lines[0]) <= BLOCK:
            block.append(self._lines.popleft())
            size += len(block[-1])
        return b"".join(block), len(block)

    def _discard(self) -> None:
        """Drop all lines from now on: nothing reads them."""
        with suppress(OSError):
            self._file = os.open(os.devnull, os.O_WRONLY)
        with self._change:
            self._is_direct = True
            self._lines.clear()
            self._bytes = 0
            self._change.notify_all()

    def _write_all(self, data: bytes) -> OSError | None:
        """Write to the file, for as long as it takes; return the error if it refuses."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._file, view) :]
            except BlockingIOError:  # another process has made the file non-blocking
                select.select([], [self._file], [])
            except OSError as error:
                return error
        return None
