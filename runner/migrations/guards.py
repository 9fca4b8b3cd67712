"""guards: whether a PostgreSQL database that was given the roles still has all that their script puts in place.

Whoever may connect may ask: what stands in the catalog is open to everybody. A dump that was restored into another
cluster, or a table that was made anew, loses what keeps the audit honest, and nothing else would tell.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from runner.migrations.installation import Transaction
from runner.migrations.roles import ROLES, role
from runner.schema import Tables
from runner.schema.partitions import full_name

TRIGGER = "audited"
"""What roles.sql calls it on each of the tables that are watched."""

OWN_BY_DATABASE = ("login", "at")
"""The columns of the audit that nobody may write: as whom somebody was known, and when."""

_ROLES = sa.text(
    "SELECT rolname, oid::text, has_any_column_privilege(oid, to_regclass(:task), 'UPDATE') FROM pg_roles "
    "WHERE rolname = ANY(:names)"
)
# An enabled trigger fires for what ordinary sessions do; its condition names the roles by their numbers.
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


async def unguarded(tx: Transaction) -> list[str] | None:
    """Find what the script of the roles puts in place and is not there.

    Args:
        tx: an open transaction; on PostgreSQL one statement is executed, or four; on SQLite none.

    Returns:
        What is missing, one short sentence each; None where the script was never run for these tables, or everything
        that it gives was taken back: its role for operators is not there, or may change no task.
    """
    if tx.connection.dialect.name != "postgresql":
        return None
    tables = tx.tables
    names = {name: role(name, tables.prefix, tables.metadata.schema) for name in ROLES}
    asked = {"task": full_name(tables.task), "names": list(names.values())}
    found = (await tx.connection.execute(_ROLES, asked)).all()
    numbers = {row[0]: row[1] for row in found}
    if not any(may and name == names["operator"] for name, _, may in found):
        return None
    return [*(await _untriggered(tx, numbers, names)), *(await _open_columns(tx, list(names.values())))]


async def _untriggered(tx: Transaction, numbers: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    watched = [full_name(table) for table in watched_tables(tx.tables)]
    oids = {row[0]: row[1] for row in (await tx.connection.execute(_TABLES, {"tables": watched})).all()}
    rows = (await tx.connection.execute(_TRIGGERS, {"trigger": TRIGGER, "tables": watched})).all()
    there = {oids[row[0]]: row[1] for row in rows}
    needed = [numbers.get(names[name]) for name in ("runner", "operator")]
    return list(_missing(watched, there, needed))


def _missing(watched: list[str], there: Mapping[str, str], needed: list[str | None]) -> Iterator[str]:
    gone = [name for name in watched if name not in there]
    others = [name for name in watched if name in there and not all(_names(there[name], number) for number in needed)]
    if gone:
        yield f"changes of {_listed(gone)} with plain SQL are not written down: the trigger {TRIGGER} is not there"
    if others:
        yield f"the trigger {TRIGGER} of {_listed(others)} knows the roles of another server, and lets all changes pass"


def _names(definition: str, number: str | None) -> bool:
    return number is not None and re.search(rf"\b{number}['\)]*::oid", definition) is not None


async def _open_columns(tx: Transaction, names: list[str]) -> list[str]:
    asked: dict[str, Any] = {"audit": full_name(tx.tables.audit), "names": names}
    rows = (await tx.connection.execute(_WRITABLE, {**asked, "columns": list(OWN_BY_DATABASE)})).all()
    return [
        f"{who} may write the column {column} of the audit, which is the database's to fill" for who, column in rows
    ]


def watched_tables(tables: Tables) -> tuple[sa.Table, ...]:
    """The tables whose changes by an operator's own SQL are written down by a trigger; see roles.sql."""
    recorded = (tables.task, tables.history, tables.dependency, tables.unique)
    return (*recorded, tables.queue, tables.handler, tables.runner)


def _listed(quoted: list[str]) -> str:
    return ", ".join(name.replace('"', "") for name in quoted)
