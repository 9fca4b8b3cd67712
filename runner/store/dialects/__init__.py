"""What differs between the databases, and nothing else."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from runner.schema import Tables
from runner.store.dialects.postgresql import PostgreSQL
from runner.store.dialects.sqlite import SQLite

Same = Callable[[Any, Any], sa.ColumnElement[bool]]
"""Takes a table, or its alias, and a batch; returns the condition that one row of each means the same."""


class Dialect(Protocol):
    """What a database must be able to do for us; one object for each.

    `rows` and `parameters` belong together: a batch of rows travels to the database as parameters of one statement.
    """

    name: str
    isolates_rows: bool
    """True when rows are locked one by one; False when there is one writer at a time."""
    partitions: bool
    """True when the history stands in partitions; False when it is one table."""

    def rows(self, name: str, columns: dict[str, Any]) -> sa.FromClause:
        """A table expression that stands for a batch of rows, which `parameters` fills."""
        ...

    def parameters(self, name: str, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """The parameters that fill `rows(name, ...)`: every column's values, in the order of its columns."""
        ...

    def for_each(self, outer: sa.FromClause, inner: sa.Select[Any], row: sa.Table) -> tuple[sa.FromClause, Any]:
        """Join each row of `outer` with what `inner`, a limited selection of `row`'s ids, finds for it.

        Returns:
            The joined expression, and the columns of `row` within it.
        """
        ...

    def one_by_one(self, batch: sa.FromClause, table: sa.Table, same: Same) -> tuple[sa.FromClause, Any]:
        """Let an update, or a delete, find the row of a table that each row of a batch means.

        As a mere join, a planner that believes in a small table reads all of it for each batch.

        Returns:
            What stands for the batch in the statement, with its columns; and the condition that a row is meant.
        """
        ...

    def instant(self, value: Any) -> Any:
        """Turn a time into the form that `rows` can carry."""
        ...

    def announcing(self, insert: Any, tables: Tables) -> Any:
        """Let an insert that returns ids also wake the runners that listen, once."""
        ...

    def insert(self, table: sa.Table) -> Any:
        """An insert that knows what to do with a row that is there already (`on_conflict_do_update`)."""
        ...

    def one_of(self, column: sa.ColumnElement[Any], values: Sequence[int | str]) -> sa.ColumnElement[bool]:
        """The condition that a column has one of any number of values, all of which are one parameter."""
        ...

    def matches(self, column: sa.ColumnElement[str], pieces: Sequence[str]) -> sa.ColumnElement[bool]:
        """The condition that a text is these pieces with anything between them; upper and lower case differ."""
        ...

    def rights(self, tables: Tables) -> Mapping[str, sa.ColumnElement[bool]]:
        """What is asked by observe.rights, as conditions.

        Returns:
            `intervenes`: this login may change tasks, and write down that it did; `follows`: this is a standby;
            `closed`: the database is set to take no changes; `reads_audit`: this login may see what operators did.
        """
        ...

    def staleness(self) -> sa.ColumnElement[Any]:
        """Seconds since the newest change that a standby shows was made; NULL where there is no standby."""
        ...

    def vitals(self, tables: Tables) -> Mapping[str, sa.Executable]:
        """Statements that tell how the database is, by what they tell; see observe.health."""
        ...

    async def fetch(self, connection: Any, sql: str, arguments: Any) -> list[Any]:
        """Execute a statement on the driver's own connection, and fetch all its rows as tuples."""
        ...

    def along_indexes(self) -> sa.Executable | None:
        """What to execute before a walk along an index, so that the planner keeps to it; None for nothing."""
        ...

    def legible(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """A time in a form that can always be fetched, whatever a foreign client wrote: see observe.legible."""
        ...


def same_id(table: Any, batch: Any) -> sa.ColumnElement[bool]:
    """The condition that a row of a batch means a task by its id."""
    same: sa.ColumnElement[bool] = table.c.id == batch.c.id
    return same


def by_column(names: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    """Turn rows, each with one value per name, into the values of each name."""
    columns = tuple(zip(*rows, strict=True))
    return dict(zip(names, columns, strict=True)) if columns else dict.fromkeys(names, ())


DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (SQLite(), PostgreSQL())}

__all__ = ["DIALECTS", "Dialect", "by_column", "same_id"]
