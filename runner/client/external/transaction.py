"""The tables and dialects for statements on an external connection."""

from collections.abc import Callable
from typing import NamedTuple, Self, TypeAlias, TypeVar

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.schema import Tables, tables
from runner.db.statement import Steps
from runner.settings import Settings

T = TypeVar("T")

StepsBuilder: TypeAlias = Callable[[sa.Dialect], Steps[T]]
"""Returns the steps of a store verb, compiled for a dialect."""


class ExternalTransaction(NamedTuple):
    """The context of a verb on an external connection.

    Args:
        tables: tables of the installation.
        dialect: our dialect of the connection's database.
        driver: SQLAlchemy dialect that compiles the statements.
    """

    tables: Tables
    dialect: Dialect
    driver: sa.Dialect

    @classmethod
    def of(cls, settings: Settings, driver: sa.Dialect) -> Self:
        """Take prefix and schema from the settings and the database from the driver."""
        dialect = DIALECTS[driver.name]
        schema = settings.table_schema if dialect.isolates_rows else None
        return cls(tables(settings.table_prefix, schema), dialect, driver)
