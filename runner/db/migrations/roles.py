"""PostgreSQL roles of an installation, created by a script whose triggers and grants are checked later."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from runner.db.dialects.postgresql import quoted
from runner.db.migrations.revisions import MigrationTransaction, version_table
from runner.db.schema import Tables, tables
from runner.db.schema.partitions import full_name
from runner.db.schema.records import LIMIT_COLUMNS
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
    if len(full.encode()) > LONGEST_NAME:
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


class SqlText(str):
    """A value of a placeholder: `{name}` is a part of a statement, and `{name:inner}` a part of a literal."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return self.replace("'", "''") if spec == "inner" else str(self)


def _plain_or_quoted(name: str) -> str:
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else quoted(name)


def _names(prefix: str, schema: str | None) -> dict[str, str]:
    """The values of the script's placeholders."""
    qualifier = f"{quoted(schema)}." if schema else ""
    own = [table.name.removeprefix(prefix) for table in tables(prefix, schema).metadata.sorted_tables]
    table_names = {name: SqlText(f"{qualifier}{quoted(f'{prefix}{name}')}") for name in (*own, version_table(""))}
    role_names = {name: SqlText(_plain_or_quoted(role(name, prefix, schema))) for name in ROLES}
    usage = f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {', '.join(role_names.values())};\n" if schema else ""
    names = {
        "audit_function": SqlText(f"{qualifier}{quoted(f'{prefix}task_audited')}"),
        "guard_function": SqlText(f"{qualifier}{quoted(f'{prefix}task_key_guard')}"),
        "dependency_function": SqlText(f"{qualifier}{quoted(f'{prefix}task_dependency_guard')}"),
        "new_row_function": SqlText(f"{qualifier}{quoted(f'{prefix}task_is_new')}"),
        "new_row_name": SqlText(quoted(f"{prefix}task_is_new")),
        "audit_name": SqlText(f"{prefix}task_audit"),
        "task_name": SqlText(f"{prefix}task"),
        "role_list": ", ".join("'" + role(name, prefix, schema).replace("'", "''") + "'" for name in ROLES),
    }
    names["limit_columns"] = ", ".join(LIMIT_COLUMNS)
    names["option_columns"] = ", ".join(option.column for option in TASK_OPTIONS if option.column)
    names |= {"every_table": ", ".join(sorted(table_names.values())), "schema_usage": usage}
    return table_names | role_names | names


TRIGGER = "audited"
"""Name of the trigger that roles.sql creates on each audited table."""

GUARDS = {
    "key_guard": ("task_unique", "take unique keys from other tasks"),
    "dependency_guard": ("task_dependency", "block or cancel tasks of other applications"),
}
"""The triggers of roles.sql that guard against producers: the table of each, and the harm without it."""

OWN_BY_DATABASE = ("login", "at")
"""Audit columns that the database fills and no client may write."""

_ROLES = sa.text(
    "SELECT rolname, oid::text, has_any_column_privilege(oid, to_regclass(:task), 'UPDATE') FROM pg_roles "
    "WHERE rolname = ANY(:names)"
)
# 'O' and 'A': enabled for ordinary sessions. The trigger's condition names the roles by their oids.
_TRIGGERS = sa.text(
    "SELECT t.tgrelid::oid::text, pg_get_triggerdef(t.oid) FROM pg_trigger t "
    "WHERE t.tgname = :trigger AND t.tgenabled IN ('O', 'A') "
    "AND t.tgrelid = ANY(SELECT to_regclass(name) FROM unnest(CAST(:tables AS text[])) name)"
)
_TABLES = sa.text("SELECT to_regclass(name)::oid::text, name FROM unnest(CAST(:tables AS text[])) name")
_WRITABLE = sa.text(
    "SELECT rolname, name FROM pg_roles, unnest(CAST(:columns AS text[])) name WHERE rolname = ANY(:names) AND ("
    "has_column_privilege(oid, to_regclass(:audit), name, 'INSERT') "
    "OR has_column_privilege(oid, to_regclass(:audit), name, 'UPDATE')) ORDER BY 1, 2"
)


async def missing_guards(tx: MigrationTransaction) -> list[str] | None:
    """Find the triggers and grants of roles.sql that are missing.

    Args:
        tx: open transaction. It executes one or six statements on PostgreSQL, none on SQLite.

    Returns:
        One short sentence per finding. None if the database does not use the roles: the operator role does not exist or
        may not change tasks.
    """
    if tx.connection.dialect.name != "postgresql":
        return None
    tables = tx.tables
    names = {name: role(name, tables.prefix, tables.metadata.schema) for name in ROLES}
    parameters = {"task": full_name(tables.task), "names": list(names.values())}
    rows = (await tx.connection.execute(_ROLES, parameters)).all()
    oid_of = {row[0]: row[1] for row in rows}
    if not any(may_update and name == names["operator"] for name, _, may_update in rows):
        return None
    return [
        *(await _trigger_findings(tx, oid_of, names)),
        *(await _guard_findings(tx, oid_of, names)),
        *(await _column_findings(tx, list(names.values()))),
    ]


