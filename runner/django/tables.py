"""Tables: `manage.py migrate` creates and upgrades them, through Django's connection."""

from contextlib import suppress
from typing import Any

from django.db import DatabaseError, connections, transaction

from runner.db.migrations.apply import LOCK, statements
from runner.db.migrations.installation import version_table
from runner.db.migrations.revisions import StoredRevision, pending
from runner.db.schema import Tables, tables
from runner.settings import Settings, load


def migrate_tables(using: str, verbosity: int) -> None:
    """Create or upgrade the tables.

    Args:
        using: alias of the database.
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
    """Delete all rows.

    Args:
        using: alias of the database.
    """
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
