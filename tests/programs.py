"""Program: a Python program of ours as a real process, forked from a process that has loaded its modules.

Four fifths of a second of CPU per start go to imports, and the tests start hundreds of programs. `test_start` and
`test_packaging` start programs that import everything themselves.
"""

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from contextlib import chdir, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

LIBRARIES = (
    "aiosqlite",
    "apscheduler.schedulers.asyncio",
    "cyclopts",
    "psycopg",
    "pydantic_settings",
    "rich.console",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "sqlalchemy.ext.asyncio",
)
OURS = ("runner.cli.app", "runner.cli.work", "runner.db.database", "runner.engine.runner")
"""Our modules that most programs load: none of them looks at the environment while it is imported."""

ROOT = Path(__file__).parents[1]

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([*LIBRARIES, *OURS])


class Program:
    """A running module.

    Args:
        module: executed as `python -m` does.
        arguments: of the command line.
        log: file for standard output, and for errors unless they have a file of their own.
        directory: its working directory.
        environment: all of its environment variables.
        errors: file for standard error.
        source: file that it reads as its standard input.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path,
        directory: Path,
        environment: Mapping[str, str],
        errors: Path | None = None,
        source: Path = Path(os.devnull),
    ) -> None:
        streams = str(source), str(log), str(errors or log)
        self._process: ForkServerProcess = CONTEXT.Process(
            target=_execute, args=(module, arguments, streams, str(directory), dict(environment)), daemon=True
        )
        with chdir(ROOT):  # the server begins in the current directory, and would import a file runner.py there
            forkserver.ensure_running()
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process is alive."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends, and return its exit code."""
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, f"process {self.pid} did not end within {timeout} s"
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its exit code is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _execute(
    module: str, arguments: tuple[str, ...], streams: tuple[str, str, str], directory: str, environment: dict[str, str]
) -> None:
    for number, (path, flags) in enumerate(zip(streams, (os.O_RDONLY, APPEND, APPEND), strict=True)):
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has replaced it by an empty one
    sys.stderr = os.fdopen(
        2, "w", buffering=1, closefd=False
    )  # that of the forked process may be a file, ours a terminal
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
