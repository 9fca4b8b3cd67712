"""Borrowing: what writing statements takes when the connection is somebody else's."""

from collections.abc import Callable
from typing import NamedTuple, Self, TypeAlias, TypeVar

import sqlalchemy as sa

from runner.schema import Tables, tables
from runner.settings import Settings
from runner.store.dialects import DIALECTS, Dialect
from runner.store.steps import Steps

T = TypeVar("T")

Verb: TypeAlias = Callable[[sa.Dialect], Steps[T]]
"""Given what statements are to be compiled for, the steps."""


class Borrowing(NamedTuple):
    """The frame of a verb that a borrowed connection follows.

    Args:
        tables: of the installation.
        dialect: the differences of the connection's database.
        driver: what statements are compiled for.
    """

    tables: Tables
    dialect: Dialect
    driver: sa.Dialect

    @classmethod
    def of(cls, settings: Settings, driver: sa.Dialect) -> Self:
        """Take the tables' prefix and schema from the settings, and the database from the connection."""
        dialect = DIALECTS[driver.name]
        schema = settings.table_schema if dialect.isolates_rows else None
        return cls(tables(settings.table_prefix, schema), dialect, driver)
