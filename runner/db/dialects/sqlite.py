"""SQLite dialect: batches as JSON, lane walks with a correlated IN, one writer at a time.

SQLAlchemy's own dialect is imported where it is used, since most processes need only one database.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from runner.db.dialects.dialect import Dialect
from runner.db.schema import Tables
from runner.db.types import instant_to_text

_PAGES = """
SELECT page_count * page_size, freelist_count * page_size,
       (SELECT file FROM pragma_database_list WHERE name = 'main')
FROM pragma_page_count, pragma_page_size, pragma_freelist_count
"""


class SQLite(Dialect):
    """SQLite 3.35 and newer, over aiosqlite."""

    name = "sqlite"
    last_row_id = True
    # A deferred transaction takes the write lock at its first write. If another program has committed since its first
    # read, it fails at once (SQLITE_BUSY_SNAPSHOT), whatever the busy timeout; with the driver's own BEGIN, which comes
    # after the reads, the update of the other program is lost.
    begin = "BEGIN IMMEDIATE"

    @cached_property
    def by_position(self) -> sa.Dialect:
        """That of the standard library's driver, which takes no other parameters."""
        from sqlalchemy.dialects.sqlite import pysqlite

        return pysqlite.dialect()

    def cursor_by_position(self, connection: Any) -> Any:
        """Any cursor."""
        return connection.cursor()

    def rows(self, name: str, columns: dict[str, Any]) -> sa.FromClause:
        """A batch as one JSON array of arrays: `json_each(?)`."""
        each = sa.func.json_each(sa.bindparam(name, type_=sa.Text)).table_valued("key", "value", name=f"{name}_row")
        values = [
            sa.func.json_extract(each.c.value, f"$[{index}]", type_=kind).label(column)
            for index, (column, kind) in enumerate(columns.items())
        ]
        return sa.select(*values).subquery(name)

    def parameters(self, name: str, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Transpose the columns."""
        return self.row_parameters(name, values, zip(*values.values(), strict=True))

    def row_parameters(self, name: str, columns: Collection[str], rows: Iterable[Sequence[Any]]) -> dict[str, Any]:  # noqa: ARG002 - the other database needs the columns
        """Write the rows as JSON."""
        return {name: json.dumps(list(map(tuple, rows)), default=self.instant)}

    def for_each(self, outer: sa.FromClause, inner: sa.Select[Any], row: sa.Table) -> tuple[sa.FromClause, Any]:
        """Find the ids for each outer row and look the rows up by id: SQLite has no LATERAL."""
        match = row.alias("candidate")
        return outer.join(match, match.c.id.in_(inner.with_only_columns(inner.selected_columns["id"]))), match.c

    def first_of_each(self, outer: sa.FromClause, inner: sa.Select[Any], row: sa.Table) -> tuple[sa.FromClause, Any]:
        """Find one id for each outer row: SQLite would put the ids of an IN into a table, once for each row."""
        match = row.alias("candidate")
        one = inner.with_only_columns(inner.selected_columns["id"]).scalar_subquery()
        return outer.join(match, match.c.id == one), match.c

    def one_by_one(
        self,
        batch: sa.FromClause,
        table: sa.Table,
        same: Any,
        compared: Sequence[str] = (),  # noqa: ARG002 - the other database needs it
    ) -> tuple[sa.FromClause, Any]:
        """Join them: SQLite always reads the batch first, because its size is unknown."""
        return batch, same(table, batch)

    def position(self, moment: datetime) -> Any:
        """The stored text."""
        return instant_to_text(moment)

    def instant(self, value: Any) -> Any:
        """Times are sent as the text in which they are stored."""
        return instant_to_text(value) if isinstance(value, datetime) else value

    def announcement(self, table: sa.Table) -> sa.Update | None:
        """Skip an id of the table: runners compare its sequence, which an update does not move."""
        sequence = sa.table("sqlite_sequence", sa.column("name", sa.Text), sa.column("seq", sa.BigInteger))
        return sa.update(sequence).where(sequence.c.name == table.name).values(seq=sequence.c.seq + 1)

    def insert(self, table: sa.Table) -> Any:
        """The insert of this dialect."""
        from sqlalchemy.dialects.sqlite import insert

        return insert(table)

    def one_of(self, column: sa.ColumnElement[Any], values: Sequence[int | str]) -> sa.ColumnElement[bool]:
        """One JSON array."""
        each = sa.func.json_each(sa.literal(json.dumps(list(values)))).table_valued("value")
        return column.in_(sa.select(each.c.value))

    def in_batch(self, column: sa.ColumnElement[int], name: str) -> sa.ColumnElement[bool]:
        """One JSON array of arrays."""
        return column.in_(sa.select(self.rows(name, {"id": sa.BigInteger}).c.id))

    def matches(self, column: sa.ColumnElement[str], pieces: Sequence[str]) -> sa.ColumnElement[bool]:
        """GLOB with escaped wildcards; LIKE would ignore case."""
        signs = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})
        return column.op("GLOB", is_comparison=True)("*".join(piece.translate(signs) for piece in pieces))

    def member(self, payload: sa.ColumnElement[Any], path: Sequence[str]) -> sa.ColumnElement[str]:
        """`json_extract`, with the words true and false for booleans."""
        json_path = sa.literal("$" + "".join(f'."{name}"' for name in path))
        kind, value = sa.func.json_type(payload, json_path), sa.cast(sa.func.json_extract(payload, json_path), sa.Text)
        text = sa.case((kind.in_(("true", "false")), kind), else_=value)
        return sa.case((sa.func.json_valid(payload) == 1, text), else_=sa.null())

    def encoding(self) -> sa.ColumnElement[str]:
        """Always UTF-8: the driver converts the others that SQLite has."""
        return sa.literal_column("'UTF8'", sa.Text)

    def permissions(self, tables: Tables) -> Mapping[str, sa.ColumnElement[bool]]:  # noqa: ARG002 - the other database needs them
        """SQLite has no logins and no standbys: write access to the file permits everything."""
        return {"intervenes": sa.true(), "follows": sa.false(), "closed": sa.false(), "reads_audit": sa.true()}

    def vitals(self, tables: Tables) -> Mapping[str, sa.Executable]:  # noqa: ARG002 - the other database needs them
        """The size of the file."""
        return {"version": sa.text("SELECT sqlite_version()"), "size": sa.text(_PAGES)}

    async def fetch(self, connection: Any, sql: str, arguments: Any) -> list[Any]:
        """Use a single call to the connection's thread: each call costs as much as a small statement."""
        return list(await connection.execute_fetchall(sql, arguments))

    def readable_time(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Times are text, and any text can be fetched."""
        return sa.type_coerce(moment, sa.Text)


def ignore_statistics(connection: sqlite3.Connection) -> None:
    """Make a connection forget the statistics of ANALYZE, which may be older than most rows; the file keeps them.

    With statistics of a few tasks, SQLite would read all tasks in each settle. A connection that may not write, or
    finds the file locked for long, keeps them.
    """
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'").fetchone():
        return
    if connection.execute("SELECT 1 FROM sqlite_stat1 LIMIT 1").fetchone():
        with suppress(sqlite3.OperationalError):
            connection.execute("BEGIN IMMEDIATE")
            try:
                # As many rows as SQLite expects without statistics. It keeps those that it has read.
                connection.execute("UPDATE sqlite_stat1 SET idx = NULL, stat = '1048576'")
                connection.execute("ANALYZE sqlite_master")  # only reads them
            finally:
                connection.execute("ROLLBACK")
