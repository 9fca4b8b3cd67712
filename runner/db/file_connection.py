"""FileConnection: a connection to a SQLite file that checkpoints rarely while a reader keeps the log from shrinking."""

import os
import sqlite3

LARGE_LOG = 64 * 2**20
"""Bytes of a write-ahead log that only grows so far while a program reads one snapshot for a long time."""

KEPT_LOG = LARGE_LOG // 2
"""Bytes to which the log is cut when it begins again."""

FRAME_HEADER = 24
"""Bytes before each page in the log; see the file format of SQLite."""


class FileConnection(sqlite3.Connection):
    """A connection that limits its checkpoints.

    SQLite tries a checkpoint at each commit while the log is longer than `wal_autocheckpoint`, and sorts all pages of
    the log for it. While a reader keeps an old snapshot, the log grows and no checkpoint can shorten it: after five
    minutes of 2,000 tasks a second the sorting took more time than the commits.

    Attributes:
        log: path of the write-ahead log; empty before the connection is set up.
        frame: bytes of a page in the log, with its header.
        checkpoint_pages: pages of the log from which each commit tries a checkpoint.
    """

    log = ""
    frame = 4_096 + FRAME_HEADER
    checkpoint_pages = 1_000
    _limit = 1_000

    def limit_checkpoints(self) -> None:
        """Try the next checkpoint at `checkpoint_pages`, or when a large log has grown by an eighth of itself."""
        try:
            size = os.stat(self.log).st_size  # noqa: PTH116 - before each write
        except OSError:  # it is opened with the first statement
            return
        limit = self.checkpoint_pages
        if size > LARGE_LOG:
            pages = size // self.frame
            step = max(LARGE_LOG // self.frame, 2 ** (pages.bit_length() - 3))  # at most a quarter
            limit = (pages // step + 1) * step
        if limit != self._limit:
            self._limit = limit
            self.execute(f"PRAGMA wal_autocheckpoint = {limit}")
