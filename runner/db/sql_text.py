"""SQL text of recorded statements, for psql or sqlite3, which changes nothing unless a condition holds."""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import visitors

from runner.db.statement import Prepared
from runner.db.transaction import Parameters, Transaction

SEEN = "task_seen"
"""A temporary table of the shell's connection."""

BUSY = 10_000
"""Milliseconds that the shell waits for other writers; its default is 0."""

_HOLDS = f"EXISTS (SELECT 1 FROM {SEEN})"  # noqa: S608 - a constant name

DIALECTS: dict[str, Any] = {
    # With this parameter style no character needs to be doubled.
    "postgresql": postgresql.dialect(paramstyle="named"),  # type: ignore[no-untyped-call]
    "sqlite": sqlite.dialect(paramstyle="named"),
}

_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
"""A parameter in the text of a compiled statement; user input occurs only in the values."""


class BoundStatement(NamedTuple):
    """A statement and the values of its parameters."""

    statement: Any
    values: Mapping[str, Any]

    def text(self, dialect: str) -> str:
        """Return the statement with all its values as literals."""
        compiled, values = self._compiled(DIALECTS[dialect])
        literals = {name: _literal(compiled, name, value) for name, value in values.items()}
        text = _PARAMETER.sub(lambda match: literals.get(match[1], match[0]), compiled.string)
        return text.replace(" \n", "\n")

    def parameters(self, dialect: str) -> list[Any]:
        """Return all values."""
        return list(self._compiled(DIALECTS[dialect])[1].values())

    def _compiled(self, dialect: sa.Dialect) -> tuple[Any, dict[str, Any]]:
        statement = self.statement
        if isinstance(statement, sa.Insert):
            statement = statement.inline()  # no RETURNING
        compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        return compiled, {**compiled.params, **self.values}


def _literal(compiled: Any, name: str, value: Any) -> str:
    """Return a value as SQL literal, with a cast where the database could not infer its type."""
    if value is None:
        return "NULL"
    kind = compiled.binds[name].type if name in compiled.binds else sa.literal(value).type
    if isinstance(kind, sa.ARRAY):
        items = ["NULL" if item is None else _written(item, kind.item_type, compiled.dialect) for item in value]
        return f"CAST(ARRAY[{', '.join(items)}] AS {kind.item_type.compile(compiled.dialect)}[])"
    return _written(value, kind, compiled.dialect)


def _written(value: Any, kind: Any, dialect: sa.Dialect) -> str:
    return str(sa.literal(value, kind).compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def in_psql(guard: sa.Select[Any], statements: Sequence[BoundStatement], locks: sa.Table, why: str) -> list[str]:
    """Return a transaction for psql that fails as a whole if the guard finds no row.

    Args:
        guard: selects the expected row and locks it.
        locks: inserts into this table at the start only lock its rows. They precede the guard, which must see the
            changes of earlier lock owners.
        why: message if the guard finds no row.
    """
    first = len(list(takewhile(lambda bound: _inserts_into(bound.statement, locks), statements)))
    query = BoundStatement(guard.with_for_update(), {}).text("postgresql").replace("SELECT", "PERFORM", 1)
    tag = "$seen$"
    while tag in query:
        tag = f"{tag[:-1]}_$"
    message = _quoted(why, "postgresql")
    body = f"BEGIN {query}; IF NOT FOUND THEN RAISE EXCEPTION USING MESSAGE = {message}; END IF; END"
    ours = [bound.text("postgresql") for bound in statements]
    return ["BEGIN", *ours[:first], f"DO {tag} {body} {tag}", *ours[first:], "COMMIT"]


def _inserts_into(statement: Any, table: sa.Table) -> bool:
    return isinstance(statement, sa.Insert) and statement.table is table


def in_sqlite(guard: sa.Select[Any], statements: Sequence[BoundStatement], why: str) -> list[str]:
    """Return a transaction for sqlite3 whose statements do nothing if the guard finds no row.

    Args:
        why: message if the guard finds no row.
    """
    return [
        f"PRAGMA busy_timeout = {BUSY}",
        f"DROP TABLE IF EXISTS temp.{SEEN}",
        "BEGIN IMMEDIATE",
        f"CREATE TEMP TABLE {SEEN} AS {BoundStatement(guard, {}).text('sqlite')}",
        *(BoundStatement(_guarded(bound.statement), bound.values).text("sqlite") for bound in statements),
        f"SELECT CASE WHEN {_HOLDS} THEN 'done' ELSE {_quoted(why, 'sqlite')} END",
        "COMMIT",
        f"DROP TABLE temp.{SEEN}",
    ]


def _quoted(text: str, dialect: str) -> str:
    return _written(text, sa.Text(), DIALECTS[dialect])


def _guarded(statement: Any) -> Any:
    """Return the statement with the condition that the guard found a row."""
    holds = sa.text(_HOLDS)
    if not isinstance(statement, sa.Insert):
        return statement.where(holds)
    insert: Any = statement
    if insert.select is not None:
        # SQLAlchemy has no public access to the columns of INSERT ... SELECT.
        return insert.from_select(insert._select_names, insert.select.where(holds))  # noqa: SLF001
    values = insert._values  # noqa: SLF001 - nor to those of INSERT ... VALUES
    names = [getattr(column, "name", column) for column in values]
    columns = [_typed(value, insert.table.c[name]) for name, value in zip(names, values.values(), strict=True)]
    plain: Any = sa.insert(insert.table).from_select(names, sa.select(*columns).where(holds))
    plain._post_values_clause = insert._post_values_clause  # noqa: SLF001 - the ON CONFLICT clause
    return plain


def _typed(value: Any, column: sa.Column[Any]) -> Any:
    """Return a value with the type of its column, which the database cannot infer in a SELECT."""
    expression = sa.literal(value.value, column.type) if isinstance(value, sa.BindParameter) else value
    return expression.label(column.name)


class Executed(NamedTuple):
    """An executed statement.

    Args:
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
