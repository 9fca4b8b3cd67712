"""Executes the commands of the command line."""

import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from runner.errors import InvalidInput, RunnerError
from runner.filter import saved
from runner.filter.sort import Sort, parse_sort
from tasktui.commands.syntax import Command, target_of
from tasktui.messages import Tone
from tasktui.session.databases import Databases
from tasktui.session.session import Session
from tasktui.session.shards import each_database
from tasktui.session.write_lock import ReadOnly


class CommandTarget(Protocol):
    """The console, as commands see it."""

    @property
    def session(self) -> Session:
        """The operator's session."""
        ...

    @property
    def databases(self) -> Databases:
        """The databases of the console."""
        ...

    def switch_mode(self, mode: str) -> Any:
        """Show a screen by name."""
        ...

    async def action_go(self, mode: str) -> None:
        """Show a screen on a key press."""
        ...

    def action_help(self) -> None:
        """Show the keys."""
        ...

    def action_health(self) -> None:
        """Show the state of the database."""
        ...

    async def action_command(self, name: str) -> None:
        """Open the command line with a command's name."""
        ...

    @property
    def actions(self) -> Any:
        """The actions of the screen in front."""
        ...

    def write_incident(self, times: Sequence[str]) -> None:
        """Write the report of a period to a file."""
        ...

    def run_worker(self, work: Any, *, group: str = "default") -> Any:
        """Run a coroutine beside the screens."""
        ...

    def change_theme(self, name: str) -> None:
        """Draw with another theme."""
        ...

    def open_tasks(self, filter_text: str | None = None, sort: Sort | None = None) -> None:
        """Show the tasks that match a filter, in an order."""
        ...

    def open_task(self, id: int) -> None:
        """Show a task."""
        ...

    def show_notice(self, text: str, *, tone: Tone = Tone.DONE) -> None:
        """Show a notice."""
        ...

    async def action_quit(self) -> None:
        """Exit the console."""
        ...

    def call_later(self, callback: Any, *args: Any) -> Any:
        """Call a function after the current message."""
        ...


def run_command(console: CommandTarget, command: Command) -> None:
    """Execute a command; a name outside the table is a screen.

    Raises:
        RunnerError: the command failed.
    """
    FUNCTIONS.get(command.name, _go)(console, command)


def _go(console: CommandTarget, command: Command) -> None:
    console.switch_mode(command.name)


def _quit(console: CommandTarget, _command: Command) -> None:
    console.call_later(console.action_quit)


def _help(console: CommandTarget, _command: Command) -> None:
    console.action_help()


def _health(console: CommandTarget, _command: Command) -> None:
    if console.session.at is not None:
        raise InvalidInput(why="the health of the database is not recorded for a past time; :at now returns")
    console.action_health()


def _write(console: CommandTarget, command: Command) -> None:
    if console.session.at is not None:
        raise ReadOnly(why=console.session.why_locked)
    locks = [each.lock for each in each_database(console.session)]
    for lock in [lock for lock in locks if lock.barrier is None] or locks[:1]:
        lock.open(time.monotonic(), command.words)


def _lock(console: CommandTarget, _command: Command) -> None:
    for each in each_database(console.session):
        each.lock.close()


def _stop(console: CommandTarget, _command: Command) -> None:
    if console.session.work is not None:
        console.session.work.stop()


def _tasks(console: CommandTarget, command: Command) -> None:
    console.open_tasks(command.rest)


def _workflows(console: CommandTarget, command: Command) -> None:
    console.databases.opened.workflows.name = command.rest
    console.switch_mode("workflows")


def _at(console: CommandTarget, command: Command) -> None:
    if not command.words:
        raise InvalidInput(why="name a past time: :at 03:12, :at 20m ago; :at now returns to the present")
    console.run_worker(_go_to(console, command.rest), group="at")


async def _go_to(console: CommandTarget, typed: str) -> None:
    try:
        await console.session.go_to(typed)
    except RunnerError as error:
        console.show_notice(str(error), tone=Tone.ERROR)
    else:
        await console.switch_mode("overview")


def _sort(console: CommandTarget, command: Command) -> None:
    if console.session.at is not None:
        raise InvalidInput(why="a list at a past time is sorted by id; :at now returns to the present")
    sort = parse_sort(command.rest) if command.words else console.databases.opened.tasks.sort.reverse
    console.open_tasks(sort=sort)


def _task(console: CommandTarget, command: Command) -> None:
    text = command.rest
    if not text.isdecimal() or not 1 <= int(text[:20]) < 2**63:
        raise InvalidInput(why=f"{text[:30]!r} is not a task id")
    console.open_task(int(text))


