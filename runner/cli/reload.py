"""`runner work --reload`: runs a command, and starts it again after each change of a Python file."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from runner.cli.exit_codes import print_stderr
from runner.errors import PackageMissing
from runner.stop_signals import stop_signals
from runner.text.sanitize import one_line

POLL_MS = 100
"""Milliseconds between two looks at the command and at received signals."""

KILL_AFTER = 5.0
"""Seconds that the old runner has to stop; its tasks then run again on the next one."""


def own_command() -> list[str]:
    """The command of this process without --reload."""
    return [sys.executable, *(word for word in sys.orig_argv[1:] if word != "--reload")]


def supervise(command: Sequence[str], folder: Path) -> int:
    """Run a command, and start it again after each change of a Python file in a folder.

    Returns:
        The exit code of the command: after a signal, or after it ended with code 0.

    Raises:
        PackageMissing: watchfiles is not installed.
    """
    stops: list[int] = []

    def receive(number: int, _: FrameType | None) -> None:
        stops.append(number)

    before = {number: signal.signal(number, receive) for number in stop_signals()}
    try:
        return _supervise(command, folder, stops)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _supervise(command: Sequence[str], folder: Path, stops: Sequence[int]) -> int:
    try:
        from watchfiles import PythonFilter, watch
    except ModuleNotFoundError:
        raise PackageMissing(package="watchfiles", use="--reload", extra="reload", instead="") from None

    child: subprocess.Popen[bytes] | None = None  # starts when the files are watched: no change is missed
    failed = False
    for changes in watch(folder, watch_filter=PythonFilter(), rust_timeout=POLL_MS, yield_on_timeout=True):
        if child is None:
            child = _start(command)
        code = child.poll()
        if stops:
            return _stop(child)
        if code == 0:
            return 0
        if code is not None and not failed:
            failed = True
            print_stderr(f"the runner ended with code {code}; it starts again when a file changes")
        if changes:
            print_stderr(f"reloading: {one_line(min(path for _, path in changes))} has changed")
            _stop(child)
            child, failed = _start(command), False
    raise AssertionError("watchfiles watches without an end")


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # In a group of its own: ctrl-c reaches only this process, which stops the runner once.
    return subprocess.Popen(command, process_group=0)  # noqa: S603 - our own command


def _stop(child: subprocess.Popen[bytes]) -> int:
    """Drain the runner; kill it after KILL_AFTER."""
    child.terminate()
    try:
        return child.wait(KILL_AFTER)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
