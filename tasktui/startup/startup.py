"""Starts and ends the console: checks the terminal, opens the database, prints errors as one line.

Textual loads while the database answers the first query, so neither this module nor its imports may load it.
"""

import asyncio
import locale
import os
import select
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runner.db.connect import driver_threads_ended
from runner.db.connector import Connector
from runner.db.database import Database
from runner.errors import DatabaseUnavailable, RunnerError
from runner.queries.overview import read_overview
from runner.settings import Settings
from runner.settings.shards import settings_of_each
from runner.text.sanitize import clean, crash_text
from runner.urls import DatabaseUrl
from tasktui.session.databases import mode_name, reached
from tasktui.session.session import Session
from tasktui.session.shards import each_database, with_all_shards
from tasktui.session.write_lock import ASKED, UNOPENED, ReadOnlyReason, WriteLock
from tasktui.startup.arguments import Arguments

if TYPE_CHECKING:
    from tasktui.app import Console

T = TypeVar("T")

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))

LONGEST_ENDING = 10.0
"""Maximum seconds for the running change when the console ends."""

LONGEST_CANCELLING = 1.0
"""The same for queries, which are cancelled: a frozen server confirms nothing."""

LONG_START = 0.5
"""Seconds after which a start that waits for the database takes the keys. Earlier ones are for the first screen."""

UNANSWERED = " the database has not answered yet, q quits"

LONGEST_BLANK = 0.1
"""Seconds that the first drawing waits for the first data. With data, it is the only one."""

SILENT = b"tasktui: the database has not answered; a change in progress may or may not have been made.\n"


DRIVER = "TEXTUAL_DRIVER"
"""The variable in which a server names the driver that shows the console in a browser."""


class NoTerminal(RunnerError):
    """tasktui needs a terminal, but standard {stream} is not one. In scripts, use runner: runner tasks state:dead."""

    exit_code = 2


def require_terminal() -> None:
    """Check that input and output are a terminal, unless a browser shows the console.

    Raises:
        NoTerminal: one of them is a file or a pipe.
    """
    if os.environ.get(DRIVER):
        return
    for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
        if stream is None or not stream.isatty():
            raise NoTerminal(stream=name)


def main(arguments: Arguments, ready: Callable[[], object]) -> int:
    """Run the console.

    Args:
        ready: called before anything is drawn or printed.

    Returns:
        The exit code; errors are printed on standard error.
    """
    ending = Ending()
    try:
        require_terminal()
        if arguments.replay is not None:
            from tasktui.terminal.recording import replay

            ready()
            return replay(arguments.replay)
        return asyncio.run(run(arguments, ready, ending.begin))
    except RunnerError as error:
        ready()
        print(clean(f"tasktui: {error}", newlines=True), file=sys.stderr)
        return error.exit_code
    except Exception as error:
        ready()
        print(crash_text(error), file=sys.stderr)
        return 1
    finally:
        ending.cancel()


async def run(
    arguments: Arguments, ready: Callable[[], object], on_leave: Callable[[Callable[[], bool]], object]
) -> int:
    """Run the console until the operator leaves it.

    Args:
        ready: called before the first drawing.
        on_leave: called when the operator has left, before waiting for the database, with a function that returns True
            while a change is written.
    """
    profiles = [(each, each.settings()) for each in arguments.each()]
    databases = [(each, own) for each, settings in profiles for own in settings_of_each(settings)]
    loading = asyncio.create_task(asyncio.to_thread(_console))
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(prepared(*database)) for database in databases]
        if arguments.at is None and sessions[0].database.dialect.is_server:
            sessions[0].start_read(read_overview)  # beside the query that opens the database, which may be far away
        try:
            opened_sessions = await unless_quit(reached(sessions))
        except asyncio.CancelledError:  # ctrl+c
            ready()
            on_leave(lambda: False)
            raise
        if opened_sessions is None:
            ready()
            on_leave(lambda: False)
            return 0
        first = opened_sessions[0]
        all_sessions = with_all_shards(opened_sessions, [settings for _, settings in profiles])
        place = 0 if (arguments.task, arguments.at) == (None, None) else all_sessions.index(first)
        session = all_sessions[place]
        if arguments.at is not None:
            await session.go_to(arguments.at)
        else:
            first_reads = [each.start_read(read_overview) for each in each_database(session)]
        screen = "overview" if arguments.task is None else "task"
        create = begun(await loading, screen, place, past=session.at is not None)
        if session.at is None:
            await asyncio.wait(first_reads, timeout=LONGEST_BLANK)
        front, *others = all_sessions
        console = create(front, arguments.theme, ascii_signs=arguments.ascii or needs_ascii(), others=others)
        console.databases.bring(session)
        console.databases.opened.task.id = arguments.task
        if arguments.record is not None:
            from tasktui.terminal.keyboard import recorded
            from tasktui.terminal.recording import Recorder

            console.recorder = Recorder(arguments.record)
            console.driver_class = recorded(console.recorder)
            stack.callback(console.recorder.close)
        end_on_signals(console.exit)
        ready()
        await console.run_async()
        on_leave(lambda: any(each.is_changing for each in sessions))
        await asyncio.gather(*(each.finish() for each in sessions))
        return console.return_code or 0


