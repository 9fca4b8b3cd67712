"""The errors of this project: each docstring is the message."""

from functools import partial
from inspect import cleandoc
from typing import Any, ClassVar, Literal, TypeAlias


class RunnerError(Exception):
    """Something went wrong."""

    exit_code: ClassVar[int] = 1
    """Exit code of a command that fails with this error."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        super().__init__(_sentence(" ".join(cleandoc(type(self).__doc__ or "").split()).format(**fields)))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.fields), ()


def _sentence(text: str) -> str:
    """Remove the full stop after a message that already ends with one or with a question mark."""
    return text[:-1] if text.endswith(("..", "?.")) and not text.endswith("...") else text


class ArchiveFailed(RunnerError):
    """Archive {path} cannot be used: {why}."""


class ArchiveInUse(ArchiveFailed):
    """Archive {path} is in use: process {pid} writes to it. Wait until it has finished."""

    exit_code = 6


class BenchFailed(RunnerError):
    """The benchmark failed: {why}."""


class ConfigurationError(RunnerError):
    """Invalid configuration: {why}."""

    exit_code = 3


class InvalidSettings(ConfigurationError):
    """Invalid setting ({where}): {why}."""


class InvalidUrl(ConfigurationError):
    """Invalid database URL {url}: {why}. Use sqlite:///file.db or postgresql://host/database."""


class PasswordInArguments(ConfigurationError):
    """
    The URL on the command line contains a password, which every user of this machine can read in the process
    list. Set the URL in the environment variable TASKTUI_URL, put the password into PGPASSWORD or ~/.pgpass, or
    add a profile with password_command to the configuration file.
    """


class UnknownProfile(ConfigurationError):
    """Unknown profile {name!r}. The configuration file defines: {known}."""


class DuplicateHandler(ConfigurationError):
    """Two handlers have the name {name!r}: {first} and {second}. Rename one of them."""


class InvalidHandler(ConfigurationError):
    """Handler {name!r} cannot be registered: {why}."""


class UnknownHandler(ConfigurationError):
    """Unknown handler {name!r}. Loaded handlers: {known}. Load the module that defines it with -H package.module."""


class DriverMissing(ConfigurationError):
    """PostgreSQL needs psycopg, which cannot be imported: {why}. Run: pip install 'tasktui[postgres]'."""


class PackageMissing(ConfigurationError):
    """The package {package} is not installed, and {use} needs it. Run: pip install 'tasktui[{extra}]'{instead}."""


class KeyMissing(ConfigurationError):
    """
    The {what} {needs} of codec {codec}, and this process has {known}. Set TASKTUI_CODEC_KEYS_FILE, or TASKTUI_CODEC for
    an own codec.
    """


class CodecFailed(RunnerError):
    """Codec {codec} did not work for the {what}: {why}."""


class Undecodable(RunnerError):
    """The {what} cannot be decrypted with key {key} of codec {codec}: {why}."""


class UnknownExecutor(ConfigurationError):
    """
    Handler {handler} has executor={executor!r}, which is not in the setting executors. Known are {known}. Add it there,
    such as {executor}=dask:tcp://scheduler:8786.
    """


class WouldBlock(ConfigurationError):
    """{call} would block the running event loop. Use this instead: {instead}."""


class ShardNotChosen(ConfigurationError):
    """The profile {profile} is several databases, and this needs one. Choose a shard with --profile: {shards}."""


class UnknownConnection(ConfigurationError):
    """
    The type {kind} cannot be used as tx. Pass a SQLAlchemy connection or session, or a psycopg, psycopg2, asyncpg,
    sqlite3 or aiosqlite connection. With Django, pass connection.connection.
    """


class AutocommitConnection(ConfigurationError):
    """
    The {kind} passed as tx commits every statement: the change of a task would remain even if your own changes are
    rolled back. {remedy}.
    """


class SyncAsyncMismatch(ConfigurationError):
    """The {kind} passed as tx {why}. Use {form} with it."""


class HandlersNotFound(ConfigurationError):
    """Cannot load the handlers of module {module!r}: {why}."""


