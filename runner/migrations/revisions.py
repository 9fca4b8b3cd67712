"""Which revisions there are, which one a database is at, and whether this program can work with it."""

from pathlib import Path

import sqlalchemy as sa

from runner.errors import SchemaMissing, SchemaTooNew, SchemaTooOld
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
    """
    revision = await found(database)
    if pending(revision, database.url):
        if revision is None:
            raise SchemaMissing(url=database.url, needed=HEAD)
        raise SchemaTooOld(url=database.url, found=revision, needed=HEAD)
    return HEAD


async def found(database: Installation) -> str | None:
    """Find the revision that a database is at; None when it has no tables of ours."""
    async with database.reading() as tx:
        return await found_in(tx)


async def found_in(tx: Transaction) -> str | None:
    """Find, within a transaction, the revision that a database is at."""
    name, schema = version_table(tx.tables.prefix), tx.tables.metadata.schema
    there = await tx.connection.run_sync(lambda connection: sa.inspect(connection).has_table(name, schema=schema))
    if not there:
        return None
    version = sa.table(name, sa.column("version_num", sa.Text), schema=schema)
    revision: str | None = await tx.connection.scalar(sa.select(version.c.version_num))
    return revision


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
