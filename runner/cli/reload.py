"""`runner work --reload`: starts the runner again after each change of a Python file, for development."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from runner.cli.exit_codes import print_stderr
from runner.text.sanitize import one_line

EVERY = 0.3
"""Seconds between two looks at the files."""

PATIENCE = 5.0
"""Seconds that the old runner has to stop; its tasks then run again on the next one."""

SKIPPED = {"__pycache__", "node_modules", "site-packages"}
"""Folders without code of the application, besides hidden ones and virtual environments."""


def own_command() -> list[str]:
    """Return the command of this process without --reload."""
    return [sys.executable, *(word for word in sys.orig_argv[1:] if word != "--reload")]


def supervise(command: Sequence[str], folder: Path) -> int:
    """Run a command, and start it again after each change of a Python file.

    Args:
        command: the command.
        folder: the folder of the files.

    Returns:
        The exit code of the command: after a signal, or after it ended with code 0.
    """
    stops: list[int] = []

    def receive(number: int, _: FrameType | None) -> None:
        stops.append(number)

    before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return _supervise(command, folder, stops)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _supervise(command: Sequence[str], folder: Path, stops: Sequence[int]) -> int:
    times = _times(folder)
    child = _start(command)
    failed = False
    while True:
        code = _wait(child, EVERY)
        if stops:
            return _stop(child)
        if code == 0:
            return 0
        if code is not None and not failed:
            failed = True
            print_stderr(f"the runner ended with code {code}; it starts again when a file changes")
        now = _times(folder)
        if changed := _changed(times, now):
            print_stderr(f"reloading: {one_line(changed)} has changed")
            _stop(child)
            times, child, failed = now, _start(command), False


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # In a group of its own: ctrl-c reaches only this process, which stops the runner once.
    return subprocess.Popen(command, process_group=0)  # noqa: S603 - our own command


def _wait(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code, or None if the child still runs after these seconds."""
    try:
        code = child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    if code:
        time.sleep(seconds)  # a child that has ended must not make this a busy loop
    return code


def _stop(child: subprocess.Popen[bytes]) -> int:
    """Drain the runner; kill it after PATIENCE."""
    child.terminate()
    try:
        return child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _times(folder: Path) -> dict[str, int]:
    """Return the modification times of the Python files in a folder."""
    return dict(_files(folder))


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    for path, names, files in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".") and name not in SKIPPED]
        if "pyvenv.cfg" in files:
            names.clear()
            continue
        for file in files:
            if file.endswith(".py"):
                full = Path(path, file)
                try:
                    yield str(full), full.stat().st_mtime_ns
                except OSError:  # removed since
                    continue


def _changed(before: Mapping[str, int], after: Mapping[str, int]) -> str | None:
    """Return a file that was changed, added or removed."""
    paths = {path for path, _ in before.items() ^ after.items()}
    return min(paths, default=None)