class NotConfirmed(RunnerError):
    """not confirmed; nothing was changed"""

    exit_code = 2


class CountChanged(RunnerError):
    """The number of tasks is {found} now, not {confirmed}; nothing was changed. Check them again with --dry-run."""

    exit_code = 6


class InvalidInput(RunnerError):
    """Invalid input: {why}."""

    exit_code = 2


class InvalidDuration(InvalidInput):
    """{text!r} is not a duration: {why}. Examples: 30s, 5m, 1h30m, 2d."""


class InvalidMoment(InvalidInput):
    """{text!r} is not a point in time: {why}. Examples: now, +15m, 14:30, tomorrow 9:00, 2026-11-20T14:30+01:00."""


class InvalidRetryPlan(InvalidInput):
    """{plan!r} is not a retry plan: {why}. Examples: 1m,5m,20m or exp:10s*2<1h or sidekiq or 30s or never."""


class InvalidSchedule(InvalidInput):
    """Invalid value {value!r} for `{field}` of a schedule: {why}."""


class DuplicateScheduleId(InvalidInput):
    """There is a schedule with the id {id!r}. Change it with: runner schedules edit, or choose another id."""

    exit_code = 6


class ScheduleInCode(InvalidInput):
    """Schedule {id!r} is in the code of {module}, which would add it again. Pause it, or remove it from the code."""

    exit_code = 6


class ScheduleConflict(InvalidInput):
    """Schedule {id!r} has changed since you loaded version {seen}: it is at version {found}. Load it again."""

    exit_code = 6


class UnknownSchedule(InvalidInput):
    """Schedule {id!r} does not exist{hint}. List them with: runner schedules list."""

    exit_code = 5


class DuplicateSchedule(ConfigurationError):
    """Two schedules have the id {id!r}: {first} and {second}. Name each of them with its own id=."""


class InvalidFilter(InvalidInput):
    """Invalid filter {text!r} at character {position}: {why}."""


class InvalidSort(InvalidInput):
    """Cannot sort tasks by {sort}: {why}."""


class NoSqlEquivalent(InvalidInput):
    """This change cannot be written as SQL: {why}."""


class InvalidPayload(InvalidInput):
    """Invalid payload for handler {handler!r}: {why}."""


class InvalidInline(InvalidInput):
    """Handler {handler!r} cannot run inline: {why}."""


class InvalidCheckpoint(InvalidInput):
    """Task {id} cannot store a checkpoint of type {type}: {why}."""


class InvalidStep(InvalidInput):
    """Task {id}, step {name!r}: {why}."""


class StepsChanged(InvalidInput):
    """
    Task {id}: its steps differ from those of attempt {attempt}, stored at {at}: {why}. The handler has changed since,
    or it chooses its steps by something that differs between attempts. Deploy the code of that time, or forget the
    steps from there on with `runner rewind {id} --step {step}`, and retry the task.
    """


class InvalidProgress(InvalidInput):
    """Progress of {done!r} of {total!r} is not valid: {why}."""


class PayloadTooLarge(InvalidInput):
    """
    The payload for handler {handler!r} has {size} bytes; the limit is {limit}. Store the data outside the task
    and submit a reference to it, or raise the setting payload_limit.
    """


class InvalidTask(InvalidInput):
    """Invalid value {value!r} for `{field}`: {why}."""


class TwoShards(InvalidInput):
    """
    This submit needs two shards: {why}. Unique keys, order keys, limits, dependencies and transactions hold within one
    shard; nothing was submitted.
    """


class InvalidEdit(InvalidInput):
    """Cannot set {field} to {value!r}: {why}."""


class StoreError(RunnerError):
    """Database error: {why}."""

    exit_code = 4


Stage: TypeAlias = Literal["connect", "statement", "commit"]
"""A step of a transaction. A statement that commits by itself is a commit."""


class DatabaseUnavailable(StoreError):
    """The database {url} cannot be reached: {why}. Check that it is running and that the URL is correct."""

    stage: Stage = "connect"
    """The last step that the transaction began. After a commit began, its effects are unknown without an answer."""


