"""Revisions: the known ones, the one of a database, and the check that this program can use it."""

from pathlib import Path

import sqlalchemy as sa

from runner.db.migrations.installation import Installation, MigrationTransaction, version_table
from runner.errors import SchemaMissing, SchemaTooNew, SchemaTooOld, SchemaVersionMissing

FOLDER = Path(__file__).parent

# Read from the file names, so that adding a revision takes one file.
REVISIONS = tuple(sorted(file.name.partition("_")[0] for file in (FOLDER / "versions").glob("[0-9]*_*.py")))
"""All revisions in the order of their application."""

HEAD = REVISIONS[-1]
"""Revision that this program needs."""


async def check(database: Installation) -> str:
    """Check that this program can use a database, without changing it.

    Args:
        database: the database.

    Returns:
        Its revision, which is HEAD.

    Raises:
        SchemaMissing: the database has no task tables.
        SchemaTooOld: the database needs a migration.
        SchemaTooNew: a later release created the tables.
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
    revision = await revision_in(tx)
    if pending(revision, url):
        if revision is None:
            raise SchemaMissing(url=url, needed=HEAD)
        raise SchemaTooOld(url=url, found=revision, needed=HEAD)
    return HEAD


async def current_revision(database: Installation) -> str | None:
    """Return the revision of a database; None without task tables."""
    async with database.reading() as tx:
        return await revision_in(tx)


async def revision_in(tx: MigrationTransaction) -> str | None:
    """Return the revision of a database, within a transaction; None without task tables.

    Raises:
        SchemaVersionMissing: the database has a task table but no revision.
    """
    name, schema = version_table(tx.tables.prefix), tx.tables.metadata.schema
    revision: str | None = None
    if await _has_table(tx, name):
        version = sa.table(name, sa.column("version_num", sa.Text), schema=schema)
        revision = await tx.connection.scalar(sa.select(version.c.version_num))
    if revision is None and await _has_table(tx, tx.tables.task.name):
        raise SchemaVersionMissing(table=tx.tables.task.fullname, version=name)
    return revision


async def _has_table(tx: MigrationTransaction, name: str) -> bool:
    schema = tx.tables.metadata.schema
    return await tx.connection.run_sync(lambda connection: sa.inspect(connection).has_table(name, schema=schema))


def pending(revision: str | None, url: str) -> tuple[str, ...]:
    """Return the revisions that a database still needs.

    Args:
        revision: revision of the database; None without task tables.
        url: URL of the database without a password, for messages.

    Raises:
        SchemaTooNew: this program does not know the revision.
    """
    if revision is None:
        return REVISIONS
    if revision not in REVISIONS:
        raise SchemaTooNew(url=url, found=revision, needed=HEAD)
    return REVISIONS[REVISIONS.index(revision) + 1 :]
