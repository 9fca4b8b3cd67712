"""FileConnection: a connection to a SQLite file that checkpoints rarely while a reader keeps the log from shrinking."""

import os
import sqlite3

LARGE_LOG = 64 * 2**20
"""Bytes of a write-ahead log that only grows so far while a program reads one snapshot for a long time."""

KEPT_LOG = LARGE_LOG // 2
"""Bytes to which the log is cut when it begins again."""

PAGE = 4_096
"""Bytes of a page."""


class FileConnection(sqlite3.Connection):
    """A connection that limits its checkpoints.

    SQLite tries a checkpoint at each commit while the log is longer than `wal_autocheckpoint`, and sorts all pages of
    the log for it. While a reader keeps an old snapshot, the log grows and no checkpoint can shorten it: after five
    minutes of 2,000 tasks a second the sorting took more time than the commits.

    Attributes:
        log: path of the write-ahead log; empty before the connection is set up.
        checkpoint_pages: pages of the log from which each commit tries a checkpoint.
    """

    log = ""
    checkpoint_pages = 1_000
    _limit = 1_000

    def limit_checkpoints(self) -> None:
        """Try the next checkpoint when a large log has grown by LARGE_LOG, and at `checkpoint_pages` otherwise."""
        try:
            size = os.stat(self.log).st_size  # noqa: PTH116 - before each write
        except OSError:  # it is opened with the first statement
            return
        pages = (size // LARGE_LOG + 1) * LARGE_LOG // PAGE if size > LARGE_LOG else self.checkpoint_pages
        if pages != self._limit:
            self._limit = pages
            self.execute(f"PRAGMA wal_autocheckpoint = {pages}")