class DatabaseNotOpened(DatabaseUnavailable):
    """The database {url} cannot be opened or written: {why}."""


class LoginRefused(DatabaseUnavailable):
    """
    The server of {url} refuses the login: {why}. Give its password in TASKTUI_PASSWORD, TASKTUI_PASSWORD_FILE, or a
    file tasktui_password in the folder TASKTUI_SECRETS_DIR.
    """


class DatabaseLocked(DatabaseUnavailable):
    """
    Another program has locked {url} and did not release it in time: {why}. The statement had no effect. Commit or end
    the open transaction of that program (lsof and fuser list the programs that use a file), and retry.
    """


class StatementTimeout(DatabaseUnavailable):
    """
    The server of {url} cancelled a statement: {why}. It had no effect. The view pg_stat_activity lists the open
    transactions: end the one that holds a lock or has been open for long, and retry.
    """


class ReadOnlyDatabase(DatabaseUnavailable):
    """The database {url} accepts no changes: {why}. {remedy}."""


class DiskFull(DatabaseUnavailable):
    """The disk of {url} is full: {why}. The transaction was rolled back. Free space on the disk, and retry."""


class ResourceLimitReached(DatabaseUnavailable):
    """The database {url} cannot be used by this process: {why}."""


class SubmitUncertain(DatabaseUnavailable):
    """
    The connection to {url} broke before it confirmed the commit: {why}. {tasks} may exist. Search with: {search}.
    {remedy}.
    """


class DatabaseRefused(StoreError):
    """The database rejected the statement: {why}."""


class DatabaseUnusable(DatabaseRefused):
    """The database {url} cannot be used: {why}."""


class ValueRejected(DatabaseRefused):
    """The database rejected a value: {why}."""


class RowLocked(DatabaseRefused):
    """Another transaction locks a row: {why}."""


class LockNotReleased(DatabaseRefused):
    """{effect}: {why}. {remedy}, then retry."""

    exit_code = 13


class SchemaMissing(StoreError):
    """The database {url} has no task tables (this program needs schema {needed}). Create them with: runner migrate."""


class FileMissing(SchemaMissing):
    """The SQLite file {path} does not exist. Name the database with --url or TASKTUI_URL, or run: runner migrate."""


class DatabaseFileReplaced(DatabaseUnavailable):
    """
    The files of the database {url} have changed: {why}. Probably a restore or a cleanup did it. Programs that open the
    file now may not see the newest tasks.{saved} Stop all programs that use the file, and copy it and every file beside
    it whose name begins with its name. Then open the copies with sqlite3, run PRAGMA integrity_check, and keep the
    database that has your tasks. Do not delete a -wal file: it may hold tasks that are nowhere else.
    """


class FileHasOtherName(StoreError):
    """
    The SQLite file {path} (inode {inode}) {why}. SQLite finds the log of a file by its name: programs that use
    different names do not see each other's tasks, and damage the file. {remedy}.
    """


class SchemaTooOld(StoreError):
    """The database {url} is at schema {found}, but this program needs {needed}. Upgrade it with: runner migrate."""


class SchemaTooNew(StoreError):
    """
    The database {url} is at schema {found}, which this program (schema {needed}) does not support. Install the
    release that created it.
    """


class SchemaVersionMissing(StoreError):
    """
    The table {table} exists, but {version} does not record its schema version: the table belongs to another
    application, or was restored without {version}. Restore that table too, or set table_prefix or table_schema to
    use separate tables.
    """


class SchemaIncomplete(StoreError):
    """The database {url} lacks {tables} of schema {found}. Restore a backup of all its tables, or create it anew."""


class TaskNotFound(StoreError):
    """Task {id} does not exist: it was never submitted, its transaction has not committed yet, or it was pruned.

    If it was archived, read it with: runner show {id} --archive FOLDER.
    """

    exit_code = 5


class WorkflowNotFound(StoreError):
    """Workflow {id} does not exist: it was never submitted, or all its tasks were pruned."""

    exit_code = 5


class TaskUnchanged(StoreError):
    """Task {id} was not changed: {why}."""

    exit_code = 6

    @property
    def why(self) -> str:
        """The reason, as a clause."""
        return str(self.fields["why"])


