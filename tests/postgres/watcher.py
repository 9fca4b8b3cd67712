"""Stops a server and removes its directory when the tests are gone, however they went.

It runs as a process of its own and reads the server's process id, whenever that changes, from a pipe that the tests
hold open. The operating system closes the pipe even for tests that were killed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

WAIT_SECONDS = 60.0
PAUSE = 0.02
NO_SERVER = 0


class Watcher:
    """The tests' end of the pipe."""

    def __init__(self, home: Path) -> None:
        # A session of its own: Ctrl-C is meant for the tests alone.
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, home], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def follow(self, pid: int) -> None:
        """From now on this is the process to stop."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pid}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Let it do its work now, and wait for that."""
        self._process.communicate(timeout=2 * WAIT_SECONDS)


def main(home: Path) -> None:
    pid = NO_SERVER
    for line in sys.stdin:
        pid = int(line)
    if pid != NO_SERVER:
        stop(pid, home / "data" / "postmaster.pid")
    shutil.rmtree(home, ignore_errors=True)


def stop(pid: int, lock_file: Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGQUIT)
    give_up = time.monotonic() + WAIT_SECONDS
    while lock_file.exists() and time.monotonic() < give_up:
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
