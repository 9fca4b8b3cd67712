"""Options of commands: the database, task options, tasks as ids or as a filter, confirmation, and waiting."""

import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from runner.cli.capture import CAPTURE
from runner.cli.exit_codes import print_stderr
from runner.db.connect import LOCK_OBSERVERS, driver_threads_ended
from runner.db.database import Database
from runner.db.migrations.apply import ensure
from runner.db.migrations.revisions import REVISIONS
from runner.db.migrations.sequences import advance, late_sequences
from runner.errors import DatabaseRefused, InvalidInput
from runner.filter import saved
from runner.filter.parse import Filter, parse_filter
from runner.model.duration import parse_duration
from runner.model.shard import CURRENT_SHARD
from runner.model.task import LAST_ID
from runner.settings import Settings, load
from runner.settings.shards import shard_settings
from runner.text.operator import local_zone, now
from runner.urls import refuse_password

T = TypeVar("T")


@Parameter(name="*", group=Group("Database", sort_key=100))
@dataclass(frozen=True, slots=True)
class Connection:
    """The options that commands share.

    Args:
        url: sqlite:///file.db or postgresql://host/database, without a password.
        profile: A profile of the configuration file.
        config: The configuration file, if it is not the default one.
    """

    url: str | None = None
    profile: str | None = None
    config: Path | None = None

    def settings(self, **overrides: Any) -> Settings:
        """Collect the settings for a command.

        Args:
            overrides: settings from the other options, by name; None counts as absent.

        Raises:
            PasswordInArguments: the URL contains a password, visible to others in the process list.
            InvalidInput: an option is empty.
            ConfigurationError: see `runner.settings.load`.
        """
        refuse_empty({**asdict(self), **overrides})
        if self.url is not None:
            refuse_password(self.url)
        settings = load(profile=self.profile, config=self.config, url=self.url, **overrides)
        shard = CURRENT_SHARD.get()
        return shard_settings(settings)[shard] if shard is not None and settings.shards else settings


OPTION_NAMES = {"handlers": "-H", "without": "--except"}
"""The options that are not named as their settings."""


def refuse_empty(options: Mapping[str, Any]) -> None:
    """Refuse options with an empty text, as from an unset variable of a shell: they would select nothing or all.

    Args:
        options: their values by setting.

    Raises:
        InvalidInput: one is empty.
    """
    for name, value in options.items():
        texts = value if isinstance(value, tuple) else (value,)
        if any(isinstance(text, str) and not text.strip(" ,") for text in texts):
            option = OPTION_NAMES.get(name, f"--{name.replace('_', '-')}")
            raise InvalidInput(why=f"{option} is empty: give it a value, or leave it out")


DEFAULT_CONNECTION = Connection()
"""No option: the environment, the configuration file and the defaults decide."""


@asynccontextmanager
async def open_unchecked(settings: Settings, *, must_exist: bool = False) -> AsyncIterator[Database]:
    """Connect to the database of a command without checking its tables.

    Args:
        must_exist: raise an error for a missing SQLite file instead of creating it.

    Raises:
        FileMissing: the file does not exist and `must_exist` is set.
    """
    settings.require_one_database()
    if must_exist:
        settings.url.require_file()
    capture = CAPTURE.get()
    database = Database.of(settings, read_only=capture is not None and capture.read_only)
    notice = LockNotice(str(database.url))
    LOCK_OBSERVERS.append(notice)
    try:
        yield database
    finally:
        LOCK_OBSERVERS.remove(notice)
        await database.dispose()
        await driver_threads_ended()


LOCK_NOTICE = 1.0
"""Seconds of a wait for the lock of a SQLite file after which a command prints it."""


class LockNotice:
    """Prints once per wait that a command waits for the lock of a SQLite file, if standard error is a terminal.

    Args:
        url: the database, without a password.
    """

    def __init__(self, url: str) -> None:
        self._url, self._printed_at = url, -inf

    def __call__(self, waited: float) -> None:
        """Receive the seconds of a wait so far, in any thread."""
        now = time.monotonic()
        if waited >= LOCK_NOTICE and now - waited > self._printed_at and sys.stderr.isatty():
            self._printed_at = now
            print_stderr(f"runner: waiting for the lock of {self._url}, which another program holds")


@asynccontextmanager
async def open_database(settings: Settings, *, creates: bool = False) -> AsyncIterator[Database]:
    """Open the database of a command and make sure that its tables exist.

    Args:
        creates: create a missing SQLite file, and advance sequences that are behind the ids. Only a submit does: in a
            wrong directory any other command would report an empty database.

    Raises:
        FileMissing: the SQLite file does not exist.
        SchemaMissing: the PostgreSQL database has no tables of ours; a SQLite file gets them.
        DatabaseUnavailable: the database cannot be reached.
        SequenceLate: a sequence is behind the ids, and this login may not change it.
    """
    async with open_unchecked(settings, must_exist=not creates) as database:
        revisions = await ensure(database)
        if len(revisions) == len(REVISIONS):
            print_stderr(f"runner: created the tables of the new database {database.url}")
        elif creates:
            late = []
            with suppress(DatabaseRefused):  # a login that may only submit: the runners repair them
                late = await database.read(late_sequences)
            if late:
                await advance(database, late)  # a new task must not get the id of an earlier one
        yield database


TaskId: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=LAST_ID))]
"""A task id that both databases can store."""

EntryId: TypeAlias = TaskId
"""The id of an audit entry."""

RunnerId: TypeAlias = TaskId
"""The id of a runner."""


