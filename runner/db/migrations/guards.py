"""Guards: checks that a PostgreSQL database with roles still has the triggers and grants that roles.sql created.

Any client can run the checks, because the catalog is public. Restoring a dump into another cluster, or recreating a
table, silently drops the triggers that keep the audit complete.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from runner.db.migrations.installation import MigrationTransaction
from runner.db.migrations.roles import ROLES, role
from runner.db.schema import Tables
from runner.db.schema.partitions import full_name

TRIGGER = "audited"
"""Name of the trigger that roles.sql creates on each audited table."""

KEY_TRIGGER = "key_guard"
"""Name of the trigger that roles.sql creates on the unique keys."""

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
        tx: open transaction. It executes one or five statements on PostgreSQL, none on SQLite.

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
        *(await _key_findings(tx, oid_of, names)),
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


async def _key_findings(tx: MigrationTransaction, oid_of: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    parameters = {"trigger": KEY_TRIGGER, "tables": [full_name(tx.tables.unique)]}
    definitions = [row[1] for row in (await tx.connection.execute(_TRIGGERS, parameters)).all()]
    role_oids = [oid_of.get(names[name]) for name in ("runner", "operator", "producer")]
    if any(all(_has_role(definition, oid) for oid in role_oids) for definition in definitions):
        return []
    problem = "names the roles of another server" if definitions else "is missing or disabled"
    return [f"{names['producer']} may take unique keys from other tasks: the trigger {KEY_TRIGGER} {problem}"]


async def _column_findings(tx: MigrationTransaction, names: list[str]) -> list[str]:
    parameters: dict[str, Any] = {"audit": full_name(tx.tables.audit), "names": names}
    rows = (await tx.connection.execute(_WRITABLE, {**parameters, "columns": list(OWN_BY_DATABASE)})).all()
    return [
        f"{grantee} may write the audit column {column}, which only the database may fill" for grantee, column in rows
    ]


def watched_tables(tables: Tables) -> tuple[sa.Table, ...]:
    """The tables whose changes through plain SQL a trigger audits; see roles.sql."""
    recorded = (tables.task, tables.history, tables.dependency, tables.unique)
    return (*recorded, tables.queue, tables.handler, tables.runner, tables.schedule)


def _join(quoted: list[str]) -> str:
    return ", ".join(name.replace('"', "") for name in quoted)
