"""Applying revisions: all pending ones in one transaction, in one process at a time."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from runner.db.connect import requires_packages
from runner.db.migrations.revisions import (
    REVISIONS,
    Installation,
    MigrationTransaction,
    StoredRevision,
    current_revision,
    missing_tables,
    pending,
    require,
    revision_in,
    version_table,
)
from runner.db.schema.partitions import full_name
from runner.errors import PackageMissing
from runner.urls import DatabaseUrl, sync_url

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationContext

LOCK = 0x7461736B747569
"""Key of the advisory lock for migrations in a PostgreSQL database ("tasktui")."""

TRIES = 500
"""Tries of an attempt to lock all tables at a moment at which no other transaction uses one. This takes about 5 s."""

TABLE_LOCK = """
SET LOCAL lock_timeout = '2s';
DO $$ BEGIN
    FOR try IN 1..{tries} LOOP
        BEGIN
            LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE NOWAIT;
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(0.02 * random());
        END;
    END LOOP;
END $$;
LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE
"""
"""A lock that waits stops every later statement, and is a deadlock with programs that have locked another of the
tables. So it waits only if there is no such moment, long enough for the server to end an autovacuum."""


async def upgrade(database: Installation) -> list[str]:
    """Create the tables of a database, or bring them up to date.

    Several processes may call this concurrently: one migrates and the others wait for it.

    Args:
        database: the database; a missing PostgreSQL schema is created.

    Returns:
        The revisions applied, in order; [] if the database was up to date.

    Raises:
        SchemaTooNew: a later release created the tables, and this program cannot use them; nothing was changed.
        LockNotReleased: another transaction uses a table; nothing was changed.
        StoreError: the database cannot be reached or rejected a statement; nothing was changed.
    """

    async def verb(tx: MigrationTransaction) -> list[str]:
        await _take_turn(tx)
        revision = await revision_in(tx)
        revisions = pending(revision, database.url)
        if revision is not None and revisions and tx.connection.dialect.name == "postgresql":
            await _lock_tables(tx, revisions, revision.number)
        if revisions:
            await _make_schema(tx)
            await tx.connection.run_sync(_apply, tx.tables.prefix, tx.tables.metadata.schema, revisions)
        return list(revisions)

    with explaining_packages():
        return await database.write(verb)


@contextmanager
def explaining_packages() -> Iterator[None]:
    """Name the creation of the tables in the error of a package that only submits do not need."""
    try:
        yield
    except PackageMissing as error:
        fields = {**error.fields, "use": "creating the task tables", "instead": ", or run `runner migrate` elsewhere"}
        raise PackageMissing(**fields) from None


async def ensure(database: Installation) -> list[str]:
    """Prepare a database at program start: migrate a SQLite file, and only check a PostgreSQL database.

    On a database that is up to date this takes two small queries.

    Args:
        database: the database that the program uses.

    Returns:
        The revisions applied, in order.

    Raises:
        SchemaMissing: the PostgreSQL database has no task tables.
        SchemaTooOld: the PostgreSQL database needs a migration.
        SchemaTooNew: a later release created the tables, and this program cannot use them.
    """
    return await accept(database, await current_revision(database))


async def accept(database: Installation, revision: StoredRevision | None) -> list[str]:
    """Same as `ensure`, for a revision that was read.

    Args:
        database: the database that the program uses.
        revision: its revision; None without task tables.
    """
    if not database.dialect.is_server:
        return await upgrade(database) if pending(revision, database.url) else []
    require(revision, database.url)
    return []


async def _take_turn(tx: MigrationTransaction) -> None:
    """Wait until no other process migrates. On SQLite, the transaction's begin has already waited."""
    if tx.connection.dialect.name == "postgresql":
        await tx.connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))


async def _lock_tables(tx: MigrationTransaction, revisions: Sequence[str], start: str) -> None:
    """Lock the tables that the revisions name, together: a program that uses two of them in between is a deadlock."""
    prefix, schema, missing = tx.tables.prefix, tx.tables.metadata.schema, await missing_tables(tx)
    text = "\n".join(statements("postgresql", revisions, prefix, schema, start=start))
    tables = [table for table in tx.tables.metadata.sorted_tables if table.fullname not in missing]
    if names := [full_name(table) for table in tables if re.search(rf"\b{re.escape(table.name)}\b", text)]:
        lock = TABLE_LOCK.format(tables=", ".join(names), tries=TRIES)
        await tx.connection.run_sync(lambda connection: connection.exec_driver_sql(lock))


