"""Transaction: what every verb of the store takes first."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.schema import Tables
from runner.store.dialects import Dialect
from runner.store.statement import Prepared, compiled_for
from runner.store.steps import Step, Steps, follow_async

T = TypeVar("T")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Transaction:
    """An open transaction on one connection, and what is needed to write statements for it.

    Args:
        connection: with its transaction begun; whoever opened it ends it.
        tables: of the installation that the statements are for.
        dialect: the differences of this database.
        driver: the driver's own connection, if it is known already.
    """

    __slots__ = ("_driver", "connection", "dialect", "tables")

    def __init__(self, connection: AsyncConnection, tables: Tables, dialect: Dialect, driver: Any = None) -> None:
        self.connection = connection
        self.tables = tables
        self.dialect = dialect
        self._driver = driver

    @property
    def driver(self) -> sa.Dialect:
        """What statements are compiled for."""
        return compiled_for(self.connection.dialect)

    async def execute(self, statement: sa.Executable, parameters: Parameters | None = None) -> sa.CursorResult[Any]:
        """Execute a statement; its rows, if any, are read already."""
        return await self.connection.execute(statement, parameters)

    async def rows(
        self, statement: sa.Executable, parameters: Parameters | None = None
    ) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        """Execute a statement and return all its rows."""
        return (await self.connection.execute(statement, parameters)).all()

    async def scalar(self, statement: sa.Executable, parameters: Mapping[str, Any] | None = None) -> Any:
        """Execute a statement and return the first column of its first row, or None."""
        return await self.connection.scalar(statement, parameters)

    async def run(self, prepared: Prepared, parameters: dict[str, Any]) -> list[Any]:
        """Execute a prepared statement on the driver's connection and return its rows as plain tuples."""
        if self._driver is None:
            raw = await self.connection.get_raw_connection()
            self._driver = raw.driver_connection
        return await self.dialect.fetch(self._driver, prepared.sql, prepared.arguments(parameters))

    async def follow(self, steps: Steps[T]) -> T:
        """Execute the statements of a verb, one after the other, and return what it returns."""
        return await follow_async(steps, self._execute_step)

    async def _execute_step(self, step: Step) -> list[Any]:
        return await self.run(step.prepared, step.parameters)
