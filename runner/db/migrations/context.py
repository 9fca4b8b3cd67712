"""Alembic's context for the revisions of an installation, with its prefix and schema.

Importing this module loads Alembic, which takes a third of a second.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import operations
from alembic.runtime.migration import MigrationContext, MigrationStep, RevisionStep
from alembic.script import ScriptDirectory

from runner.db.migrations.revisions import FOLDER, version_table

NAMING = {
    "ck": "%(table_name)s_%(constraint_name)s",
    "pk": "%(table_name)s_pkey",
}
"""Constraint names for short or missing names in a revision. Do not change them: existing databases use them."""


def context_for(
    revisions: Sequence[str],
    prefix: str,
    schema: str | None,
    *,
    connection: sa.Connection | None = None,
    dialect: sa.Dialect | None = None,
    **options: Any,
) -> MigrationContext:
    """Prepare Alembic to apply revisions.

    Args:
        revisions: revisions in order.
        prefix: prefix of every table name.
        schema: PostgreSQL schema of the tables; None for the search path.
        connection: connection in a transaction that the caller ends; None to write SQL text.
        dialect: dialect of the SQL text.
        options: further options of Alembic's MigrationContext.
    """
    opts = {
        "fn": lambda _heads, _context: steps(revisions),
        "version_table": version_table(prefix),
        "version_table_schema": schema,
        "target_metadata": sa.MetaData(naming_convention=NAMING),
        "transactional_ddl": True,  # on SQLite too, because our transactions start with BEGIN IMMEDIATE
    }
    return MigrationContext.configure(connection, dialect=dialect, opts=opts | options)


def steps(revisions: Sequence[str]) -> list[RevisionStep]:
    """Return Alembic's steps for revisions, in the given order."""
    script = ScriptDirectory(FOLDER)
    scripts = [script.get_revision(number) for number in revisions]
    return [MigrationStep.upgrade_from_script(script.revision_map, revision) for revision in scripts]


def last_incompatible(revisions: Sequence[str]) -> str | None:
    """Return the last of some revisions that is not additive; None if all are.

    Programs that know only earlier revisions go on with an additive one: it adds tables, indexes, and columns that are
    nullable or have a default. Each revision declares this as `additive`.
    """
    script = ScriptDirectory(FOLDER)
    return next((number for number in reversed(revisions) if not script.get_revision(number).module.additive), None)


class Operations:
    """The argument of a revision's `upgrade`.

    Args:
        context: Alembic's context.
        prefix: prefix of every table name.
        schema: PostgreSQL schema of the tables; None for the search path.
    """

    def __init__(self, context: MigrationContext, prefix: str, schema: str | None) -> None:
        self.plain = operations.Operations(context)
        """Alembic's own operations, for all others; pass them `name(...)` and `schema`."""
        self.prefix = prefix
        self.schema = schema

    def name(self, table: str) -> str:
        """Return the name of a table with its prefix."""
        return f"{self.prefix}{table}"

    def full_name(self, table: str) -> str:
        """Return the name of a table with prefix and schema, as a statement needs it."""
        return str(self._dialect.identifier_preparer.format_table(sa.table(self.name(table), schema=self.schema)))

    def execute_on(self, database: str, statement: str) -> None:
        """Execute a statement on one kind of database only.

        Args:
            database: "postgresql" or "sqlite".
            statement: SQL with names from `full_name`.
        """
        if self._dialect.name == database:
            self.plain.execute(statement)

    @property
    def _dialect(self) -> sa.Dialect:
        return self.plain.get_context().dialect

    def create_table(self, table: str, *items: sa.schema.SchemaItem, **options: Any) -> None:
        """Create a table.

        Args:
            table: name without the prefix, e.g. "task_queue".
            items: columns and constraints; the name of a check omits the table.
            options: options of sqlalchemy.Table.
        """
        self.plain.create_table(self.name(table), *items, schema=self.schema, **options)

    def set_storage(self, table: str, parameters: Mapping[str, float]) -> None:
        """Set storage parameters of PostgreSQL on a table.

        SQLAlchemy 2.0 cannot give them to CREATE TABLE.

        Args:
            table: name without the prefix, e.g. "task".
            parameters: value by name, e.g. 70 for "fillfactor".
        """
        values = ", ".join(f"{name}={value}" for name, value in parameters.items())
        self.execute_on("postgresql", f"ALTER TABLE {self.full_name(table)} SET ({values})")

    def create_index(
        self, table: str, name: str, *columns: str, where: str | None = None, unique: bool = False
    ) -> None:
        """Create an index.

        Args:
            table: name without the prefix, e.g. "task".
            name: name without the table, e.g. "ready" for "task_ready".
            columns: columns in order.
            where: condition of a partial index; None for all rows.
            unique: True for an index that refuses equal values.
        """
        condition = None if where is None else sa.text(where)
        self.plain.create_index(
            f"{self.name(table)}_{name}",
            self.name(table),
            columns,
            schema=self.schema,
            unique=unique,
            postgresql_where=condition,
            sqlite_where=condition,
        )