_NUMERIC = re.compile(r"[+-]?[\d.,;_]*\d[\d.,;_]*")
"""A word that was probably meant as an id, or as several."""


def read_targets(words: Sequence[str]) -> list[int] | Filter:
    """Parse task ids or a filter.

    Returns:
        The ids, in order and without repetition; or the filter.

    Raises:
        InvalidInput: nothing was typed, or ids and filter terms are mixed.
        InvalidFilter: the filter has a syntax error.
    """
    ids = [word for word in words if word.isdecimal()]
    if ids and len(ids) == len(words):
        return [_id(word) for word in dict.fromkeys(ids)]
    if wrong := next((word for word in words if _NUMERIC.fullmatch(word) and not word.isdecimal()), None):
        why = f"{wrong[:30]} is not a task id: separate ids by spaces, or search for error~{wrong[:30]}"
        raise InvalidInput(why=why)
    if ids:
        raise InvalidInput(why=f"{ids[0]} is mixed with filter terms: write id:{ids[0]}, or give ids only")
    task_filter = read_filter(words)
    if not task_filter.terms:
        raise InvalidInput(why="name the tasks: ids, or a filter such as 'queue:mail state:dead'")
    return task_filter


def read_filter(words: Sequence[str]) -> Filter:
    """Parse a filter; @name inserts a saved filter.

    Raises:
        InvalidInput: a saved filter of this name does not exist, or a part is empty, as from an unset variable of a
            shell.
        InvalidFilter: the filter has a syntax error.
    """
    if not all(map(str.strip, words)):
        raise InvalidInput(why="a filter is empty: give it a term such as queue:mail, or leave it out")
    return parse_filter(saved.expand(words, saved.default_path()), now(), local_zone())


async def warn_of_names(database: Database, task_filter: Filter) -> None:
    """Warn, after a filter matched nothing, about misspelled names of queues and handlers."""
    from runner.operations.names import filter_warnings

    for warning in await database.read(filter_warnings, task_filter):
        print_stderr(f"runner: {warning}")


def _id(word: str) -> int:
    if not 1 <= int(word[:20]) <= LAST_ID:
        raise InvalidInput(why=f"{word[:30]} is not a task id")
    return int(word)


_TYPES: dict[str, Any] = {"integer": int, "smallint": int, "json": tuple[str, ...]}
"""Types on the command line; all others are read from text."""


def with_task_options(names: Iterable[str]) -> Callable[[type[T]], type[T]]:
    """Add a field for each of some task options to a class, before the fields of its own.

    Args:
        names: names in `handler.options`.
    """
    from runner.handlers.options import SETTABLE  # most verbs need no handlers

    def extended(options: type[T]) -> type[T]:
        own = dict(options.__annotations__)
        options.__annotations__.clear()
        for name in names:
            option = SETTABLE[name]
            flag = option.flag or name
            kind = tuple[str, ...] if name == "after" else _TYPES.get(option.type or "text", str)
            is_list = kind == tuple[str, ...]
            parameter = Parameter(help=option.help, allow_leading_hyphen=option.type == "time")
            options.__annotations__[flag] = Annotated[kind if is_list else kind | None, parameter]
            setattr(options, flag, () if is_list else None)
        options.__annotations__.update(own)
        return options

    return extended


def set_options(options: object, names: Iterable[str]) -> dict[str, Any]:
    """The values of the options that are set, by name.

    Args:
        options: an object of a class with these fields.
        names: names in `handler.options`.
    """
    from runner.handlers.option_values import headers_of_words
    from runner.handlers.options import SETTABLE

    values = {name: getattr(options, SETTABLE[name].flag or name) for name in names}
    values = {name: value for name, value in values.items() if value not in (None, ())}
    return values | {"headers": headers_of_words(values["headers"])} if "headers" in values else values


@Parameter(name="*", group=Group("Confirm", sort_key=50))
@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """How a change is confirmed and recorded.

    Args:
        dry_run: Only show the tasks that would change.
        sql: Only print equivalent SQL for psql or sqlite3.
        yes: The number of changes that the preview shows.
        limit: Change only this many tasks, newest first: 1 for a trial.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
    """

    dry_run: bool = False
    sql: bool = False
    yes: str | None = None
    limit: int | None = None
    reason: str | None = None
    json: bool = False


NO_OPTIONS = ChangeOptions()


@Parameter(name="*", group=Group("Confirm", sort_key=50))
@dataclass(frozen=True, slots=True)
class SingleChangeOptions:
    """How a change of one queue, handler or runner is shown and recorded.

    Args:
        dry_run: Only show the change.
        sql: Only print equivalent SQL for psql or sqlite3.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
    """

    dry_run: bool = False
    sql: bool = False
    reason: str | None = None
    json: bool = False


SINGLE_CHANGE = SingleChangeOptions()
"""No option: the change is applied, without a reason."""


@Parameter(name="*", group=Group("Waiting", sort_key=60))
@dataclass(frozen=True, slots=True)
class WaitOptions:
    """Whether and how long to wait for the task.

    Args:
        wait: Wait for the task and print its result.
        wait_timeout: Wait this long at most: 30s, 5m.
    """

    wait: bool = False
    wait_timeout: str | None = None

    def __post_init__(self) -> None:
        if self.wait_timeout is not None:
            parse_duration(self.wait_timeout)

    def __bool__(self) -> bool:
        return self.wait or self.wait_timeout is not None


NO_WAIT = WaitOptions()
"""Do not wait."""
