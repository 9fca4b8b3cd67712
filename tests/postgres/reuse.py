"""Databases that are used again: making one takes longer than most tests do."""

from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from runner.db.schema import tables

OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

CATALOGS = ("pg_class", "pg_attribute", "pg_attrdef", "pg_constraint", "pg_trigger", "pg_proc", "pg_namespace")
"""The catalogs that describe tables, rights, triggers and functions."""

FIRST_OID = 16_384
"""The first oid of objects that did not come with the server."""

VERSIONS = f"""
    SELECT concat_ws(
        '; ',
        {
    ", ".join(
        f"(SELECT format('{name} %s %s', count(*), max(xmin::text::bigint)) FROM {name}"
        f" WHERE {'attrelid' if name == 'pg_attribute' else 'oid'} >= {FIRST_OID})"
        for name in CATALOGS
    )
},
        (SELECT string_agg(format('%s %s', nspname, nspacl), ',' ORDER BY nspname) FROM pg_namespace),
        (SELECT string_agg(format('%s %s', setrole, setconfig), ',' ORDER BY setrole) FROM pg_db_role_setting
            WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())),
        (SELECT string_agg(version_num, ',') FROM task_schema)
    )
"""
"""The definition of a database, without its rows: every change writes or removes a row of a catalog.

A copy of a database has the transaction ids of its original.
"""

TABLES = """
    SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
"""


class Shape(NamedTuple):
    """The definition of a database, without its rows.

    Args:
        tables: their schemas and names.
        versions: its catalogs, as numbers of rows and latest changes, and its settings.
    """

    tables: set[tuple[str, str]]
    versions: str


def shape_of(url: str) -> Shape:
    """Describe a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        return Shape(_tables(connection), _versions(connection))


CLEANER = "cleaner"
"""The application name of the connections that a Cleaner keeps."""


class Cleaner:
    """Makes used databases as good as new.

    It keeps its connections: in a new one the server reads its catalogs again, which takes several times longer than
    the work.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._connections: dict[str, psycopg.Connection[Any]] = {}

    def clean(self, url: str) -> bool:
        """Remove all rows from a database, and the tables of an application.

        Returns:
            False when more than that was changed in it, so that it must not be used again.
        """
        connection = self._connections.get(url)
        try:
            if connection is None:
                connection = self._connections[url] = psycopg.connect(url, autocommit=True, application_name=CLEANER)
            return self._clean(connection)
        except psycopg.OperationalError:  # the test ended our connection too
            self.forget(url)
            with psycopg.connect(url, autocommit=True) as another:
                return self._clean(another)

    def forget(self, url: str) -> None:
        """Close the connection to a database."""
        if connection := self._connections.pop(url, None):
            connection.close()

    def _clean(self, connection: psycopg.Connection[Any]) -> bool:
        # A test that failed may have left a connection that holds a lock.
        connection.execute(OTHERS)
        for schema, table in _tables(connection) - self._shape.tables:
            connection.execute(sql.SQL("DROP TABLE {} CASCADE").format(sql.Identifier(schema, table)))
        try:
            same = _versions(connection) == self._shape.versions
        except psycopg.errors.UndefinedTable:
            return False
        if same:
            # Many times faster than TRUNCATE, which makes new files.
            connection.execute("; ".join(f"DELETE FROM {table.name}" for table in tables().metadata.sorted_tables))
            connection.execute("SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'")
        return same


def _tables(connection: psycopg.Connection[Any]) -> set[tuple[str, str]]:
    return set(connection.execute(TABLES).fetchall())


def _versions(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute(VERSIONS).fetchone()
    assert row is not None
    return str(row[0])