async def _trigger_findings(tx: MigrationTransaction, oid_of: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    audited = [full_name(table) for table in watched_tables(tx.tables)]
    oids = {row[0]: row[1] for row in (await tx.connection.execute(_TABLES, {"tables": audited})).all()}
    rows = (await tx.connection.execute(_TRIGGERS, {"trigger": TRIGGER, "tables": audited})).all()
    definitions = {oids[row[0]]: row[1] for row in rows}
    role_oids = [oid_of.get(names[name]) for name in ("runner", "operator")]
    return list(_findings(audited, definitions, role_oids))


def _findings(audited: list[str], definitions: Mapping[str, str], role_oids: list[str | None]) -> Iterator[str]:
    missing = [name for name in audited if name not in definitions]
    outdated = [
        name
        for name in audited
        if name in definitions and not all(_has_role(definitions[name], oid) for oid in role_oids)
    ]
    if missing:
        names = _join(missing)
        yield f"changes of {names} through plain SQL are not audited: the trigger {TRIGGER} is missing or disabled"
    if outdated:
        yield f"the trigger {TRIGGER} of {_join(outdated)} names the roles of another server, so it audits nothing"


def _has_role(definition: str, oid: str | None) -> bool:
    return oid is not None and re.search(rf"\b{oid}['\)]*::oid", definition) is not None


async def _guard_findings(tx: MigrationTransaction, oid_of: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    role_oids = [oid_of.get(names[name]) for name in ("runner", "operator", "producer")]
    findings = []
    for trigger, (table, harm) in GUARDS.items():
        parameters = {"trigger": trigger, "tables": [full_name(_table(tx.tables, table))]}
        definitions = [row[1] for row in (await tx.connection.execute(_TRIGGERS, parameters)).all()]
        if not any(all(_has_role(definition, oid) for oid in role_oids) for definition in definitions):
            problem = "names the roles of another server" if definitions else "is missing or disabled"
            findings.append(f"{names['producer']} may {harm}: the trigger {trigger} {problem}")
    return findings


def _table(tables: Tables, name: str) -> sa.Table:
    return next(table for table in watched_tables(tables) if table.name == f"{tables.prefix}{name}")


async def _column_findings(tx: MigrationTransaction, names: list[str]) -> list[str]:
    parameters: dict[str, Any] = {"audit": full_name(tx.tables.audit), "names": names}
    rows = (await tx.connection.execute(_WRITABLE, {**parameters, "columns": list(OWN_BY_DATABASE)})).all()
    return [
        f"{grantee} may write the audit column {column}, which only the database may fill" for grantee, column in rows
    ]


# The role of the script comes first. A login that may not change tasks is no runner, as that of a reader.
_GRANT = sa.text("""
    SELECT format('GRANT SELECT ON SEQUENCE %s TO %I', sequence, runner.name)
    FROM pg_get_serial_sequence(:dependency, 'id') AS sequence, (
        SELECT rolname AS name FROM pg_roles
        WHERE rolname IN (:runner, current_user) AND has_any_column_privilege(oid, to_regclass(:task), 'UPDATE')
        ORDER BY rolname <> :runner LIMIT 1
    ) AS runner
    WHERE NOT has_sequence_privilege(runner.name, sequence, 'SELECT')
""")


async def missing_grant(tx: MigrationTransaction, *, own: bool = False) -> str | None:
    """Find the grant without which a runner keeps the rows of succeeded tasks at a retention of zero.

    Args:
        tx: open transaction. It executes one statement on PostgreSQL, none on SQLite.
        own: True for the current login; False for the role of runners in roles.sql, if the database uses it.

    Returns:
        The statement for the owner of the tables; None if the right exists.
    """
    if tx.connection.dialect.name != "postgresql":
        return None
    tables = tx.tables
    runner = "" if own else role("runner", tables.prefix, tables.metadata.schema)
    parameters = {"dependency": full_name(tables.dependency), "runner": runner, "task": full_name(tables.task)}
    grant: str | None = (await tx.connection.execute(_GRANT, parameters)).scalar()
    return grant


def watched_tables(tables: Tables) -> tuple[sa.Table, ...]:
    """The tables whose changes through plain SQL a trigger audits; see roles.sql."""
    recorded = (tables.task, tables.history, tables.dependency, tables.signal, tables.unique)
    return (*recorded, tables.queue, tables.handler, tables.runner, tables.schedule, tables.alert)


def _join(quoted: list[str]) -> str:
    return ", ".join(name.replace('"', "") for name in quoted)
