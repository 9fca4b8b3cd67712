"""Databases that are used again: making one takes longer than most tests do."""

from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from runner.db.schema import tables

OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

SHAPE = """
    WITH relation AS (
        SELECT c.*, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
    ), things(thing) AS (
        SELECT format('%s.%s %s %s', nspname, relname, relowner, relacl) FROM relation
        UNION ALL SELECT format('%s %s %s %s %s', relname, attname, atttypid, attnotnull, attacl)
            FROM pg_attribute JOIN relation ON relation.oid = attrelid WHERE attnum > 0
        UNION ALL SELECT format('%s %s', relname, pg_get_expr(adbin, adrelid))
            FROM pg_attrdef JOIN relation ON relation.oid = adrelid
        UNION ALL SELECT format('%s %s %s', relname, conname, pg_get_constraintdef(pg_constraint.oid))
            FROM pg_constraint JOIN relation ON relation.oid = conrelid
        UNION ALL SELECT format('%s %s', relname, tgname) FROM pg_trigger JOIN relation ON relation.oid = tgrelid
        UNION ALL SELECT proname FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname = 'public'
        UNION ALL SELECT format('%s %s', nspname, nspacl) FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'
        UNION ALL SELECT format('%s %s', setrole, setconfig) FROM pg_db_role_setting
            WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
        UNION ALL SELECT version_num FROM task_schema
    )
    SELECT string_agg(thing, chr(10) ORDER BY thing) FROM things
"""
"""All that makes a database what it is, except its rows."""

TABLES = """
    SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
"""


class Shape(NamedTuple):
    """What a database is, except its rows.

    Args:
        tables: their schemas and names.
        things: its tables, rights and settings, described.
    """

    tables: set[tuple[str, str]]
    things: str


def shape_of(url: str) -> Shape:
    """Describe a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        return Shape(_tables(connection), _things(connection))


def emptied(url: str, shape: Shape) -> bool:
    """Make a database as good as new.

    Args:
        url: where it is.
        shape: of a new one.

    Returns:
        False when more than rows and tables of others was changed in it, so that nobody should use it again.
    """
    deletes = "; ".join(f"DELETE FROM {table.name}" for table in tables().metadata.sorted_tables)
    with psycopg.connect(url, autocommit=True) as connection:
        # A test that failed may have left somebody behind who holds a lock.
        connection.execute(OTHERS)
        # Of an application that a test was about.
        for schema, table in _tables(connection) - shape.tables:
            connection.execute(sql.SQL("DROP TABLE {} CASCADE").format(sql.Identifier(schema, table)))
        try:
            same = _things(connection) == shape.things
        except psycopg.errors.UndefinedTable:
            return False
        if same:
            # Many times faster than TRUNCATE, which makes new files.
            connection.execute(deletes)
            connection.execute("SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'")
        return same


def _tables(connection: psycopg.Connection[Any]) -> set[tuple[str, str]]:
    return set(connection.execute(TABLES).fetchall())


def _things(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute(SHAPE).fetchone()
    assert row is not None
    return str(row[0])
