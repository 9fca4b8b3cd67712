"""Errors: what the database said."""

from runner.errors.root import RunnerError


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


class SchemaUnmarked(StoreError):
    """
    There is a table {table}, but nothing in {version} that says at which schema it is: it is somebody else's, or was
    restored without that table. Restore it too, or set table_prefix or table_schema to a place of our own.
    """


class TaskNotFound(StoreError):
    """
    There is no task {id}, neither live nor in the history: it was never submitted, its transaction is not committed
    yet, or it was pruned.
    """

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


class TransactionOpen(StoreError):
    """Task {id} has a ctx.transaction() open already, and only one can end the task. Write all in that one."""


class TransactionEnded(StoreError):
    """
    The transaction of task {id} was ended inside of its ctx.transaction(). Leave commit() and rollback() out: it
    commits at the end of the block, and an exception rolls it back.
    """


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
