"""Errors: how the program was set up."""

from runner.errors.root import RunnerError


class ConfigurationError(RunnerError):
    """The set-up is not valid: {why}."""

    exit_code = 3


class InvalidSettings(ConfigurationError):
    """The settings are not valid ({where}): {why}."""


class InvalidUrl(ConfigurationError):
    """The database URL {url} cannot be used: {why}. Write sqlite:///file.db or postgresql://host/database."""


class PasswordInArguments(ConfigurationError):
    """
    The URL on the command line holds a password, which every user of this machine can read in the list of processes.
    Put the URL into the environment variable RUNNER_URL, the password into PGPASSWORD or ~/.pgpass, or write a profile
    with password_command into the configuration file.
    """


class UnknownProfile(ConfigurationError):
    """There is no profile {name!r}. The configuration file knows: {known}."""


class DuplicateHandler(ConfigurationError):
    """Two handlers are named {name!r}: {first} and {second}. Rename one of them."""


class InvalidHandler(ConfigurationError):
    """The handler {name!r} cannot be registered: {why}."""


class UnknownHandler(ConfigurationError):
    """No handler is named {name!r} here. Known: {known}. Name the module that defines it with -H package.module."""


class WouldBlock(ConfigurationError):
    """{call}() would hold up the event loop that it is called on. Call it there as: await {instead}(...)."""


class UnknownConnection(ConfigurationError):
    """
    A {kind} cannot be given as tx. Give a connection or a session of SQLAlchemy, or a connection of psycopg, psycopg2,
    asyncpg, sqlite3 or aiosqlite; with Django give connection.connection.
    """


class CommitsByItself(ConfigurationError):
    """
    The {kind} given as tx commits each statement by itself: the task would be stored whatever becomes of your own
    rows. {remedy}.
    """


class WrongForm(ConfigurationError):
    """The {kind} given as tx {why}. Call {form} with it."""


class HandlersNotFound(ConfigurationError):
    """The module {module!r} could not be loaded for its handlers: {why}."""
