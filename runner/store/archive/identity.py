"""database id: the random id that a database got with its tables."""

import sqlalchemy as sa

from runner.db.migrations.revisions import version_table
from runner.db.transaction import Transaction


async def database_id(tx: Transaction) -> str:
    """The id that the database got with its tables."""
    version = sa.table(
        version_table(tx.tables.prefix), sa.column("database_id", sa.Text), schema=tx.tables.metadata.schema
    )
    return str(await tx.scalar(sa.select(version.c.database_id)))
