"""Revisions: the known ones, the one of a database, and the check that this program can use it.

Migrations see a database through protocols, because `Database` belongs to a module above them.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa

from runner.db.async_core import AsyncCoreConnection
from runner.db.dialects import Dialect
from runner.db.schema import Tables
from runner.errors import SchemaIncomplete, SchemaMissing, SchemaTooNew, SchemaTooOld, SchemaVersionMissing

T = TypeVar("T")


class MigrationTransaction(Protocol):
    """An open transaction."""

    connection: AsyncCoreConnection
    tables: Tables


class Installation(Protocol):
    """A database with one set of task tables, which may have a prefix and a schema."""

    dialect: Dialect
    url: str
    """URL without a password, for messages."""
    tables: Tables

    def reading(self) -> AbstractAsyncContextManager[MigrationTransaction]:
        """Open a read-only transaction."""

    async def write(self, verb: Callable[[MigrationTransaction], Awaitable[T]]) -> T:
        """Run `verb` in a transaction, and again if it conflicts with another one."""


def version_table(prefix: str) -> str:
    """Return the name of the table that stores the revision."""
    return f"{prefix}task_schema"


log = logging.getLogger("runner.schema")

FOLDER = Path(__file__).parent

# Read from the file names, so that adding a revision takes one file.
REVISIONS = tuple(sorted(file.name.partition("_")[0] for file in (FOLDER / "versions").glob("[0-9]*_*.py")))
"""All revisions in the order of their application."""

HEAD = REVISIONS[-1]
"""Revision that this program needs."""


class StoredRevision(NamedTuple):
    """The revision of a database.

    Args:
        number: the last revision applied.
        compatible_since: the last of them that is not additive; None in a database that does not store it.
    """

    number: str
    compatible_since: str | None

    @property
    def supports_older(self) -> bool:
        """True if this program does not know the revision and can use the tables."""
        since = self.compatible_since
        return self.number > HEAD and since is not None and since <= HEAD


async def check(database: Installation) -> str:
    """Check that this program can use a database, without changing it.

    Returns:
        Its revision: HEAD, or a later one that this program can use.

    Raises:
        SchemaMissing: the database has no task tables.
        SchemaTooOld: the database needs a migration.
        SchemaTooNew: a later release created the tables, and this program cannot use them.
        SchemaVersionMissing: the database has a task table but no revision.
    """
    async with database.reading() as tx:
        return await check_in(tx, database.url)


async def check_in(tx: MigrationTransaction, url: str) -> str:
    """Same as `check`, within an open transaction.

    Args:
        tx: transaction of the database.
        url: URL of the database without a password, for messages.
    """
    return require(await revision_in(tx), url)


def require(revision: StoredRevision | None, url: str) -> str:
    """Same as `check`, for a revision that was read.

    Args:
        revision: revision of the database; None without task tables.
        url: URL of the database without a password, for messages.
    """
    is_pending = bool(pending(revision, url))
    if revision is None:
        raise SchemaMissing(url=url, needed=HEAD)
    if is_pending:
        raise SchemaTooOld(url=url, found=revision.number, needed=HEAD)
    return revision.number


async def current_revision(database: Installation) -> StoredRevision | None:
    """Return the revision of a database; None without task tables."""
    async with database.reading() as tx:
        return await revision_in(tx)


async def revision_in(tx: MigrationTransaction) -> StoredRevision | None:
    """Return the revision of a database, within a transaction; see `stored_revision`."""
    return await tx.connection.run_sync(stored_revision, tx.tables)


def stored_revision(connection: sa.Connection, tables: Tables) -> StoredRevision | None:
    """Return the revision of a database; None without task tables.

    Args:
        connection: a connection to the database.
        tables: tables of the installation.

    Raises:
        SchemaVersionMissing: the database has a task table but no revision.
    """
    name, schema = version_table(tables.prefix), tables.metadata.schema
    inspector = sa.inspect(connection)
    revision: StoredRevision | None = None
    if inspector.has_table(name, schema=schema):
        rows = connection.exec_driver_sql(revision_text(tables)).mappings()
        revision = revision_of([[*row.items()] for row in rows])
    if revision is None and inspector.has_table(tables.task.name, schema=schema):
        raise SchemaVersionMissing(table=tables.task.fullname, version=name)
    return revision


def revision_text(tables: Tables) -> str:
    """The statement that reads the revision of a database with tables.

    All columns, because a table of an earlier release may lack compatible_since. A compiled statement would keep the
    columns that it saw first.
    """
    return str(
        sa.select(sa.text("*")).select_from(sa.table(version_table(tables.prefix), schema=tables.metadata.schema))
    )


def revision_of(rows: Sequence[Sequence[tuple[str, Any]]]) -> StoredRevision | None:
    """The revision in the rows of `revision_text`, with the names of their columns; None without a row."""
    if not rows:
        return None
    row = dict(rows[0])
    return StoredRevision(row["version_num"], row.get("compatible_since"))


async def missing_tables(tx: MigrationTransaction) -> list[str]:
    """Return the full names of the tables of the installation that the database does not have, sorted."""

    def read(connection: sa.Connection) -> list[str]:
        inspector, schema = sa.inspect(connection), tx.tables.metadata.schema
        names = set(inspector.get_table_names(schema))  # has_table also finds those of the rest of the search path
        tables = [table for table in tx.tables.metadata.tables.values() if table.name not in names]
        return sorted(table.fullname for table in tables if not inspector.has_table(table.name, schema=schema))

    return await tx.connection.run_sync(read)


async def require_tables(database: Installation) -> None:
    """Check that no table is missing in a database at a revision that this program can use.

    Raises:
        SchemaIncomplete: a table is missing, because a restore or another release of the same revision lacked it.
    """
    async with database.reading() as tx:
        if missing := await missing_tables(tx):
            revision = await revision_in(tx)
            found, noun = revision.number if revision else HEAD, "table" if len(missing) == 1 else "tables"
            raise SchemaIncomplete(url=database.url, tables=f"the {noun} {', '.join(missing)}", found=found)


def pending(revision: StoredRevision | None, url: str) -> tuple[str, ...]:
    """Return the revisions that a database still needs. For a later one that this program can use, log that once.

    Args:
        revision: revision of the database; None without task tables.
        url: URL of the database without a password, for messages.

    Raises:
        SchemaTooNew: this program does not know the revision and cannot use the tables.
    """
    if revision is None:
        return REVISIONS
    if revision.supports_older:
        _log_later(url, revision.number, HEAD)
        return ()
    if revision.number not in REVISIONS:
        raise SchemaTooNew(url=url, found=revision.number, needed=HEAD)
    return REVISIONS[REVISIONS.index(revision.number) + 1 :]


@lru_cache(maxsize=64)
def _log_later(url: str, number: str, head: str) -> None:
    """Log once per process and revision."""
    log.info("%s is at schema %s; this program (schema %s) can use it and continues", url, number, head)
