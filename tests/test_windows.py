"""Windows: applications submit and test, and the console and commands run, without the modules that only Unix has.

A child process takes the modules and names away from our packages that Python does not have on Windows.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PREPARE = """
import asyncio, builtins, os, select, signal, subprocess, sys, tempfile
import alembic.command, apscheduler.schedulers.asyncio, cyclopts, psycopg, pytest, rich.console, sqlalchemy, textual.app

MODULES = {"curses", "fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
NAMES = {
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK WNOHANG chown fchown fork forkpty getegid geteuid getgid "
    "getgroups getpgid getpgrp getuid killpg mkfifo nice posix_fadvise pread pwrite register_at_fork "
    "setgid setpgid setsid setuid statvfs sysconf uname wait wait4 waitid tcgetpgrp pidfd_open",
    signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGTSTP SIGTTIN SIGTTOU SIGUSR1 SIGUSR2 SIGWINCH "
    "ITIMER_REAL ITIMER_PROF ITIMER_VIRTUAL alarm pthread_kill pthread_sigmask setitimer siginterrupt sigwait "
    "sigwaitinfo SIG_BLOCK SIG_SETMASK SIG_UNBLOCK Sigmasks",
    select: "poll epoll",
}
for module, names in NAMES.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

ordinary = builtins.__import__

def on_windows(name, globals=None, *rest, **options):
    if name in MODULES and (globals or {}).get("__name__", "").split(".")[0] in ("runner", "tasktui"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return ordinary(name, globals, *rest, **options)

builtins.__import__ = on_windows
"""

HANDLERS = """
import runner

@runner.handler("shop.pack")
def pack(order: int) -> int:
    return order

@runner.handler("shop.ship")
async def ship(order: int) -> int:
    return order
"""

PRODUCER = """
runner.connect(url=sys.argv[1])
print(pack.submit(1), asyncio.run(ship.submit_async(2)))
"""

TEST = """
from pathlib import Path
from runner.testing import TaskStore

with TaskStore.in_folder(Path(tempfile.mkdtemp())) as store:
    pack.submit(1)
    ship.submit(2)
    print([attempt.verb for attempt in store.drain()])
    with store.inline():
        pack.submit(3)
"""

CONSOLE = """
import tasktui.app, tasktui.startup.startup, tasktui.terminal.recording
from tasktui import screens

print([mode.screen.__name__ for mode in screens.MODES.values()])
"""

COMMANDS = """
from runner.cli import main

submit = "submit shop.pack {\\"order\\":3} -H shop"
for words in ("tasks", "stats", submit, "why 1", "terminate 1 --yes 1", "work", "serve"):
    sys.argv = ["runner", *words.split()]
    print(words.split()[0], main())
"""


def run(folder: Path, code: str, *arguments: str, **environment: str) -> str:
    (folder / "shop.py").write_text(HANDLERS)
    code = "\n".join([PREPARE, "import runner, tasktui\nfrom shop import pack, ship", code])
    known = os.environ | {"LOGNAME": "ana", "PYTHONPATH": str(folder)} | environment
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.both_databases
def test_a_producer_submits(migrated_url: str, tmp_path: Path) -> None:
    assert "1 2\n" in run(tmp_path, PRODUCER, migrated_url)


@pytest.mark.slow
def test_the_test_kit_runs_tasks(tmp_path: Path) -> None:
    assert "['succeed', 'succeed']\n" in run(tmp_path, TEST)


@pytest.mark.slow
def test_the_console_imports(tmp_path: Path) -> None:
    assert "OverviewScreen" in run(tmp_path, CONSOLE)


@pytest.mark.slow
def test_commands_run_and_a_runner_names_the_systems_that_it_needs(migrated_url: str, tmp_path: Path) -> None:
    text = run(tmp_path, COMMANDS, TASKTUI_URL=migrated_url)
    for line in ("tasks 0", "stats 0", "submit 0", "why 0", "terminate 0", "work 3", "serve 3"):
        assert f"{line}\n" in text, text
    assert "runner: runner work needs Linux or macOS. On Windows, run it in WSL or in a container" in text
