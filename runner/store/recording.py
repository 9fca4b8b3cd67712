"""Recording: a transaction that notes what is executed in it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql import visitors

from runner.store.dialects.shells import Whole
from runner.store.statement import Prepared
from runner.store.transaction import Parameters, Transaction


class Executed(NamedTuple):
    """A statement, as it was executed.

    Args:
        statement: the statement.
        parameters: of it; several for a statement that was executed once for each.
    """

    statement: Any
    parameters: Parameters | None

    @property
    def writes(self) -> bool:
        """Whether it changes anything: by itself, or within one of its parts."""
        return any(isinstance(part, sa.UpdateBase) for part in visitors.iterate(self.statement))

    def complete(self) -> list[Whole]:
        """The statement with its values: one for each time that it was executed."""
        match self.parameters:
            case None:
                return [Whole(self.statement, {})]
            case Mapping():
                return [Whole(self.statement, self.parameters)]
        return [Whole(self.statement.values(dict(row)), {}) for row in self.parameters]


class Recording(Transaction):
    """A transaction on the connection of another one, which notes what is executed through it."""

    __slots__ = ("executed",)

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx.connection, tx.tables, tx.dialect)
        self.executed: list[Executed] = []

    async def execute(self, statement: sa.Executable, parameters: Parameters | None = None) -> sa.CursorResult[Any]:
        """Note a statement, and execute it."""
        self.executed.append(Executed(statement, parameters))
        return await super().execute(statement, parameters)

    async def rows(
        self, statement: sa.Executable, parameters: Parameters | None = None
    ) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        """Note a statement, execute it, and return all its rows."""
        self.executed.append(Executed(statement, parameters))
        return await super().rows(statement, parameters)

    async def scalar(self, statement: sa.Executable, parameters: Mapping[str, Any] | None = None) -> Any:
        """Note a statement, execute it, and return the first column of its first row, or None."""
        self.executed.append(Executed(statement, parameters))
        return await super().scalar(statement, parameters)

    async def run(self, prepared: Prepared, parameters: dict[str, Any]) -> list[Any]:
        """Note a prepared statement, execute it, and return its rows as plain tuples."""
        self.executed.append(Executed(prepared.statement, parameters))
        return await super().run(prepared, parameters)
