"""Django's connection: submits inside the transaction that is open there, and the tables that `migrate` makes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DatabaseError, close_old_connections, connections, transaction

from runner.client.commit import Template
from runner.client.database_client import Client
from runner.client.external import follower
from runner.db.external_transaction import external_steps
from runner.db.migrations.apply import LOCK, statements
from runner.db.migrations.revisions import StoredRevision, pending, version_table
from runner.db.schema import Tables, tables
from runner.db.statement import StatementFrame
from runner.errors import DatabaseUnavailable
from runner.model.task import NewTask, SubmitResult
from runner.settings import Settings, load

if TYPE_CHECKING:
    from runner.db.database import Database

T = TypeVar("T")

IN_MEMORY = (
    "Django's database is in memory, where no other connection can read it; for tests that run tasks, set a file name: "
    'DATABASES["default"]["TEST"] = {"NAME": BASE_DIR / "test.sqlite3"}'
)


def database_alias() -> str:
    """Return the alias of the database that has the task tables: `DATABASE` of the setting TASKTUI, or "default"."""
    return str(getattr(settings, "TASKTUI", {}).get("DATABASE", "default"))


class DjangoClient(Client):
    """The client of a Django process, web server or runner.

    A submit, and a read or a change of a task, is part of `transaction.atomic()` around it. Outside of one it commits
    itself, as a `save()` does. The wait for results uses connections of its own.
    """

    inline: Any = None
    """The InlineTasks of a block of `inline()`; None outside of one."""

    def insert_of(self, template: Template) -> None:  # noqa: ARG002 - other clients need it
        """None: a submit uses Django's connection."""
        return

    def submit(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Submit tasks through Django's connection of this thread."""
        result = self._submit(tasks)
        if self.inline is not None:
            self.inline.run()
        return result

    def _submit(self, tasks: Sequence[NewTask]) -> SubmitResult:
        with nullcontext() if self._joins_transaction() else transaction.atomic(using=self.alias):
            return self._on_connection(partial(self.submit_within, tasks=tasks))

    async def submit_async(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Same as `submit`, in the thread in which Django's asynchronous queries run."""
        result: SubmitResult = await sync_to_async(self._submit, thread_sensitive=True)(tasks)
        if self.inline is not None:
            await self.inline.run_async()
        return result

    def begin(self, verb: Callable[..., Awaitable[T]], *arguments: Any, reads: bool) -> Future[T]:
        """Read or change tasks within the transaction of this thread, and without one on a connection of the client.

        On an event loop, it is the transaction of the thread in which Django's asynchronous queries run.
        """

        def begin() -> Future[T]:
            joins = self._joins_transaction()
            if not joins and self.inline is None:
                return super(DjangoClient, self).begin(verb, *arguments, reads=reads)
            done: Future[T] = Future()
            with nullcontext() if joins else transaction.atomic(using=self.alias):
                done.set_result(self._on_connection(lambda connection: follower(connection)(connection, steps)))
            return done

        def steps(driver: Any) -> Any:
            return external_steps(StatementFrame.of(self.settings, driver), verb, *arguments, reads=reads)

        async def begin_in_thread() -> T:
            return await asyncio.wrap_future(await sync_to_async(begin, thread_sensitive=True)())

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return begin()
        later: Any = loop.create_task(begin_in_thread())
        return later  # wrap_future accepts it too

    def opening(self) -> "Future[None]":
        """Open the database for results; in inline mode Django's connection reads them."""
        if self.inline is None:
            return super().opening()
        opened: Future[None] = Future()
        opened.set_result(None)
        return opened

    def _joins_transaction(self) -> bool:
        """True inside a transaction that Django has opened in this thread."""
        connection = connections[self.alias]
        if connection.get_autocommit():
            return False
        connection.validate_no_broken_transaction()
        return True

    def _on_connection(self, call: Callable[[Any], T]) -> T:
        connection = connections[self.alias]
        with connection.wrap_database_errors:
            connection.ensure_connection()
            return call(connection.connection)

    @property
    def alias(self) -> str:
        """The alias of the database with the task tables."""
        return database_alias()

    async def _open(self) -> "Database":
        if self.settings.url.file is not None and is_in_memory(self.settings.url.database):
            raise DatabaseUnavailable(url=self.settings.url, why=IN_MEMORY)
        return await super()._open()


BROKEN = 3
"""libpq's status of a transaction in which a statement has failed."""


def begin_attempt() -> str | None:
    """Close broken and expired connections; inside a transaction of inline mode, return a savepoint instead."""
    close_unused()
    connection: Any = connections[database_alias()]
    if DjangoClient.inline is None or not connection.in_atomic_block:
        return None
    savepoint: str = connection.savepoint()
    return savepoint


def end_attempt(savepoint: str | None) -> None:
    """Roll back to the savepoint of an attempt if a statement has broken the transaction, then close connections."""
    if savepoint is not None:
        connection: Any = connections[database_alias()]
        driver = connection.connection
        if connection.needs_rollback or (hasattr(driver, "info") and driver.info.transaction_status == BROKEN):
            connection.needs_rollback = False
            connection.savepoint_rollback(savepoint)
        else:
            connection.savepoint_commit(savepoint)
    close_unused()


def close_unused() -> None:
    """Close connections of this thread that are broken or expired; in inline mode they belong to a test."""
    if DjangoClient.inline is None:
        close_old_connections()


def is_in_memory(name: str) -> bool:
    """True if the name of a SQLite database means memory, as in Django's tests."""
    return name == ":memory:" or "mode=memory" in name


def migrate_tables(using: str, verbosity: int) -> None:
    """Create or upgrade the tables.

    Args:
        verbosity: as for `manage.py migrate`.

    Raises:
        SchemaTooNew: a later release created the tables, and this program cannot use them.
    """
    settings, connection = load(), connections[using]
    with transaction.atomic(using=using), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        before = _revision(connection, _tables(connection.vendor, settings))
        revisions = pending(before, str(settings.url))
        for statement in _statements(connection.vendor, settings, revisions, before):
            cursor.execute(statement)
    if revisions and verbosity >= 1:
        print(f"  Applied revision {', '.join(revisions)} of the task tables.")


def clear_tables(using: str) -> None:
    """Delete all rows."""
    connection = connections[using]
    with connection.cursor() as cursor:
        for table in _tables(connection.vendor, load()).metadata.tables.values():
            cursor.execute(f"DELETE FROM {_quoted(connection, table)}")  # noqa: S608 - a name of the schema


def _tables(vendor: str, settings: Settings) -> Tables:
    return tables(settings.table_prefix, settings.table_schema if vendor == "postgresql" else None)


def _quoted(connection: Any, table: Any) -> str:
    return ".".join(connection.ops.quote_name(part) for part in (table.schema, table.name) if part)


def _revision(connection: Any, ours: Tables) -> StoredRevision | None:
    """Return the revision of the tables; None without tables."""
    version = ours.metadata.schema, version_table(ours.prefix)
    name = ".".join(connection.ops.quote_name(part) for part in version if part)
    with suppress(DatabaseError), transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute(f"SELECT version_num, compatible_since FROM {name}")  # noqa: S608 - a name of the schema
        row = cursor.fetchone()
        return StoredRevision(*row) if row else None
    return None


def _statements(vendor: str, settings: Settings, revisions: Any, before: StoredRevision | None) -> list[str]:
    if not revisions:
        return []
    start = before.number if before else None
    return statements(vendor, revisions, settings.table_prefix, settings.table_schema, start=start)
