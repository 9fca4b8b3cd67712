"""Recording: a transaction that records the statements executed in it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql import visitors

from runner.db.dialects.shells import BoundStatement
from runner.db.statement import Prepared
from runner.db.transaction import Parameters, Transaction


class Executed(NamedTuple):
    """An executed statement.

    Args:
        statement: the statement.
        parameters: its parameters; a list if it was executed several times.
    """

    statement: Any
    parameters: Parameters | None

    @property
    def writes(self) -> bool:
        """True if the statement, or a part of it, changes data."""
        return any(isinstance(part, sa.UpdateBase) for part in visitors.iterate(self.statement))

    def complete(self) -> list[BoundStatement]:
        """Return the statement with its values, once per execution."""
        match self.parameters:
            case None:
                return [BoundStatement(self.statement, {})]
            case Mapping():
                return [BoundStatement(self.statement, self.parameters)]
        return [BoundStatement(self.statement.values(dict(row)), {}) for row in self.parameters]


class Recording(Transaction):
    """A transaction on the connection of another one that records its statements."""

    __slots__ = ("executed",)

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx.connection, tx.tables, tx.dialect)
        self.executed: list[Executed] = []

    async def execute(self, statement: sa.Executable, parameters: Parameters | None = None) -> sa.CursorResult[Any]:
        """Record and execute a statement."""
        self.executed.append(Executed(statement, parameters))
        return await super().execute(statement, parameters)

    async def rows(
        self, statement: sa.Executable, parameters: Parameters | None = None
    ) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        """Record and execute a statement, and return all its rows."""
        self.executed.append(Executed(statement, parameters))
        return await super().rows(statement, parameters)

    async def scalar(self, statement: sa.Executable, parameters: Mapping[str, Any] | None = None) -> Any:
        """Record and execute a statement, and return the first column of its first row, or None."""
        self.executed.append(Executed(statement, parameters))
        return await super().scalar(statement, parameters)

    async def run(self, prepared: Prepared, parameters: dict[str, Any]) -> list[Any]:
        """Record and execute a prepared statement, and return its rows as plain tuples."""
        self.executed.append(Executed(prepared.statement, parameters))
        return await super().run(prepared, parameters)
