"""FileConnection: a connection to a SQLite file that checkpoints rarely while a reader keeps the log from shrinking."""

import os
import sqlite3
import time

CHECKPOINT_PAGES = 4_000
"""Size in pages at which the write of a runner checkpoints SQLite's write-ahead log."""

SUBMIT_CHECKPOINT_PAGES = 1_000
"""The same for a submit, and SQLite's default. A sync takes twice as long while the log grows: a submit of 3 pages
leaves that phase after 300 submits, not after 1,200."""

LARGE_LOG = 64 * 2**20
"""Bytes of a write-ahead log. A longer one has grown because a program keeps an old snapshot, or by a large write."""

KEPT_LOG = LARGE_LOG // 2
"""Bytes to which the log is cut when it begins again."""

LEAST_PAUSE, SHARE = 1.0, 50
"""Seconds between two checkpoints of a large log that copy nothing, and their multiple of the time of one."""


class FileConnection(sqlite3.Connection):
    """A connection that limits its checkpoints.

    SQLite tries a checkpoint at each commit while the log is longer than `wal_autocheckpoint`, and sorts the pages for
    it that are not in the file yet. While a reader keeps an old snapshot, no checkpoint can copy them: after five
    minutes of 2,000 tasks a second the sorting took more time than the commits.

    Attributes:
        log: path of the write-ahead log; empty before the connection is set up.
        checkpoint_pages: pages of the log from which each commit tries a checkpoint.
    """

    log = ""
    checkpoint_pages = 1_000
    _limit = _copied = -1
    _next_at = 0.0

    def limit_checkpoints(self) -> None:
        """Before a write: turn the checkpoints of commits off while the log is large and a reader keeps it so."""
        try:
            is_large = os.stat(self.log).st_size > LARGE_LOG  # noqa: PTH116 - before each write
        except OSError:  # it is opened with the first statement
            is_large = False
        if not is_large:
            self._limit_to(self.checkpoint_pages)
        elif (now := time.monotonic()) >= self._next_at:
            is_busy, pages, copied = self.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if is_busy:  # another connection copies the log
                self._next_at = now + LEAST_PAUSE
                return
            self._limit_to(self.checkpoint_pages if pages - copied < self.checkpoint_pages else 0)
            if copied == self._copied:  # otherwise others have written in the meantime, and the next one copies less
                self._next_at = time.monotonic() + max(LEAST_PAUSE, SHARE * (time.monotonic() - now))
            self._copied = copied

    def _limit_to(self, pages: int) -> None:
        if pages != self._limit:
            self._limit = pages
            self.execute(f"PRAGMA wal_autocheckpoint = {pages}")
