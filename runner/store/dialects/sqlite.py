"""SQLite's ways: JSON carries batches, a correlated IN walks lanes, there is one writer at a time.

What SQLAlchemy knows of this database is loaded where it is used: whoever works with the other one does without.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.columns import instant_to_text
from runner.schema import Tables
from runner.store.dialects import vitals


class SQLite:
    """SQLite 3.35 and newer, over aiosqlite."""

    name = "sqlite"
    isolates_rows = False
    partitions = False

    def rows(self, name: str, columns: dict[str, Any]) -> sa.FromClause:
        """Let one JSON array of arrays stand for the batch: `json_each(?)`."""
        each = sa.func.json_each(sa.bindparam(name, type_=sa.Text)).table_valued("key", "value", name=f"{name}_row")
        values = [
            sa.func.json_extract(each.c.value, f"$[{place}]", type_=kind).label(column)
            for place, (column, kind) in enumerate(columns.items())
        ]
        return sa.select(*values).subquery(name)

    def parameters(self, name: str, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Write the rows as JSON."""
        return {name: json.dumps(list(zip(*values.values(), strict=True)), default=self.instant)}

    def for_each(self, outer: sa.FromClause, inner: sa.Select[Any], row: sa.Table) -> tuple[sa.FromClause, Any]:
        """Find the ids for each outer row and look the rows up by id: SQLite has no LATERAL."""
        found = row.alias("found")
        return outer.join(found, found.c.id.in_(inner.with_only_columns(inner.selected_columns["id"]))), found.c

    def one_by_one(self, batch: sa.FromClause, table: sa.Table, same: Any) -> tuple[sa.FromClause, Any]:
        """Join them: the batch is always read first, for nothing is known of its size."""
        return batch, same(table, batch)

    def instant(self, value: Any) -> Any:
        """Times travel as the text that they are stored as."""
        return instant_to_text(value) if isinstance(value, datetime) else value

    def announcing(self, insert: Any, tables: Tables) -> Any:  # noqa: ARG002 - the other database needs them
        """Nothing to do: runners see that the file has changed."""
        return insert

    def insert(self, table: sa.Table) -> Any:
        """This database's own insert."""
        from sqlalchemy.dialects.sqlite import insert

        return insert(table)

    def one_of(self, column: sa.ColumnElement[Any], values: Sequence[int | str]) -> sa.ColumnElement[bool]:
        """One JSON array."""
        each = sa.func.json_each(sa.literal(json.dumps(list(values)))).table_valued("value")
        return column.in_(sa.select(each.c.value))

    def matches(self, column: sa.ColumnElement[str], pieces: Sequence[str]) -> sa.ColumnElement[bool]:
        """GLOB, with its signs escaped; LIKE would not tell upper from lower case."""
        signs = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})
        return column.op("GLOB", is_comparison=True)("*".join(piece.translate(signs) for piece in pieces))

    def rights(self, tables: Tables) -> Mapping[str, sa.ColumnElement[bool]]:  # noqa: ARG002 - the other database needs them
        """There are no logins and no standbys: whoever may write the file may do anything."""
        return {"intervenes": sa.true(), "follows": sa.false(), "closed": sa.false(), "reads_audit": sa.true()}

    def staleness(self) -> sa.ColumnElement[Any]:
        """There are no standbys."""
        return sa.null()

    def vitals(self, tables: Tables) -> Mapping[str, sa.Executable]:  # noqa: ARG002 - the other database needs them
        """The size of the file."""
        return vitals.of_sqlite()

    async def fetch(self, connection: Any, sql: str, arguments: Any) -> list[Any]:
        """In one visit to the connection's thread: each costs as much as a small statement."""
        return list(await connection.execute_fetchall(sql, arguments))

    def along_indexes(self) -> sa.Executable | None:
        """Nothing: it takes the index that has the order."""
        return None

    def legible(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Times are text, and any text can be fetched."""
        return sa.type_coerce(moment, sa.Text)
