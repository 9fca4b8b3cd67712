"""Starting and ending: the terminal is checked and guarded, the database opened, errors said in a line.

What the console is drawn with is loaded while the database is asked what it will show first. So this module, and what
it imports, knows nothing of Textual.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import DatabaseAway, RunnerError, SchemaMissing
from runner.migrations.revisions import HEAD, check
from runner.people.terminal import clean
from runner.settings import Settings
from runner.store import observe
from runner.store.database import Database
from runner.store.threads import driver_threads_ended
from runner.urls import DatabaseUrl
from tasktui.look.glance import glance
from tasktui.operator.session import Session
from tasktui.operator.writing import ASKED, FILE, HELD, Barrier, WriteLock
from tasktui.start.arguments import Arguments
from tasktui.terminal.crash import crash_text

if TYPE_CHECKING:
    from tasktui.app import Console

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

LONGEST_ENDING = 10.0
"""Seconds that ending may take: time enough for the transaction that is under way."""

SILENT = b"tasktui: the database has not answered; what was being changed may have been changed or not.\n"


class NoTerminal(RunnerError):
    """tasktui needs a terminal, and standard {stream} is none. In scripts use runner, e.g. runner tasks state:dead."""

    exit_code = 2


def require_terminal() -> None:
    """Make sure that there is somebody to look and to type.

    Raises:
        NoTerminal: input or output is a file or a pipe.
    """
    for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
        if stream is None or not stream.isatty():
            raise NoTerminal(stream=name)


def main(arguments: Arguments, ready: Callable[[], object]) -> int:
    """Run the console.

    Args:
        arguments: that it was called with.
        ready: called before anything is drawn or said.

    Returns:
        The exit code; whatever went wrong has been said on standard error.
    """
    watchdog = threading.Timer(LONGEST_ENDING, _give_up)
    watchdog.daemon = True
    try:
        require_terminal()
        return asyncio.run(run(arguments, ready, watchdog.start))
    except RunnerError as error:
        ready()
        print(clean(f"tasktui: {error}", newlines=True), file=sys.stderr)
        return error.exit_code
    except Exception as error:
        ready()
        print(crash_text(error), file=sys.stderr)
        return 1
    finally:
        watchdog.cancel()


async def run(arguments: Arguments, ready: Callable[[], object], left: Callable[[], object]) -> int:
    """Run the console until it is left.

    Args:
        arguments: that it was called with.
        ready: called when it is about to draw.
        left: called when the console was left: what is under way is waited for then.

    Returns:
        The exit code.
    """
    settings = arguments.settings()
    loading = asyncio.create_task(asyncio.to_thread(_console))
    async with opened(arguments, settings) as session:
        session.ask_ahead(glance)
        console = (await loading)(session)
        end_on_signals(console.exit)
        ready()
        await console.run_async()
        left()
        return console.return_code or 0


def _console() -> "type[Console]":
    from tasktui.app import Console  # with Textual, which takes longer than the database does

    return Console


@asynccontextmanager
async def opened(arguments: Arguments, settings: Settings) -> AsyncIterator[Session]:
    """Open the database for an operator; nothing is created or migrated.

    Raises:
        DatabaseAway: it cannot be reached.
        SchemaMissing: there are no tables of ours, or no such file.
        SchemaTooOld: the tables have to be migrated first.
        SchemaTooNew: a later release made the tables.
    """
    url = settings.url
    if url.kind == "sqlite" and not Path(url.database).exists():
        raise SchemaMissing(url=url, needed=HEAD)
    settings = replace(settings, url=named(url))
    database = Database.of(settings, read_only=True)
    try:
        await check(database)
        barrier = await barrier_of(arguments, settings, database)
        session = Session(database, settings, lock_of(arguments, settings, barrier))
        try:
            yield session
        finally:
            await session.ended()
    finally:
        await database.dispose()
        await driver_threads_ended()


def lock_of(arguments: Arguments, settings: Settings, barrier: Barrier | None = None) -> WriteLock:
    """Whether changes are allowed at the start, and whether they can be later."""
    closed = settings.read_only and not arguments.write
    return WriteLock(-inf if closed else inf, barrier)


async def barrier_of(arguments: Arguments, settings: Settings, database: Database) -> Barrier | None:
    """What keeps this operator from changing anything for good; None when nothing does."""
    if arguments.read_only:
        return ASKED
    by_effect = os.access in os.supports_effective_ids
    if settings.url.kind == "sqlite" and not os.access(settings.url.database, os.W_OK, effective_ids=by_effect):
        return FILE
    return HELD[await database.read(observe.standing)]


def named(url: DatabaseUrl) -> DatabaseUrl:
    """Let the server know its console by name, unless the URL names it otherwise."""
    if url.kind == "sqlite" or "application_name" in dict(url.options):
        return url
    return replace(url, options=(*url.options, ("application_name", "tasktui")))


def end_on_signals(end: Callable[[], object]) -> None:
    """Leave the terminal as it was when the process is told to end, and end when the terminal has gone away."""
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, end)
        # The loop calls `end` when it gets to it. It does not while the driver waits for a terminal that takes nothing
        # any more; what is installed here is called even then.
        signal.signal(number, _make_sure)


def _give_up() -> None:
    os.write(2, SILENT)  # the terminal is as it was by now
    os._exit(DatabaseAway.exit_code)


def _make_sure(number: int, _frame: object) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        if not os.isatty(descriptor):
            os.dup2(null, descriptor)
    watchdog = threading.Timer(LONGEST_ENDING, os._exit, [128 + number])
    watchdog.daemon = True
    watchdog.start()