async def _make_schema(tx: MigrationTransaction) -> None:
    schema = tx.tables.metadata.schema
    # IF NOT EXISTS would require the right to create schemas even if the schema exists.
    if schema and not await tx.connection.run_sync(lambda connection: sa.inspect(connection).has_schema(schema)):
        await tx.connection.execute(sa.schema.CreateSchema(schema))


def _apply(connection: sa.Connection, prefix: str, schema: str | None, revisions: Sequence[str]) -> None:
    with requires_packages():
        from runner.db.migrations.context import context_for

    _run(context_for(revisions, prefix, schema, connection=connection), revisions, prefix, schema)


def _run(context: "MigrationContext", revisions: Sequence[str], prefix: str, schema: str | None) -> None:
    """Run revisions; store the last one that is not additive, and an id of the database if it has none."""
    from runner.db.migrations.context import Operations, last_incompatible

    context.run_migrations(op=Operations(context, prefix, schema))
    if since := last_incompatible(revisions):
        columns = (sa.column("compatible_since", sa.Text), sa.column("database_id", sa.Text))
        version = sa.table(version_table(prefix), *columns, schema=schema)
        random_id = "lower(hex(randomblob(16)))" if context.dialect.name == "sqlite" else "gen_random_uuid()::text"
        new_id = sa.func.coalesce(version.c.database_id, sa.literal_column(random_id))
        values = {"compatible_since": sa.literal_column(f"'{since}'"), "database_id": new_id}
        context.execute(sa.update(version).values(values))


class _StatementList(list[str]):
    """An output of Alembic that keeps the statements apart."""

    def write(self, text: str) -> None:
        """Add one statement."""
        statement = text.strip().rstrip(";")
        if statement and not statement.startswith("--"):
            self.append(statement)

    def flush(self) -> None:
        """Do nothing; Alembic requires it."""


def statements(
    kind: str, revisions: Sequence[str], prefix: str = "", schema: str | None = None, *, start: str | None = None
) -> list[str]:
    """Return the statements of revisions, for a client with a connection of its own, such as Django's.

    Args:
        kind: "postgresql" or "sqlite".
        revisions: the revisions to apply, in order.
        prefix: prefix of every table name.
        schema: PostgreSQL schema of the tables; None for the search path.
        start: revision of the database; None for an empty one.

    Returns:
        Statements without parameters, for one transaction; the last ones store the revision.
    """
    from runner.db.migrations.context import context_for

    script, dialect = _StatementList(), sync_url(f"{kind}:///x.db").get_dialect()()
    options: dict[str, Any] = {"as_sql": True, "output_buffer": script, "starting_rev": start}
    target_schema = schema if kind == "postgresql" else None
    context = context_for(revisions, prefix, target_schema, dialect=dialect, **options)
    if target_schema and start is None:
        context.execute(sa.schema.CreateSchema(target_schema, if_not_exists=True))
    _run(context, revisions, prefix, target_schema)
    return script


def sql(url: str | DatabaseUrl, prefix: str = "", schema: str | None = None) -> str:
    """Write the statements that create the tables in an empty database.

    Args:
        url: names the kind of database; no connection is made.
        prefix: prefix of every table name.
        schema: PostgreSQL schema of the tables; None for the search path.

    Returns:
        A script for psql or sqlite3: one transaction, which also stores the revision.

    Raises:
        InvalidUrl: the URL names an unsupported database.
    """
    from runner.db.migrations.context import context_for

    script, dialect = StringIO(), sync_url(url).get_dialect()()
    target_schema = schema if dialect.name == "postgresql" else None
    context = context_for(REVISIONS, prefix, target_schema, dialect=dialect, as_sql=True, output_buffer=script)
    with context.begin_transaction():
        if target_schema:
            context.execute(sa.schema.CreateSchema(target_schema, if_not_exists=True))
        _run(context, REVISIONS, prefix, target_schema)
    return script.getvalue()
