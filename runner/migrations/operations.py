"""Operations: what a revision may do, with the prefix and the schema of the installation put in."""

from typing import Any

import sqlalchemy as sa
from alembic import operations
from alembic.runtime.migration import MigrationContext


class Operations:
    """The argument of a revision's `upgrade`.

    Args:
        context: that the revision is applied in.
        prefix: goes before every table's name.
        schema: the PostgreSQL schema of the tables; None stands for the search path.
    """

    def __init__(self, context: MigrationContext, prefix: str, schema: str | None) -> None:
        self.plain = operations.Operations(context)
        """Alembic's own, for what is missing here; give it `name(...)` and `schema`."""
        self.prefix = prefix
        self.schema = schema

    def name(self, table: str) -> str:
        """The full name of a table."""
        return f"{self.prefix}{table}"

    def full_name(self, table: str) -> str:
        """The full name of a table as it is written in a statement, with its schema."""
        return str(self._dialect.identifier_preparer.format_table(sa.table(self.name(table), schema=self.schema)))

    def execute_on(self, database: str, statement: str) -> None:
        """Execute a statement on one kind of database only.

        Args:
            database: "postgresql" or "sqlite".
            statement: with names from `full_name`.
        """
        if self._dialect.name == database:
            self.plain.execute(statement)

    @property
    def _dialect(self) -> sa.Dialect:
        return self.plain.get_context().dialect

    def create_table(self, table: str, *items: sa.schema.SchemaItem, **options: Any) -> None:
        """Create a table, named without its prefix.

        Args:
            table: e.g. "task_queue".
            items: columns and constraints; a check is named without its table.
            options: of sqlalchemy.Table.
        """
        self.plain.create_table(self.name(table), *items, schema=self.schema, **options)

    def create_index(self, table: str, name: str, *columns: str, where: str | None = None) -> None:
        """Create an index, named without its table.

        Args:
            table: e.g. "task".
            name: e.g. "ready", which becomes "task_ready".
            columns: in order.
            where: the condition of the rows that it holds; None for all.
        """
        condition = None if where is None else sa.text(where)
        self.plain.create_index(
            f"{self.name(table)}_{name}",
            self.name(table),
            columns,
            schema=self.schema,
            postgresql_where=condition,
            sqlite_where=condition,
        )
