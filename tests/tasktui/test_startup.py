"""How the console starts and ends, as a program of its own."""

import asyncio
import errno
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from textual.app import ScreenStackError
from textual.css.query import NoMatches
from textual.drivers.linux_driver import LinuxDriver

from runner.errors import DatabaseUnavailable, InvalidInput, SchemaMissing
from runner.settings import Settings
from runner.text.sanitize import crash_text
from runner.urls import parse_url
from tasktui import app, screens
from tasktui.__main__ import ERASED, WAITING
from tasktui.session.write_lock import ASKED
from tasktui.startup import startup
from tasktui.startup.arguments import Arguments
from tasktui.startup.startup import lock_of, opened
from tasktui.terminal.keyboard import Keyboard
from tasktui.terminal.recording import CastEvent, Recorder, events, play
from tests.conftest import SqliteDatabases, on_postgresql
from tests.tasktui.conftest import Watch
from tests.tasktui.display import Display
from tests.tasktui.terminal import LEFT_ALTERNATE_SCREEN, PROGRAM, WAIT_SECONDS, Terminal, escapes


@pytest.fixture(autouse=True)
def _alone(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=WAIT_SECONDS)


@pytest.fixture
def terminal(sqlite: SqliteDatabases, tmp_path: Path) -> Iterator[Terminal]:
    console = Terminal("--url", sqlite.migrated(tmp_path))
    yield console
    console.close()


@pytest.mark.slow
def test_without_a_terminal_it_points_at_the_command_line() -> None:
    done = call()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tasktui: tasktui needs a terminal, but standard input is not one.")


@pytest.mark.slow
def test_a_first_word_runs_the_command_of_that_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    assert call("migrate", "--url", url).returncode == 0
    assert "no task" in (listed := call("tasks", "--url", url)).stdout.lower(), listed
    refused = call("taskz")
    assert (refused.returncode, "see runner --help" in refused.stderr) == (2, True)
    assert "\n  work       Run tasks" in call("--help").stdout


@pytest.mark.slow
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
    os.close(console.keyboard)
    try:
        assert console.process.wait(WAIT_SECONDS) is not None
    finally:
        console.process.kill()


def test_it_ends_when_reading_from_its_terminal_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_driver: LinuxDriver) -> None:
        raise OSError(errno.EIO, "Input/output error")

    signals: list[int] = []
    monkeypatch.setattr(LinuxDriver, "run_input_thread", fail)
    monkeypatch.setattr(os, "kill", lambda _pid, number: signals.append(number))
    Keyboard.run_input_thread(Keyboard.__new__(Keyboard))
    assert signals == [signal.SIGHUP]


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
from tasktui.startup.arguments import Arguments

async def silent(arguments, ready, left):
    left(lambda: True)
    await asyncio.Event().wait()

starting.LONGEST_CANCELLING, starting.LONGEST_ENDING = 0.05, 0.1
starting.require_terminal = bool
starting.run = silent
sys.exit(starting.main(Arguments(), bool))
"""

FROZEN = SILENT.replace("lambda: True", "lambda: False").replace(
    "LONGEST_ENDING = 0.05, 0.1", "LONGEST_ENDING = 0.1, 60"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "code", "message"),
    [(STUCK, 128 + signal.SIGQUIT, b""), (SILENT, 4, b"the database has not answered"), (FROZEN, 0, b"")],
    ids=["terminal", "change", "query"],
)
def test_it_ends_even_while_the_driver_or_the_database_keeps_it_waiting(
    program: str, code: int, message: bytes
) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", program], check=False, timeout=WAIT_SECONDS, capture_output=True)
    assert (done.returncode, message in done.stderr) == (code, True)


LOCKED = """
import asyncio, os, signal, sys
from runner.db import connect
from tasktui.startup import startup as starting
from tasktui.startup.arguments import Arguments
reached = starting.reached

async def interrupted(sessions):
    asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGINT)
    return await reached(sessions)