class SequenceLate(StoreError):
    """
    New tasks would get ids of earlier ones: {why}. Probably the rows were restored without their sequences. Run as the
    owner of the tables: runner migrate.
    """


class VersionConflict(StoreError):
    """Task {id} has changed since you loaded version {seen}: it is {state} at version {found} now. Load it again."""

    exit_code = 6


class NoResult(RunnerError):
    """Task {id} has no result."""


class TaskFailed(NoResult):
    """Task {id} of handler {handler!r} is dead after attempt {attempts}: {reason}."""

    exit_code = 8

    @property
    def attempts(self) -> int:
        """Number of attempts."""
        return int(self.fields["attempts"])

    @property
    def error_type(self) -> str:
        """Class of the handler's exception, or a word such as Timeout."""
        return str(self.fields["error_type"])

    @property
    def message(self) -> str:
        """Message of the handler's exception."""
        return str(self.fields["message"])

    @property
    def traceback(self) -> str:
        """Traceback from the handler's own frame on, shortened as it was stored."""
        return str(self.fields["traceback"])


class TaskCancelled(NoResult):
    """Task {id} of handler {handler!r} was cancelled: {reason}."""

    exit_code = 8


class TimedOut(NoResult):
    """Task {id} did not finish within {waited}. It continues: wait again, or check it with: runner why {id}."""

    exit_code = 9


class ResultNotKept(NoResult):
    """Task {id} of handler {handler!r} succeeded, but {reason}."""


class ResultEncrypted(NoResult):
    """
    Task {id} of handler {handler!r} succeeded, but this process cannot decrypt its result: {shown}. Set
    TASKTUI_CODEC_KEYS_FILE, or TASKTUI_CODEC for an own codec.
    """


class InvalidResult(NoResult):
    """
    Task {id} of handler {handler!r} succeeded, but its result does not match the handler's return annotation:
    {why}.
    """


class FencedOut(StoreError):
    """
    This runner no longer holds task {id} (fence {fence} is out of date): the attempt outlasted its timeout or the
    runner's lease, or an operator terminated the task. This transaction is rolled back.
    """


class AlreadyDone(StoreError):
    """An earlier ctx.transaction() of this attempt completed task {id}: write everything in one transaction."""


class TransactionOpen(StoreError):
    """Task {id} already has an open ctx.transaction(), and one can complete it. Write everything in that one."""


class TransactionUnavailable(StoreError):
    """Task {id} waited {waited} for its ctx.transaction() and got none: {why}. This attempt is not counted."""


class TransactionEnded(StoreError):
    """
    The transaction of task {id} ended inside its ctx.transaction() block. Remove commit() and rollback(): the
    block commits when it ends, and an exception rolls it back.
    """


class NoTransaction(StoreError):
    """Task {id} is not executed by a runner, so ctx.transaction() is not available."""


class TransactionInChunk(StoreError):
    """
    Task {id} is one of a chunk, where ctx.transaction() is not available, because it completes a single task. Open a
    transaction of your own.
    """


class TransactionInProcess(StoreError):
    """
    Task {id} runs outside of its runner, where ctx.transaction() is not available. Open a transaction of your own, or
    remove executor="{executor}" from the handler.
    """


class StepsUnavailable(StoreError):
    """Task {id} runs in {where}, where steps, calls and signals are not available: remove {option} from the handler."""


class NoRunner(StoreError):
    """No runner executes this task, so {call} is not available."""


class DuplicateTask(StoreError):
    """
    The unique key {key!r} of handler {handler!r} is held by {holder}; nothing was submitted. To get the id of
    that task instead, set on_duplicate to skip or replace.
    """

    exit_code = 6

    @property
    def id(self) -> int | None:
        """Id of the task that holds the key; None if it is part of the same submit."""
        id: int | None = self.fields["id"]
        return id


class UnsafeFile(StoreError):
    """
    The SQLite file {path} is on {filesystem}, where file locks do not work and the database would be corrupted.
    Move it to a local disk.
    """