async def unless_quit(opening: Coroutine[Any, Any, T]) -> T | None:
    """Open the databases, unless the operator types q; other keys are lost after LONG_START.

    Until then keys are for the first screen. If that is late, they are lost too, and a q in a text does not quit.

    Returns:
        The result of `opening`; None after q.
    """
    task = asyncio.ensure_future(opening)
    await asyncio.wait([task], timeout=LONG_START)
    if not task.done():
        with _each_key(lambda keys: task.cancel() if b"q" in keys else None) as earlier:
            if earlier and not earlier.strip(b"q"):
                task.cancel()
            print(UNANSWERED, end="", flush=True)
            await asyncio.wait([task])
    return None if task.cancelled() else task.result()


@contextmanager
def _each_key(on_keys: Callable[[bytes], object]) -> Iterator[bytes]:
    """Read keys as they are typed, without an echo, and yield the earlier ones; ctrl+c remains a signal."""
    try:
        import termios
        import tty
    except ModuleNotFoundError:  # Windows
        yield b""
        return
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard, termios.TCSANOW)
    earlier = os.read(keyboard, 1024) if select.select([keyboard], [], [], 0)[0] else b""
    loop.add_reader(keyboard, lambda: on_keys(os.read(keyboard, 1024)))
    try:
        yield earlier
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSANOW, before)


def begun(console: "type[Console]", screen: str, place: int = 0, *, past: bool) -> "type[Console]":
    """A console that begins with a screen of a database, of the present or of a past time."""
    mode = mode_name(screen, place, past=past)
    return type("Begun", (console,), {"DEFAULT_MODE": mode}) if mode != console.DEFAULT_MODE else console


COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""The values that Python gives to LC_CTYPE; see PEP 538."""


def _first_environment() -> bytes:
    """The environment with which this process started; LC_CTYPE is in it where the system does not keep it."""
    try:
        return Path("/proc/self/environ").read_bytes()
    except OSError:
        return b"LC_CTYPE="


def needs_ascii() -> bool:
    """True if the locale of the terminal is not UTF-8.

    In the locale C, Python sets LC_CTYPE to a UTF-8 locale, and uses UTF-8 itself.
    """
    names = ["LC_ALL", "LC_CTYPE", "LANG"]
    if os.environ.get("LC_CTYPE") in COERCED and b"LC_CTYPE=" not in _first_environment():
        names.remove("LC_CTYPE")
    language = next((os.environ[name] for name in names if os.environ.get(name)), "")
    if language in ("C", "POSIX"):
        return True
    encoding = language.rpartition(".")[2] if "." in language else locale.getpreferredencoding(do_setlocale=False)
    return encoding.partition("@")[0].lower().replace("-", "") != "utf8"


def _console() -> "type[Console]":
    from tasktui.app import Console  # imports Textual, which takes longer than the first query

    return Console


@asynccontextmanager
async def opened(arguments: Arguments, settings: Settings) -> AsyncIterator[Session]:
    """Open the database for an operator, without creating or migrating anything.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
        SchemaMissing: the file does not exist, or the tables do not.
        SchemaTooOld: the tables must be migrated first.
        SchemaTooNew: a later release created the tables.
    """
    async with prepared(arguments, settings) as session:
        await session.open()
        yield session


@asynccontextmanager
async def prepared(arguments: Arguments, settings: Settings) -> AsyncIterator[Session]:
    """A session whose database is not open yet."""
    database = Database.of(settings, read_only=True, connector=connector_for(settings.url))
    try:
        barrier = ASKED if arguments.read_only else UNOPENED
        session = Session(database, settings, lock_of(arguments, settings, barrier))
        try:
            yield session
        finally:
            await session.finish()
    finally:
        await database.dispose()
        await driver_threads_ended()


def lock_of(arguments: Arguments, settings: Settings, barrier: ReadOnlyReason | None = None) -> WriteLock:
    """The write lock at the start."""
    closed = settings.read_only and not arguments.write
    return WriteLock(-inf if closed else inf, barrier)


def connector_for(url: DatabaseUrl) -> Connector:
    """A connector with the name of the console on the server, unless the URL sets one."""
    return Connector(application="" if "application_name" in dict(url.options) else "tasktui")


def end_on_signals(end: Callable[[], object]) -> None:
    """Restore the terminal and end on a signal, or when the terminal is closed."""
    loop = asyncio.get_running_loop()
    for signal_number in ENDING:
        with suppress(NotImplementedError):  # the loop of Windows
            loop.add_signal_handler(signal_number, end)
        # The loop calls `end` between callbacks. If the driver blocks on a terminal that accepts no output, only the
        # handler installed here runs.
        signal.signal(signal_number, _make_sure)


class Ending:
    """Ends the process if the database keeps it waiting after the operator has left."""

    def __init__(self) -> None:
        self._timers: list[threading.Timer] = []

    def begin(self, is_changing: Callable[[], bool]) -> None:
        """Allow the database some time.

        Args:
            is_changing: returns True while a change is written, for which the process waits longer.
        """

        def give_up_queries() -> None:
            if not is_changing():
                os._exit(0)

        waits = {LONGEST_CANCELLING: give_up_queries, LONGEST_ENDING: _give_up}
        self._timers = [threading.Timer(seconds, give_up) for seconds, give_up in waits.items()]
        for timer in self._timers:
            timer.daemon = True
            timer.start()

    def cancel(self) -> None:
        """Let the process live: the database is closed."""
        for timer in self._timers:
            timer.cancel()


def _give_up() -> None:
    os.write(2, SILENT)  # the terminal is already restored
    os._exit(DatabaseUnavailable.exit_code)


def _make_sure(signal_number: int, _frame: object) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        if not os.isatty(descriptor):
            os.dup2(null, descriptor)
    watchdog = threading.Timer(LONGEST_ENDING, os._exit, [128 + signal_number])
    watchdog.daemon = True
    watchdog.start()
