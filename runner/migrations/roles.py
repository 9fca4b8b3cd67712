"""Write down the roles of an installation in PostgreSQL, for whoever may create them; see roles.sql."""

from pathlib import Path

from runner.errors import InvalidInput
from runner.migrations.installation import version_table
from runner.schema import tables
from runner.urls import DatabaseUrl

SCRIPT = Path(__file__).with_name("roles.sql")

LONGEST_NAME = 63
"""Bytes of a name in PostgreSQL."""

ROLES = ("producer", "runner", "operator", "reader")
"""Who there is."""


def role(name: str, prefix: str = "", schema: str | None = None) -> str:
    """The name of a role: roles belong to the whole server, so that of the tables' place is part of it.

    Args:
        name: one of ROLES.
        prefix: of every table's name.
        schema: of the tables; None stands for the search path.

    Raises:
        InvalidInput: the server would cut the name off, and so make one of several.
    """
    full = f"{f'{schema}_' if schema else ''}{prefix}task_{name}"
    if len(full) > LONGEST_NAME:
        raise InvalidInput(why=f"the role would be named {full}, longer than the {LONGEST_NAME} bytes of a name")
    return full


def roles(url: DatabaseUrl, prefix: str = "", schema: str | None = None) -> str:
    """Write down the statements that create the roles and give each what it needs.

    Args:
        url: tells only which database they are for; nothing is connected to.
        prefix: goes before every table's name.
        schema: the PostgreSQL schema of the tables; None stands for the search path.

    Returns:
        A script for psql: one transaction, which can be run again.

    Raises:
        InvalidInput: the database knows no roles.
    """
    if url.kind == "sqlite":
        raise InvalidInput(why="SQLite knows no roles; whoever may write the file may change everything in it")
    return SCRIPT.read_text(encoding="utf-8").format(**_names(prefix, schema))


def _names(prefix: str, schema: str | None) -> dict[str, str]:
    """What stands for each word in braces; the settings allow nothing in a name that would need to be quoted."""
    place = f'"{schema}".' if schema else ""
    own = [table.name.removeprefix(prefix) for table in tables(prefix, schema).metadata.sorted_tables]
    named = {name: f'{place}"{prefix}{name}"' for name in (*own, version_table(""))}
    who = {name: role(name, prefix, schema) for name in ROLES}
    usage = f'GRANT USAGE ON SCHEMA "{schema}" TO {", ".join(who.values())};\n' if schema else ""
    own_names = {
        "audit_function": f'{place}"{prefix}task_audited"',
        "audit_name": f"{prefix}task_audit",
        "task_name": f"{prefix}task",
    }
    return named | who | own_names | {"every_table": ", ".join(sorted(named.values())), "schema_usage": usage}
