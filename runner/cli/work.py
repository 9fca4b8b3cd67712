"""`runner work`: run a runner process; with --reload it starts again after each change of a Python file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from runner.cli.exit_codes import print_stderr
from runner.cli.handlers import Modules, load_handlers
from runner.cli.options import DEFAULT_CONNECTION, Connection
from runner.engine.main import run_contained
from runner.engine.main import work as run
from runner.errors import InvalidInput
from runner.logs import set_up
from runner.settings import DESCRIPTIONS
from runner.text.sanitize import one_line

EVERY = 0.3
"""Seconds between two looks at the files."""

KILL_AFTER = 5.0
"""Seconds that the old runner has to stop; its tasks then run again on the next one."""

SKIPPED = {"__pycache__", "node_modules", "site-packages"}
"""Folders without code of the application, beside hidden ones and virtual environments."""


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
    """Drain the runner; kill it after KILL_AFTER."""
    child.terminate()
    try:
        return child.wait(KILL_AFTER)
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


def _described(setting: str, *aliases: str) -> Parameter:
    """An option with the description of its setting."""
    description = DESCRIPTIONS[setting]
    return Parameter(
        name=(f"--{setting.replace('_', '-')}", *aliases), help=f"{description[0].upper()}{description[1:]}."
    )


@Parameter(name="*", group=Group("Runner", sort_key=50))
@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Settings of a runner. An omitted option takes its value from the environment, the profile or the defaults."""

    queues: Annotated[tuple[str, ...], _described("queues")] = ()
    only: Annotated[tuple[str, ...], _described("only")] = ()
    without: Annotated[tuple[str, ...], _described("without", "--except")] = ()
    buckets: Annotated[str | None, _described("buckets")] = None
    slice: Annotated[str | None, _described("slice")] = None
    poll_mode: Annotated[str | None, _described("poll_mode")] = None
    poll_interval: Annotated[str | None, _described("poll_interval")] = None
    scans: Annotated[tuple[str, ...], _described("scans")] = ()
    initial_delay: Annotated[str | None, _described("initial_delay")] = None
    claim_batch_size: Annotated[int | None, _described("claim_batch_size")] = None
    concurrency: Annotated[int | None, _described("concurrency")] = None
    threads: Annotated[int | None, _described("threads")] = None
    spare_threads: Annotated[int | None, _described("spare_threads")] = None
    processes: Annotated[int | None, _described("processes")] = None
    prefetch: Annotated[int | None, _described("prefetch")] = None
    claim_order: Annotated[str | None, _described("claim_order")] = None
    on_error: Annotated[str | None, _described("on_error")] = None
    on_none: Annotated[str | None, _described("on_none")] = None
    lease_timeout: Annotated[str | None, _described("lease_timeout")] = None
    drain_timeout: Annotated[str | None, _described("drain_timeout")] = None
    log_format: Annotated[Literal["auto", "human", "json"] | None, _described("log_format")] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, _described("log_level")] = None

    def overrides(self) -> dict[str, Any]:
        """The options by setting name."""
        values = asdict(self).items()
        return {name: (",".join(value) or None) if isinstance(value, tuple) else value for name, value in values}


NO_OPTIONS = RunnerOptions()


def work(
    *,
    handlers: Modules = (),
    until_idle: bool = False,
    reload: bool = False,
    options: RunnerOptions = NO_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Run tasks until stopped.

    SIGTERM or ctrl-c drains: the runner claims no more tasks, waits for the running
    ones and writes all outcomes. A second signal ends the process immediately.

    Args:
        handlers: A module that defines handlers; may be repeated.
        until_idle: Exit when none of its tasks runs, is due, or waits for a retry.
        reload: Start again when a Python file below the current directory changes.
        options: Settings of the runner.
        connection: The database.
    """
    if reload:
        return supervise(own_command(), Path.cwd())
    settings = connection.settings(handlers=handlers or None, **options.overrides())
    registry = load_handlers(settings)
    if not registry:
        modules = ", ".join(settings.handlers)
        without = f"no handlers in {modules}: decorate functions with @handler, or name another module"
        none = "no handlers loaded; name the module that defines them with -H package.module"
        raise InvalidInput(why=without if modules else none)

    set_up(settings.log_format, settings.log_level)
    return run_contained(run(settings, registry, until_idle=until_idle))