connect.BUSY_SECONDS, starting.LONGEST_CANCELLING = 3600.0, 0.1
starting.require_terminal, starting.reached = bool, interrupted
sys.exit(starting.main(Arguments(), bool))
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_start_that_waits_for_a_locked_file(
    sqlite: SqliteDatabases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = sqlite.migrated(tmp_path)
    rival = sqlite3.connect(urlsplit(url).path, isolation_level=None)
    for statement in ("PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = DELETE", "BEGIN EXCLUSIVE"):
        rival.execute(statement)
    monkeypatch.setenv("TASKTUI_URL", url)
    done = subprocess.run([sys.executable, "-P", "-c", LOCKED], check=False, timeout=WAIT_SECONDS, capture_output=True)
    rival.close()
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_q_ends_a_start_that_waits_for_a_locked_file(sqlite: SqliteDatabases, tmp_path: Path) -> None:
    url = sqlite.migrated(tmp_path)
    with closing(sqlite3.connect(urlsplit(url).path, isolation_level=None)) as rival:
        for statement in ("PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = DELETE", "BEGIN EXCLUSIVE"):
            rival.execute(statement)
        terminal = Terminal("--url", url)
        terminal.reads(b"q quits")
        terminal.types(b"xq")
        assert terminal.ends() == 0
        assert b"Traceback" not in terminal.output
        assert b"locked" not in terminal.output  # it did not wait for the end of the lock
        assert termios.tcgetattr(terminal.keyboard)[3] & termios.ICANON


@pytest.mark.slow
def test_a_text_typed_before_a_late_first_screen_does_not_quit(sqlite: SqliteDatabases, tmp_path: Path) -> None:
    url = sqlite.migrated(tmp_path)
    with closing(sqlite3.connect(urlsplit(url).path, isolation_level=None)) as rival:
        for statement in ("PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = DELETE", "BEGIN EXCLUSIVE"):
            rival.execute(statement)
        terminal = Terminal("--url", url)
        terminal.types(b"/queue:mail")
        terminal.reads(b"q quits")
    terminal.reads(b"No queue has a task")
    terminal.types(b"q")
    assert terminal.ends() == 0


def test_what_fails_before_there_is_a_console_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(*_: object) -> int:
        raise KeyError("hunter2")

    monkeypatch.setattr(startup, "require_terminal", bool)
    monkeypatch.setattr(startup, "run", fail)
    assert startup.main(Arguments(), bool) == 1
    output = capsys.readouterr().err
    assert "tasktui crashed with an unexpected error: KeyError" in output
    assert "Traceback" not in output
    assert "hunter2" not in output


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


@pytest.mark.both_databases
async def test_tables_that_are_missing_are_said_to_be(database_url: str) -> None:
    settings = Settings(url=parse_url(database_url))
    with pytest.raises(SchemaMissing):
        async with opened(Arguments(), settings):
            pass


async def test_a_database_that_is_away_is_reported() -> None:
    url = "postgresql://localhost:1/app?sslmode=disable"
    with pytest.raises(DatabaseUnavailable) as failed:
        async with opened(Arguments(), Settings(url=parse_url(url))):
            pass
    assert str(failed.value).startswith(f"The database {url} cannot be reached: connection to server at ")


@on_postgresql
async def test_the_server_shows_the_name_of_the_console_unless_the_url_has_one(migrated_url: str) -> None:
    for url, name in ((migrated_url, "tasktui"), (f"{migrated_url}?application_name=desk", "desk")):
        async with opened(Arguments(), Settings(url=parse_url(url))) as session:
            assert await session.read(lambda tx: tx.scalar(sa.text("SHOW application_name"))) == name
            assert str(session.settings.url) == url


def test_production_starts_read_only_unless_writing_is_asked_for() -> None:
    production, ordinary = Settings(production=True), Settings()
    assert not lock_of(Arguments(), production).is_open(0)
    assert lock_of(Arguments(write=True), production).is_open(0)
    assert lock_of(Arguments(), ordinary).is_open(0)
    assert not lock_of(Arguments(), ordinary, ASKED).is_open(0)


async def test_a_message_that_comes_after_the_console_has_closed_is_no_crash(watch: Watch) -> None:
    async with watch() as operator:
        pass
    console = operator.console
    console._handle_exception(ScreenStackError("No screens on stack"))
    console._handle_exception(NoMatches("A dialog that opens during the quit gets no widgets"))
    assert console._exception is None
    console._handle_exception(KeyError("task"))
    assert isinstance(console._exception, KeyError)


async def test_an_import_that_fails_in_the_background_is_no_crash(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fails(name: str) -> ModuleType:
        if name.startswith("tasktui.actions."):
            loop.call_soon_threadsafe(failed.set)
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(app, "PRELOAD_DELAY", 0.01)
    monkeypatch.setattr(screens, "import_module", fails)
    async with watch() as operator:
        await operator.until(failed.is_set)
        await operator.press("2")
        await operator.sees("0 tasks")


async def test_the_imports_in_the_background_end_with_the_console(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stops = asyncio.Event(), threading.Event()
    loop, names = asyncio.get_running_loop(), list[str]()

    def slow(name: str) -> ModuleType:
        if threading.current_thread() is not threading.main_thread():
            names.append(name)
            loop.call_soon_threadsafe(begun.set)
            assert stops.wait(WAIT_SECONDS)
        return import_module(name)

    monkeypatch.setattr(app, "PRELOAD_DELAY", 0.01)
    monkeypatch.setattr(screens, "import_module", slow)
    monkeypatch.setattr(screens, "Event", lambda: stops)
    async with watch() as operator:
        await operator.until(begun.is_set)
    assert await asyncio.to_thread(stops.wait, WAIT_SECONDS)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert len(names) == 1


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
    terminal.types(b"~~")  # not echoed
    terminal.sees("No queue has a task", no=WAITING)
    assert terminal.output.startswith((WAITING + ERASED).encode())
    terminal.types(b"q")
    assert terminal.ends() == 0
    assert termios.tcgetattr(terminal.keyboard)[3] & termios.ECHO


@pytest.mark.slow
def test_a_session_is_recorded_without_its_keys_and_plays_in_a_terminal(
    sqlite: SqliteDatabases, tmp_path: Path
) -> None:
    path = tmp_path / "session.cast"
    console = Terminal("--url", sqlite.migrated(tmp_path), "--record", str(path))
    console.sees("Overview", "No queue has a task")
    console.answers(b"8", "AGO")
    console.types(b"q")
    assert console.ends() == 0
    console.close()
    size, played = events(path)
    display = Display()
    output = "".join(event.text for event in played if event.kind == "o")
    display.feed(output.encode())
    assert (size, stat.S_IMODE(path.stat().st_mode)) == ((80, 24), 0o600)
    assert "AGO" in display.text
    cursor = {b"CSI ?25l", b"CSI ?25h", b"CSI ?2026h", b"CSI ?2026l"}
    assert escapes(output.encode()) <= cursor | {b"CSI m", b"CSI H", b"CSI J", b"CSI 2J"}
    player = Terminal("--replay", str(path))
    player.types(b"+" * 6)
    player.sees("AGO", "end of the recording, q closes")
    player.types(b"q")
    assert player.ends() == 0
    assert LEFT_ALTERNATE_SCREEN in player.output
    player.close()


def test_a_recording_replaces_no_file_and_a_hostile_one_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "session.cast"
    hostile = "\x1b]52;c;aGFjaw==\x07\x1b[?1000h\x1b[5;1HHi\x1b[31m \x1bcthere\x9b6n\x1bP+q\x1b\\\x1b[6n\r\n\x07"
    path.write_text(f'{{"version": 2, "width": 80, "height": 24}}\n{json.dumps([1.0, "o", hostile])}\n[2.0, "o", "cu')
    assert [event.text for event in events(path)[1]] == ["\x1b[5;1HHi\x1b[31m there6n\r\n"]
    with pytest.raises(InvalidInput, match="exists; a recording replaces no file"):
        Recorder(path)
    size = '{"version": 2, "width": 1e400, "height": 24}'
    for text in ("no recording", "", "5", "{}", size, "[" * 100_000, "\udcff\x00"):
        path.write_text(text, errors="surrogateescape")
        with pytest.raises(InvalidInput, match=r"is no recording: .* tasktui --record FILE makes one"):
            events(path)
    for missing in (tmp_path, tmp_path / "none" / "x.cast"):
        with pytest.raises(InvalidInput, match="cannot read "):
            events(missing)
    with pytest.raises(InvalidInput, match=r"cannot write .*No such file or directory\. Name a file in a folder"):
        Recorder(tmp_path / "none" / "x.cast")


def test_a_recording_holds_harmless_output_and_ends_when_it_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "session.cast"
    recorder = Recorder(path)
    recorder.output("\x1b[5;1HHi\x1b[?1000h\x1b]52;c;aGFjaw==\x07")
    recorder._file.close()
    recorder.output("lost")
    recorder.close()
    assert "the recording ended early" in capsys.readouterr().err
    assert [event.text for event in events(path)[1]] == ["\x1b[2J\x1b[H", "\x1b[5;1HHi"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_replay_pauses_changes_its_speed_and_ends() -> None:
    shown: list[str] = []
    keys = iter(["", " ", "x", "-", "+", "+", "", "", "q"])
    waits: list[float | None] = []

    def wait(seconds: float | None) -> str:
        waits.append(seconds)
        return next(keys)

    play(
        [CastEvent(0.0, "o", "a"), CastEvent(900.0, "o", "b"), CastEvent(950.0, "o", "c"), CastEvent(999.0, "o", "d")],
        shown.append,
        wait,
    )
    assert shown[:4] == ["a", "b", "c", "d"]
    assert "end of the recording" in shown[4]
    assert waits[0] == pytest.approx(2.0, abs=0.5)  # not 900
    assert None in waits
    shown.clear()
    play([CastEvent(0.0, "o", "a"), CastEvent(9.0, "o", "b")], shown.append, lambda _: "q")
    assert shown == ["a"]


def packet(kind: bytes, payload: bytes) -> bytes:
    """A packet of the protocol between a server and its driver."""
    return kind + len(payload).to_bytes(4, "big") + payload


@pytest.mark.slow
def test_a_server_shows_it_in_a_browser(sqlite: SqliteDatabases, tmp_path: Path) -> None:
    environment = os.environ | {
        "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver",
        "COLUMNS": "120",
        "ROWS": "40",
    }
    words = [*PROGRAM, "--url", sqlite.migrated(tmp_path), "--read-only"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, bufsize=0) as console:
        assert console.stdin is not None
        assert console.stdout is not None
        assert console.stdout.readline() == b"__GANGLION__\n"
        output = b""
        while b"No queue has a task" not in output:
            output += console.stdout.read(65_536)
            assert console.poll() is None
        console.stdin.write(packet(b"D", b"q"))
        console.stdin.flush()
        output, errors = console.communicate(timeout=WAIT_SECONDS)
    assert (console.returncode, errors) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "ascii_signs"),
    [
        ({"LANG": "C"}, True),
        ({"LANG": "POSIX"}, True),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, True),
        ({"LANG": "de_DE.ISO-8859-1"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8"}, False),
        ({}, False),
    ],
)
def test_a_terminal_whose_locale_is_not_utf_8_gets_ascii_signs(environment: dict[str, str], ascii_signs: bool) -> None:
    """In a process of its own: Python changes its locale at the start."""
    kept = {name: value for name, value in os.environ.items() if name != "LANG" and not name.startswith("LC_")}
    code = "from tasktui.startup.startup import needs_ascii; print(needs_ascii())"
    words = [sys.executable, "-c", code]
    found = subprocess.run(words, env=kept | environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(ascii_signs)
