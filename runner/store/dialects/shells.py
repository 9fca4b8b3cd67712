"""shells: statements as people paste them into psql and sqlite3, where nothing happens unless a condition holds.

psql ends a transaction in which anything has failed; sqlite3 goes on with the next statement. So the one is told to
fail, and in the other each statement asks by itself.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

SEEN = "task_seen"
"""A table that only the shell's own connection has."""

BUSY = 10_000
"""Milliseconds for which the shell waits for another one's write; it would not wait by itself."""

_HOLDS = f"EXISTS (SELECT 1 FROM {SEEN})"  # noqa: S608 - a name of ours

DIALECTS: dict[str, Any] = {
    # Parameters of a form that no sign in a text has to be doubled for.
    "postgresql": postgresql.dialect(paramstyle="named"),  # type: ignore[no-untyped-call]
    "sqlite": sqlite.dialect(paramstyle="named"),
}

_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
"""In the text of a statement, which is ours: whatever people wrote is in the values."""


class Whole(NamedTuple):
    """A statement, and the values of its parameters."""

    statement: Any
    values: Mapping[str, Any]

    def text(self, dialect: str) -> str:
        """The statement with all its values in it.

        Args:
            dialect: the name of one.
        """
        compiled, given = self._compiled(DIALECTS[dialect])
        literals = {name: _literal(compiled, name, value) for name, value in given.items()}
        text = _PARAMETER.sub(lambda found: literals.get(found[1], found[0]), compiled.string)
        return text.replace(" \n", "\n")

    def given(self, dialect: str) -> list[Any]:
        """All its values."""
        return list(self._compiled(DIALECTS[dialect])[1].values())

    def _compiled(self, dialect: sa.Dialect) -> tuple[Any, dict[str, Any]]:
        statement = self.statement
        if isinstance(statement, sa.Insert):
            statement = statement.inline()  # what the database made of it is not asked for
        compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        return compiled, {**compiled.params, **self.values}


def _literal(compiled: Any, name: str, value: Any) -> str:
    """A value as a statement says it, with its type where the database could not tell."""
    if value is None:
        return "NULL"
    kind = compiled.binds[name].type if name in compiled.binds else sa.literal(value).type
    if isinstance(kind, sa.ARRAY):
        items = ["NULL" if item is None else _written(item, kind.item_type, compiled.dialect) for item in value]
        return f"CAST(ARRAY[{', '.join(items)}] AS {kind.item_type.compile(compiled.dialect)}[])"
    return _written(value, kind, compiled.dialect)


def _written(value: Any, kind: Any, dialect: sa.Dialect) -> str:
    return str(sa.literal(value, kind).compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def in_psql(guard: sa.Select[Any], statements: Sequence[Whole], locks: sa.Table, why: str) -> list[str]:
    """A transaction for psql that fails as a whole when the guard finds nothing.

    Args:
        guard: selects what must still be as it was; it is locked.
        statements: in order.
        locks: what is inserted into this table before all else only locks its rows, and comes before the guard: that
            must see what somebody did who held them.
        why: is said when it has changed.
    """
    first = len(list(takewhile(lambda whole: _inserts_into(whole.statement, locks), statements)))
    found = Whole(guard.with_for_update(), {}).text("postgresql").replace("SELECT", "PERFORM", 1)
    tag = "$seen$"
    while tag in found:
        tag = f"{tag[:-1]}_$"
    message = _quoted(why, "postgresql")
    body = f"BEGIN {found}; IF NOT FOUND THEN RAISE EXCEPTION USING MESSAGE = {message}; END IF; END"
    ours = [whole.text("postgresql") for whole in statements]
    return ["BEGIN", *ours[:first], f"DO {tag} {body} {tag}", *ours[first:], "COMMIT"]


def _inserts_into(statement: Any, table: sa.Table) -> bool:
    return isinstance(statement, sa.Insert) and statement.table is table


def in_sqlite(guard: sa.Select[Any], statements: Sequence[Whole], why: str) -> list[str]:
    """A transaction for sqlite3 whose statements do nothing when the guard finds nothing.

    Args:
        guard: selects what must still be as it was.
        statements: in order.
        why: is said when it has changed.
    """
    return [
        f"PRAGMA busy_timeout = {BUSY}",
        f"DROP TABLE IF EXISTS temp.{SEEN}",
        "BEGIN IMMEDIATE",
        f"CREATE TEMP TABLE {SEEN} AS {Whole(guard, {}).text('sqlite')}",
        *(Whole(_guarded(whole.statement), whole.values).text("sqlite") for whole in statements),
        f"SELECT CASE WHEN {_HOLDS} THEN 'done' ELSE {_quoted(why, 'sqlite')} END",
        "COMMIT",
        f"DROP TABLE temp.{SEEN}",
    ]


def _quoted(text: str, dialect: str) -> str:
    return _written(text, sa.Text(), DIALECTS[dialect])


def _guarded(statement: Any) -> Any:
    """The same statement, which does nothing when the guard found nothing."""
    holds = sa.text(_HOLDS)
    if not isinstance(statement, sa.Insert):
        return statement.where(holds)
    whole: Any = statement
    if whole.select is not None:
        # The columns of INSERT ... SELECT are told nowhere else.
        return whole.from_select(whole._select_names, whole.select.where(holds))  # noqa: SLF001
    values = whole._values  # noqa: SLF001 - nor are those of INSERT ... VALUES
    names = [getattr(column, "name", column) for column in values]
    given = [_typed(value, whole.table.c[name]) for name, value in zip(names, values.values(), strict=True)]
    plain: Any = sa.insert(whole.table).from_select(names, sa.select(*given).where(holds))
    plain._post_values_clause = whole._post_values_clause  # noqa: SLF001 - what to do with a row that is there
    return plain


def _typed(value: Any, column: sa.Column[Any]) -> Any:
    """A value that goes into this column: where it stands alone nothing else would tell its type."""
    known = sa.literal(value.value, column.type) if isinstance(value, sa.BindParameter) else value
    return known.label(column.name)
