"""Operations: the statements of a revision, with the prefix and schema of the installation."""

from typing import Any

import sqlalchemy as sa
from alembic import operations
from alembic.runtime.migration import MigrationContext


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
