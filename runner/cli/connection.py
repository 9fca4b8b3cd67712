"""The database options of every command, and how a command opens the database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Group, Parameter

from runner.cli.exit_codes import print_stderr
from runner.db.connect import driver_threads_ended
from runner.db.database import Database
from runner.db.migrations.apply import ensure
from runner.db.migrations.revisions import REVISIONS
from runner.errors import FileMissing
from runner.settings import Settings, load
from runner.urls import refuse_password


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
            ConfigurationError: see `runner.settings.load`.
        """
        if self.url is not None:
            refuse_password(self.url)
        return load(profile=self.profile, config=self.config, url=self.url, **overrides)


DEFAULT_CONNECTION = Connection()
"""No option: the environment, the configuration file and the defaults decide."""


@asynccontextmanager
async def open_unchecked(settings: Settings, *, must_exist: bool = False) -> AsyncIterator[Database]:
    """Connect to the database of a command without checking its tables.

    Args:
        settings: the settings, with the database.
        must_exist: raise an error for a missing SQLite file instead of creating it.

    Raises:
        FileMissing: the file does not exist and `must_exist` is set.
    """
    if must_exist and settings.url.kind == "sqlite" and not (path := Path(settings.url.database)).exists():
        raise FileMissing(path=path.absolute())
    database = Database.of(settings)
    try:
        yield database
    finally:
        await database.dispose()
        await driver_threads_ended()


@asynccontextmanager
async def open_database(settings: Settings, *, creates: bool = False) -> AsyncIterator[Database]:
    """Open the database of a command and make sure that its tables exist.

    Args:
        settings: the settings, with the database.
        creates: create a missing SQLite file. Only a submit does: in a wrong directory any other command would report
            an empty database.

    Raises:
        FileMissing: the SQLite file does not exist.
        SchemaMissing: the PostgreSQL database has no tables of ours; a SQLite file gets them.
        DatabaseUnavailable: the database cannot be reached.
    """
    async with open_unchecked(settings, must_exist=not creates) as database:
        revisions = await ensure(database)
        if len(revisions) == len(REVISIONS):
            print_stderr(f"runner: created the tables of the new database {database.url}")
        yield database
