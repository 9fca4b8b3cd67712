"""Everything that `runner` raises, as one tree.

    RunnerError
    ├── InvalidInput            what somebody typed or passed
    │   ├── InvalidDuration  InvalidMoment  InvalidRetryPlan  InvalidFilter
    │   ├── InvalidPayload  PayloadTooLarge  InvalidTask
    │   └── InvalidEdit
    ├── ConfigurationError      how the program was set up
    │   ├── InvalidSettings  InvalidUrl  PasswordInArguments  UnknownProfile
    │   ├── DuplicateHandler  InvalidHandler  UnknownHandler  HandlersNotFound
    │   └── WouldBlock  UnknownConnection  CommitsByItself  WrongForm
    ├── StoreError              what the database said
    │   ├── DatabaseAway  DatabaseRefused (ContentRefused)
    │   ├── SchemaTooOld  SchemaTooNew  SchemaMissing
    │   ├── TaskNotFound  TaskMovedOn  DuplicateTask  FencedOut  AlreadyDone  NoTransaction
    │   └── UnsafeFile
    ├── CountChanged            more or fewer tasks match than were confirmed
    └── BenchFailed             nothing could be measured

A class's docstring is its message: the fields in braces are its keyword arguments. It says what happened, which value,
and what to do next.
"""

from inspect import cleandoc
from typing import Any, ClassVar


class RunnerError(Exception):
    """Something went wrong."""

    exit_code: ClassVar[int] = 1
    """What a command ends with when this error ends it."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        super().__init__(" ".join(cleandoc(type(self).__doc__ or "").split()).format(**fields))

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.fields)


def _revive(kind: type[RunnerError], fields: dict[str, Any]) -> RunnerError:
    return kind(**fields)


class InvalidInput(RunnerError):
    """The input is not valid: {why}."""

    exit_code = 2


class InvalidDuration(InvalidInput):
    """{text!r} is not a duration: {why}. Write for example 30s, 5m, 1h30m or 2d."""


class InvalidMoment(InvalidInput):
    """
    {text!r} is not a point in time: {why}. Write for example now, +15m, 14:30, tomorrow 9:00 or
    2026-11-20T14:30+01:00.
    """


class InvalidRetryPlan(InvalidInput):
    """{plan!r} is not a retry plan: {why}. Write for example 1m,5m,20m or exp:10s*2<1h or sidekiq or 30s or never."""


class InvalidFilter(InvalidInput):
    """The filter {text!r} is not understood at character {position}: {why}."""


class InvalidPayload(InvalidInput):
    """The payload does not fit handler {handler!r}: {why}."""


class PayloadTooLarge(InvalidInput):
    """
    The payload for handler {handler!r} has {size} bytes, more than the {limit} allowed. Store the data elsewhere and
    submit a reference to it, or raise the setting payload_limit.
    """


class InvalidTask(InvalidInput):
    """A task's {field} may not be {value!r}: {why}."""


class InvalidEdit(InvalidInput):
    """Cannot set {field} to {value!r}: {why}."""


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


class StoreError(RunnerError):
    """The database reports: {why}."""

    exit_code = 4


class DatabaseAway(StoreError):
    """The database {url} cannot be reached: {why}. Check that it runs and that the URL is right."""


class DatabaseRefused(StoreError):
    """The database refused the statement: {why}."""


class ContentRefused(DatabaseRefused):
    """The database refused a value: {why}."""


class SchemaMissing(StoreError):
    """
    The database {url} has no tables of ours yet (this program needs schema {needed}). Create them with: runner
    migrate.
    """


class SchemaTooOld(StoreError):
    """
    The database {url} is at schema {found}, this program needs {needed}. Bring it up to date with: runner
    migrate.
    """


class SchemaTooNew(StoreError):
    """
    The database {url} is at schema {found}, which this program (schema {needed}) does not know. Install the release
    that made it.
    """


class TaskNotFound(StoreError):
    """There is no task {id}, neither live nor in the history. It may have been pruned."""

    exit_code = 5


class TaskMovedOn(StoreError):
    """
    Task {id} has changed since you saw version {seen}: it is {state} at version {found} now. Look again and
    retry.
    """

    exit_code = 6


class FencedOut(StoreError):
    """
    Task {id} is not this runner's any more (fence {fence} is void): it took longer than its time-out or its runner's
    lease, or was terminated. What was written in this transaction is rolled back; whoever has the task now does it.
    """


class AlreadyDone(StoreError):
    """Task {id} has ended in an earlier ctx.transaction(): one attempt can end its task once. Write all in one."""


class NoTransaction(StoreError):
    """Task {id} is executed by no runner, so there is no transaction that could end it."""


class DuplicateTask(StoreError):
    """
    The unique key {key!r} of handler {handler!r} is held by {holder}: nothing was submitted. With on_duplicate skip or
    replace that task is the answer.
    """

    exit_code = 6

    @property
    def id(self) -> int | None:
        """Of the task that holds the key; None when it stands in the same batch."""
        id: int | None = self.fields["id"]
        return id


class UnsafeFile(StoreError):
    """
    The SQLite file {path} lies on {filesystem}, where locks do not hold and the file would be damaged. Use a local
    disk.
    """


class CountChanged(RunnerError):
    """The tasks that would be changed are {found} now, not {confirmed}: nothing was done. Look again with --dry-run."""

    exit_code = 6


class BenchFailed(RunnerError):
    """The measurement could not be made: {why}."""
