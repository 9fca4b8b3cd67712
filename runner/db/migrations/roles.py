"""Writes the SQL script that creates the PostgreSQL roles of an installation; see roles.sql."""

from pathlib import Path

from runner.db.migrations.installation import version_table
from runner.db.schema import tables
from runner.errors import InvalidInput
from runner.handlers.options import TASK_OPTIONS
from runner.urls import DatabaseUrl

SCRIPT = Path(__file__).with_name("roles.sql")

LONGEST_NAME = 63
"""Longest name in PostgreSQL, in bytes."""

ROLES = ("producer", "runner", "operator", "reader")
"""The roles of an installation."""


def role(name: str, prefix: str = "", schema: str | None = None) -> str:
    """Return the full name of a role: it includes schema and prefix, because roles belong to the whole server.

    Args:
        name: one of ROLES.
        prefix: prefix of every table name.
        schema: PostgreSQL schema of the tables; None for the search path.

    Raises:
        InvalidInput: the name exceeds the server's limit, so it would be truncated.
    """
    full = f"{f'{schema}_' if schema else ''}{prefix}task_{name}"
    if len(full) > LONGEST_NAME:
        raise InvalidInput(why=f"the role name {full} is longer than PostgreSQL's limit of {LONGEST_NAME} bytes")
    return full


def roles(url: DatabaseUrl, prefix: str = "", schema: str | None = None) -> str:
    """Write the statements that create the roles and grant their rights.

    Args:
        url: names the kind of database; no connection is made.
        prefix: prefix of every table name.
        schema: PostgreSQL schema of the tables; None for the search path.

    Returns:
        A script for psql: one transaction, which can be run repeatedly.

    Raises:
        InvalidInput: the database has no roles.
    """
    if url.kind == "sqlite":
        raise InvalidInput(why="SQLite has no roles: any user who may write the file may change everything in it")
    return SCRIPT.read_text(encoding="utf-8").format(**_names(prefix, schema))


def _names(prefix: str, schema: str | None) -> dict[str, str]:
    """The values of the script's placeholders. The settings reject table names that would need quoting."""
    qualifier = f'"{schema}".' if schema else ""
    table_names = [table.name.removeprefix(prefix) for table in tables(prefix, schema).metadata.sorted_tables]
    quoted = {name: f'{qualifier}"{prefix}{name}"' for name in (*table_names, version_table(""))}
    role_names = {name: role(name, prefix, schema) for name in ROLES}
    usage = f'GRANT USAGE ON SCHEMA "{schema}" TO {", ".join(role_names.values())};\n' if schema else ""
    names = {
        "audit_function": f'{qualifier}"{prefix}task_audited"',
        "guard_function": f'{qualifier}"{prefix}task_key_guard"',
        "audit_name": f"{prefix}task_audit",
        "task_name": f"{prefix}task",
    }
    names["option_columns"] = ", ".join(option.column for option in TASK_OPTIONS if option.column)
    return quoted | role_names | names | {"every_table": ", ".join(sorted(quoted.values())), "schema_usage": usage}