def _theme(console: CommandTarget, command: Command) -> None:
    console.change_theme(command.rest)


def _database(console: CommandTarget, command: Command) -> None:
    console.switch_mode(console.databases.choose(command.rest))


def _views(console: CommandTarget, command: Command) -> None:
    path, verb, name = console.session.views, command.words[0] if command.words else "", " ".join(command.words[1:])
    if not verb or (verb == "show" and not name):
        filters = saved.load(path).items()
        console.show_notice("\n".join(f"{view}: {text}" for view, text in filters) or "No filters are saved")
    elif verb == "show":
        console.open_tasks(saved.get(saved.load(path), name))
    elif verb == "save":
        text = console.databases.opened.tasks.filter_text
        saved.save(path, name, text)
        console.show_notice(f"Saved {name}: {text or 'all tasks'}; in filters: {saved.reference(name)}")
    elif verb == "delete":
        saved.delete(path, name)
        console.show_notice(f"Deleted {name}")
    else:
        raise InvalidInput(why=f"{verb[:30]!r} is not show, save or delete; to apply a filter: :views show NAME")


def _pause(console: CommandTarget, command: Command) -> None:
    target, words = target_of(command)
    length = words[:1] if words and words[0][0] in "+0123456789" else ()
    console.actions.ask_pause(target, "".join(length), " ".join(words[len(length) :]), resume=False)


def _resume(console: CommandTarget, command: Command) -> None:
    target, words = target_of(command)
    console.actions.ask_pause(target, "", " ".join(words), resume=True)


def _breaker(console: CommandTarget, command: Command) -> None:
    if not command.words:
        raise InvalidInput(why="name a handler: :breaker sms.send 10m")
    handler, *words = command.words
    wait = words[:1] if words and words[0][0].isdigit() else []
    console.actions.ask_breaker(handler, "".join(wait), " ".join(words[len(wait) :]))


def _silence(console: CommandTarget, command: Command) -> None:
    if not command.words:
        raise InvalidInput(why="name an alert or a rule: :silence queue-late:mail 2h")
    name, *words = command.words
    length = words[:1] if words and words[0][0] in "+0123456789" else []
    console.actions.ask_silence(name, "".join(length), " ".join(words[len(length) :]))


def _submit(console: CommandTarget, command: Command) -> None:
    if len(command.words) != 1:
        raise InvalidInput(why="name a handler: :submit mail.send")
    console.actions.ask_submit(command.rest)


def _incident(console: CommandTarget, command: Command) -> None:
    if len(command.words) > 2:
        raise InvalidInput(why="name a start and an end: :incident 3:00 4:00")
    console.write_incident(command.words)


async def write_incident(session: Session, times: Sequence[str]) -> Path:
    """Write the report of a period to a new file in the current directory.

    Args:
        times: the start and the end, as typed; by default an hour ago and now.

    Returns:
        The absolute path.

    Raises:
        InvalidInput: the period cannot be parsed, or the file cannot be written.
    """
    from runner.db.transaction import clock  # The first screen does not need the report.
    from runner.queries.past.incident import as_markdown, incident
    from runner.text.new_file import write_new
    from runner.text.times import parse_period

    at = await session.read(clock)
    start, end = [*times, *("1h", "now")[len(times) :]]
    since, until = parse_period(start, end, at, session.zone)
    text = as_markdown(await session.read(incident, since, until), session.name, session.zone)
    return write_new(f"incident-{since:%Y%m%d-%H%MZ}-{until:%H%MZ}.md", text, numbered=True)


def _limit(console: CommandTarget, command: Command) -> None:
    target, words = target_of(command)
    values = list(takewhile(lambda word: "=" in word or word == "default", words))
    if words and not values and words[0].lstrip("-")[:1].isdigit():  # surely a limit, and not a reason
        raise InvalidInput(
            why=f"write :limit {command.rest.split()[0]} concurrency={words[0]}, or per-tenant= or rate="
        )
    console.actions.ask_limit(target, " ".join(values), " ".join(words[len(values) :]))


FUNCTIONS: dict[str, Callable[[CommandTarget, Command], None]] = {
    "q": _quit,
    "help": _help,
    "health": _health,
    "write": _write,
    "lock": _lock,
    "stop": _stop,
    "tasks": _tasks,
    "workflows": _workflows,
    "at": _at,
    "sort": _sort,
    "task": _task,
    "theme": _theme,
    "db": _database,
    "views": _views,
    "breaker": _breaker,
    "silence": _silence,
    "limit": _limit,
    "incident": _incident,
    "submit": _submit,
    "pause": _pause,
    "resume": _resume,
}
"""The commands other than names of screens."""
