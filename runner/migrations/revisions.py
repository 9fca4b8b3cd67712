"""Which revisions there are, which one a database is at, and whether this program can work with it."""

from pathlib import Path

import sqlalchemy as sa

from runner.errors import SchemaMissing, SchemaTooNew, SchemaTooOld, SchemaUnmarked
from runner.migrations.installation import Installation, Transaction, version_table

FOLDER = Path(__file__).parent

# Read from the names of the files, so that a new revision is a new file and nothing else.
REVISIONS = tuple(sorted(file.name.partition("_")[0] for file in (FOLDER / "versions").glob("[0-9]*_*.py")))
"""The numbers of all revisions, in the order in which they are applied."""

HEAD = REVISIONS[-1]
"""The revision that this program needs."""


async def check(database: Installation) -> str:
    """Make sure that this program can work with a database; nothing is changed.

    Args:
        database: to look into.

    Returns:
        The revision that it is at, which is HEAD.

    Raises:
        SchemaMissing: when it has no tables of ours.
        SchemaTooOld: when it has to be migrated first.
        SchemaTooNew: when a later release made it.
        SchemaUnmarked: when it has tables of ours, and nothing says which.
    """
    async with database.reading() as tx:
        return await check_in(tx, database.url)


async def check_in(tx: Transaction, url: str) -> str:
    """The same, within a transaction that is open already.

    Args:
        tx: of the database.
        url: of the database, without a password.
    """
    revision = await found_in(tx)
    if pending(revision, url):
        if revision is None:
            raise SchemaMissing(url=url, needed=HEAD)
        raise SchemaTooOld(url=url, found=revision, needed=HEAD)
    return HEAD


async def found(database: Installation) -> str | None:
    """Find the revision that a database is at; None when it has no tables of ours."""
    async with database.reading() as tx:
        return await found_in(tx)


async def found_in(tx: Transaction) -> str | None:
    """Find, within a transaction, the revision that a database is at.

    Raises:
        SchemaUnmarked: when it has tables of ours, and nothing says which.
    """
    name, schema = version_table(tx.tables.prefix), tx.tables.metadata.schema
    revision: str | None = None
    if await _has_table(tx, name):
        version = sa.table(name, sa.column("version_num", sa.Text), schema=schema)
        revision = await tx.connection.scalar(sa.select(version.c.version_num))
    if revision is None and await _has_table(tx, tx.tables.task.name):
        raise SchemaUnmarked(table=tx.tables.task.fullname, version=name)
    return revision


async def _has_table(tx: Transaction, name: str) -> bool:
    schema = tx.tables.metadata.schema
    return await tx.connection.run_sync(lambda connection: sa.inspect(connection).has_table(name, schema=schema))


def pending(revision: str | None, url: str) -> tuple[str, ...]:
    """The revisions that a database still needs.

    Args:
        revision: that it is at; None when it has no tables of ours.
        url: of the database, without a password.

    Raises:
        SchemaTooNew: when this program does not know the revision.
    """
    if revision is None:
        return REVISIONS
    if revision not in REVISIONS:
        raise SchemaTooNew(url=url, found=revision, needed=HEAD)
    return REVISIONS[REVISIONS.index(revision) + 1 :]
