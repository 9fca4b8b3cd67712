"""Process reaper: a small process that kills the worker processes of a runner, and their children, after the runner.

A worker ends by itself with its runner, unless C code keeps its threads from running. Its own children never do. The
runner starts this file as a script, without site-packages: it needs 4 MB.

Input: a line per worker process, +PID for a start and -PID for an end. The end of the input is the end of the runner.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable

TICK = 0.5
"""Seconds between two looks at the runner."""


class Reaper:
    """The runner's end of the process."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        """The process; None before its start and after its end."""

    def start(self, pids: Iterable[int] = ()) -> None:
        """Start the process, unless it runs."""
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)  # noqa: S603
            for pid in pids:
                self.write("+", pid)

    def write(self, sign: str, pid: int) -> None:
        """Report the start (+) or the end (-) of a worker."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.write(f"{sign}{pid}\n".encode())

    def end(self) -> None:
        """End the process when no worker is left."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.kill()  # a forked process of the application may keep its input open
            self.process.wait()
            self.process = None


class Groups:
    """The process groups of the workers. The id of a group is that of its first process."""

    def __init__(self) -> None:
        self._input = b""
        self._ids: set[int] = set()

    def read(self) -> bool:
        """Read starts and ends; return False at the end of the input."""
        data = os.read(0, 65_536)
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            (self._ids.add if line[:1] == b"+" else self._ids.discard)(int(line[1:]))
        return bool(data)

    def kill(self) -> None:
        """Kill all processes of all groups."""
        for group in self._ids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def watch(runner_pid: int) -> None:
    """Kill the groups when the runner has ended.

    Args:
        runner_pid: process id of the runner, the parent of this process.
    """
    groups = Groups()
    while os.getppid() == runner_pid:  # another child of the runner may keep the pipe open
        if select.select([0], [], [], TICK)[0] and not groups.read():
            break
    while select.select([0], [], [], 0)[0] and groups.read():
        pass
    groups.kill()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # sent to the whole group; the runner may drain
        signal.signal(number, signal.SIG_IGN)
    watch(int(sys.argv[1]))
