"""How the console starts and ends, as a program of its own."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.drivers.linux_driver import LinuxDriver

from runner.errors import DatabaseUnavailable, SchemaMissing
from runner.settings import Settings
from runner.urls import parse_url
from tasktui.__main__ import ERASED, WAITING
from tasktui.session.write_lock import ASKED
from tasktui.startup import startup
from tasktui.startup.arguments import Arguments
from tasktui.startup.startup import lock_of, named, opened
from tasktui.terminal.crash import crash_text
from tasktui.terminal.keyboard import Keyboard
from tests.conftest import SqliteDatabases
from tests.tasktui.terminal import LEFT_ALTERNATE_SCREEN, PROGRAM, WAIT_SECONDS, Terminal


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings and files of whoever runs the tests out of them."""
    for name in os.environ:
        if name.startswith("RUNNER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=WAIT_SECONDS)


@pytest.fixture
def terminal(sqlite: SqliteDatabases, tmp_path: Path) -> Iterator[Terminal]:
    console = Terminal("--url", sqlite.migrated(tmp_path))
    yield console
    console.close()


def test_without_a_terminal_it_points_at_the_command_line() -> None:
    done = call()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tasktui: tasktui needs a terminal, but standard input is not one.")


def test_a_password_in_the_arguments_is_refused() -> None:
    console = Terminal("--url", "postgresql://ana:hunter2@localhost/app")
    assert console.ends() == 3
    assert b"contains a password" in console.output
    assert b"hunter2" not in console.output
    console.close()


@pytest.mark.slow
def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    console = Terminal()
    assert console.ends() == 4
    assert b"Create them with: runner" in console.output
    console.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_leaves_the_terminal_as_it_was(terminal: Terminal, number: int) -> None:
    terminal.sees("Overview", "No queue has a task")
    terminal.process.send_signal(number)
    assert terminal.ends() == 0
    assert LEFT_ALTERNATE_SCREEN in terminal.output


@pytest.mark.parametrize("session", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["told", "not told"])
def test_it_ends_when_its_terminal_goes_away(sqlite: SqliteDatabases, tmp_path: Path, *, session: bool) -> None:
    console = Terminal("--url", sqlite.migrated(tmp_path), session=session)
    console.reads(b"No queue has a task")
    os.close(console.door)
    try:
        assert console.process.wait(WAIT_SECONDS) is not None
    finally:
        console.process.kill()


def test_it_ends_when_reading_from_its_terminal_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_driver: LinuxDriver) -> None:
        raise OSError(errno.EIO, "Input/output error")

    told: list[int] = []
    monkeypatch.setattr(LinuxDriver, "run_input_thread", fail)
    monkeypatch.setattr(os, "kill", lambda _pid, number: told.append(number))
    Keyboard.run_input_thread(Keyboard.__new__(Keyboard))
    assert told == [signal.SIGHUP]


STUCK = """
import asyncio, os, queue, signal, threading
from tasktui.startup import startup as starting

async def stuck():
    starting.end_on_signals(lambda: None)
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGQUIT]).start()
    full = queue.Queue(1)
    full.put(1)
    full.put(2)

starting.LONGEST_ENDING = 0.1
asyncio.run(stuck())
"""

SILENT = """
import asyncio, sys
from tasktui.startup import startup as starting

async def silent(arguments, ready, left):
    left()
    await asyncio.Event().wait()

starting.LONGEST_ENDING = 0.1
starting.require_terminal = bool
starting.run = silent
sys.exit(starting.main(None, bool))
"""


@pytest.mark.parametrize(
    ("program", "code", "said"), [(STUCK, 128 + signal.SIGQUIT, b""), (SILENT, 4, b"the database has not answered")]
)
def test_it_ends_even_while_the_driver_or_the_database_keeps_it_waiting(program: str, code: int, said: bytes) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", program], check=False, timeout=WAIT_SECONDS, capture_output=True)
    assert (done.returncode, said in done.stderr) == (code, True)


def test_what_fails_before_there_is_a_console_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(*_: object) -> int:
        raise KeyError("hunter2")

    monkeypatch.setattr(startup, "require_terminal", bool)
    monkeypatch.setattr(startup, "run", fail)
    assert startup.main(Arguments(), bool) == 1
    said = capsys.readouterr().err
    assert "tasktui crashed with an unexpected error: KeyError" in said
    assert "Traceback" not in said
    assert "hunter2" not in said


@pytest.mark.slow
def test_keys_that_come_all_at_once_go_where_they_are_meant_to(terminal: Terminal) -> None:
    terminal.reads(b"No queue has a task")
    terminal.answers(b":tasks queue:Terminate/quick\r", "queue:Terminate/quick", "ID ↓ STATE", no="tasks queue:")
    terminal.answers(b"/queue:quiet:TZ\r", "queue:quiet:TZ")
    terminal.answers(b"1", "No queue has a task")
    terminal.answers(b"2/queue:TZ\r", "queue:TZ")
    terminal.answers(b"1", "No queue has a task")
    terminal.types(b"q")
    assert terminal.ends() == 0


@pytest.mark.slow
def test_a_byte_that_is_no_text_does_not_stop_the_keys(terminal: Terminal) -> None:
    terminal.reads(b"No queue has a task")
    terminal.types(b"\xff\xfe")
    terminal.types(b"2")
    terminal.sees("type to filter", "ID ↓ STATE")
    terminal.types(b"q")
    assert terminal.ends() == 0


async def test_tables_that_are_missing_are_said_to_be(database_url: str) -> None:
    settings = Settings(url=parse_url(database_url))
    with pytest.raises(SchemaMissing):
        async with opened(Arguments(), settings):
            pass


async def test_a_database_that_is_away_is_reported() -> None:
    settings = Settings(url=parse_url("postgresql://localhost:1/app?sslmode=disable"))
    with pytest.raises(DatabaseUnavailable):
        async with opened(Arguments(), settings):
            pass


def test_production_starts_read_only_unless_writing_is_asked_for() -> None:
    production, ordinary = Settings(production=True), Settings()
    assert not lock_of(Arguments(), production).is_open(0)
    assert lock_of(Arguments(write=True), production).is_open(0)
    assert lock_of(Arguments(), ordinary).is_open(0)
    assert not lock_of(Arguments(), ordinary, ASKED).is_open(0)


def test_the_server_knows_its_console_by_name() -> None:
    assert "application_name=tasktui" in str(named(parse_url("postgresql://h/d")))
    assert "application_name=mine" in str(named(parse_url("postgresql://h/d?application_name=mine")))
    assert str(named(parse_url("sqlite:///f.db"))) == "sqlite:///f.db"


def test_a_crash_shows_where_and_no_value() -> None:
    def fail(secret: str) -> None:
        raise ValueError(secret)

    try:
        fail("hunter2")
    except ValueError as error:
        text = crash_text(error)
    assert "ValueError" in text
    assert "in fail" in text
    assert "hunter2" not in text


@pytest.mark.slow
def test_there_is_a_line_to_look_at_until_the_console_is_there(terminal: Terminal) -> None:
    terminal.reads(WAITING.encode())
    terminal.sees("No queue has a task", no=WAITING)
    assert terminal.output.startswith((WAITING + ERASED).encode())
