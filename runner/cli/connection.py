"""Which database a command is about, and the way into it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Group, Parameter

from runner.cli.ending import complain
from runner.errors import SchemaMissing
from runner.migrations import HEAD, REVISIONS, ensure
from runner.settings import Settings, load
from runner.store.database import Database
from runner.store.threads import driver_threads_ended
from runner.urls import refuse_password


@Parameter(name="*", group=Group("Database", sort_key=100))
@dataclass(frozen=True, slots=True)
class Connection:
    """The options that every verb shares.

    Args:
        url: sqlite:///file.db or postgresql://host/database, without a password.
        profile: A profile of the configuration file.
        config: The configuration file, if it is not the usual one.
    """

    url: str | None = None
    profile: str | None = None
    config: Path | None = None

    def settings(self, **overrides: Any) -> Settings:
        """Collect the settings for a command.

        Args:
            overrides: what its other options say, by name of the setting; None counts as not given.

        Raises:
            PasswordInArguments: the URL holds a password, which others could read in the list of processes.
            ConfigurationError: see `runner.settings.load`.
        """
        if self.url is not None:
            refuse_password(self.url)
        return load(profile=self.profile, config=self.config, url=self.url, **overrides)


NOWHERE = Connection()
"""No option was given: the environment, the configuration file and the defaults decide."""


@asynccontextmanager
async def unopened(settings: Settings, *, must_exist: bool = False) -> AsyncIterator[Database]:
    """Prepare the way to the database of a command, whatever tables it has.

    Args:
        settings: say where it is.
        must_exist: do not let a missing SQLite file come into being by looking into it.

    Raises:
        SchemaMissing: there is no such file, though it must exist.
    """
    if must_exist and settings.url.kind == "sqlite" and not Path(settings.url.database).exists():
        raise SchemaMissing(url=settings.url, needed=HEAD)
    database = Database.of(settings)
    try:
        yield database
    finally:
        await database.dispose()
        await driver_threads_ended()


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    """Open the database of a command, with its tables in order.

    Args:
        settings: say where it is.

    Raises:
        SchemaMissing: on PostgreSQL, when there are no tables of ours; a SQLite file is given them.
        DatabaseAway: when it cannot be reached.
    """
    async with unopened(settings) as database:
        applied = await ensure(database)
        if len(applied) == len(REVISIONS):
            complain(f"runner: {database.url} is new, its tables were created just now")
        yield database
