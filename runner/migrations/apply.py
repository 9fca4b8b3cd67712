"""Apply revisions to a database: all that are pending, in one transaction, one program at a time."""

from collections.abc import Sequence

import sqlalchemy as sa

from runner.migrations.installation import Installation, Transaction
from runner.migrations.revisions import check, found, found_in, pending

LOCK = 0x7461736B747569
"""The key of the advisory lock that migrations of all installations in a PostgreSQL database wait for ("tasktui")."""


async def upgrade(database: Installation) -> list[str]:
    """Create the tables of a database, or bring them up to date.

    Any number of programs may do this at once: one does the work and the others wait for it.

    Args:
        database: to migrate; a PostgreSQL schema is created when it is missing.

    Returns:
        The revisions that were applied, in order; none when it was up to date.

    Raises:
        SchemaTooNew: when a later release made the tables; nothing was changed.
        StoreError: when the database refuses, or cannot be reached; nothing was changed.
    """

    async def verb(tx: Transaction) -> list[str]:
        await _take_turn(tx)
        revisions = pending(await found_in(tx), database.url)
        if revisions:
            await _make_schema(tx)
            await tx.connection.run_sync(_apply, tx.tables.prefix, tx.tables.metadata.schema, revisions)
        return list(revisions)

    return await database.write(verb)


async def ensure(database: Installation) -> list[str]:
    """Do what a program does when it starts: migrate a SQLite file, which is its own, but never a server.

    On a database that is up to date this costs two small queries.

    Args:
        database: that the program is going to use.

    Returns:
        The revisions that were applied, in order.

    Raises:
        SchemaMissing: on PostgreSQL, when there are no tables of ours.
        SchemaTooOld: on PostgreSQL, when the tables have to be migrated first.
        SchemaTooNew: when a later release made the tables.
    """
    if database.engine.dialect.name == "sqlite":
        return await upgrade(database) if pending(await found(database), database.url) else []
    await check(database)
    return []


async def _take_turn(tx: Transaction) -> None:
    """Wait until no other program migrates; on SQLite the transaction has begun by waiting for that."""
    if tx.connection.dialect.name == "postgresql":
        await tx.connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))


async def _make_schema(tx: Transaction) -> None:
    schema = tx.tables.metadata.schema
    # IF NOT EXISTS would ask for the right to create schemas even where the schema exists.
    if schema and not await tx.connection.run_sync(lambda connection: sa.inspect(connection).has_schema(schema)):
        await tx.connection.execute(sa.schema.CreateSchema(schema))


def _apply(connection: sa.Connection, prefix: str, schema: str | None, revisions: Sequence[str]) -> None:
    from runner.migrations.context import context_for
    from runner.migrations.operations import Operations

    context = context_for(revisions, prefix, schema, connection=connection)
    context.run_migrations(op=Operations(context, prefix, schema))
