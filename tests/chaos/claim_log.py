"""The claim log: triggers in the database that record each claim, its end, and each change of limits, breakers, slices.

The log is written by the transactions themselves, in the order of their commits, so it shows every instant as the
database saw it: on PostgreSQL the triggers fire at the commit, and on SQLite there is one writer at a time. A claim
that counts tasks under a limit sees the ends before it, and its own entry follows those of the claims whose locks it
waited for. The triggers follow in_order_commit in the alphabet, by which PostgreSQL orders them: an ordered submit
is recorded when it has the lock that a failing task of its key excludes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema import Tables

NAME = "claim_log"

LIMITS = ("max_running", "max_per_tenant", "rate_limit", "rate_period")
BREAKER = ("breaker_probes", "breaker_probe_at")
TIMES = {"expires_at", "hosts_until", "claimed_at", "submitted_at", "breaker_probe_at", "lease_until"}
"""Columns that the log has in seconds of the epoch."""


class Entry(NamedTuple):
    """An entry of the log.

    Args:
        kind: submit, claim, end, gone, unbind, limits, breaker, runner, buckets, lease, left, or acknowledged.
        data: the columns of the row.
        at: when it was written, in seconds of the epoch by the database's clock.
        began: when its transaction began; the same as `at` on SQLite.
    """

    kind: str
    data: Mapping[str, Any]
    at: float
    began: float


class _Trigger(NamedTuple):
    """What a trigger records: the event of a table, the condition, and the columns of the new or old row."""

    kind: str
    table: sa.Table
    event: str
    condition: str
    columns: Sequence[str]


def _triggers(tables: Tables) -> list[_Trigger]:
    claimed = ("id", "fence", "runner_id", "queue", "handler", "tenant", "order_key", "bucket", "hosts", "claimed_at")
    submitted = ("id", "order_key", "handler", "unique_key", "submitted_at")
    member = ("id", "host", "pid", "slice", "buckets", "lease_until")
    starts = "NEW.state = 'running' AND NEW.fence <> OLD.fence"
    ends = "OLD.state = 'running' AND (NEW.state <> 'running' OR NEW.fence <> OLD.fence)"
    triggers: list[_Trigger] = [
        _Trigger("submit", tables.task, "INSERT", "", submitted),
        _Trigger("end", tables.task, "UPDATE", ends, ("id", "fence")),
        _Trigger("claim", tables.task, "UPDATE", starts, (*claimed, "expires_at")),
        _Trigger("gone", tables.task, "DELETE", "", ("id", "fence")),
        _Trigger("unbind", tables.task, "UPDATE", _differ("hosts"), ("id", "hosts_until")),
        _Trigger("breaker", tables.handler, "UPDATE", _differ(*BREAKER), ("name", *BREAKER)),
        _Trigger("runner", tables.runner, "INSERT", "", member),
        _Trigger("buckets", tables.runner, "UPDATE", _differ("buckets"), member),
        _Trigger("lease", tables.runner, "UPDATE", _differ("lease_until"), ("id", "lease_until")),
        _Trigger("left", tables.runner, "DELETE", "", ("id",)),
    ]
    for registry in (tables.queue, tables.handler):
        triggers.append(_Trigger("limits", registry, "INSERT", "", ("name", *LIMITS)))
        triggers.append(_Trigger("limits", registry, "UPDATE", _differ(*LIMITS), ("name", *LIMITS)))
    return triggers


def _differ(*columns: str) -> str:
    return " OR ".join(f"NEW.{name} IS DISTINCT FROM OLD.{name}" for name in columns)


async def install(database: Database) -> None:
    """Create the log and its triggers."""
    is_sqlite = not database.dialect.is_server
    async with database.writing() as tx:
        for statement in _sqlite(tx.tables) if is_sqlite else _postgresql(tx.tables):
            await tx.execute(sa.text(statement.replace(":", "\\:")))


async def acknowledge(database: Database, kind: str, name: str) -> None:
    """Record that a change of limits was acknowledged to its operator."""
    async with database.writing() as tx:
        row = {"kind": "acknowledged", "data": json.dumps({"kind": kind, "name": name})}
        await tx.execute(sa.text(f"INSERT INTO {NAME} (kind, data) VALUES (:kind, :data)"), row)


async def read(database: Database) -> list[Entry]:
    """All entries in the order of the commits."""
    async with database.reading() as tx:
        rows = await tx.rows(sa.text(f"SELECT kind, data, at, began FROM {NAME} ORDER BY seq"))
    return [Entry(kind, json.loads(data), float(at), float(began)) for kind, data, at, began in rows]


def _pairs(trigger: _Trigger, seconds: str) -> str:
    row = "OLD" if trigger.event == "DELETE" else "NEW"
    pairs = [
        f"'{name}', {seconds.format(f'{row}.{name}') if name in TIMES else f'{row}.{name}'}" for name in trigger.columns
    ]
    kind = "queue" if trigger.table.name.endswith("queue") else "handler"
    return ", ".join([*pairs, f"'kind', '{kind}'"] if trigger.kind == "limits" else pairs)


def _sqlite(tables: Tables) -> list[str]:
    seconds = "(julianday({}) - 2440587.5) * 86400.0"
    now = seconds.format("'now'")
    columns = f"kind TEXT, data TEXT, at REAL DEFAULT ({now}), began REAL DEFAULT ({now})"
    statements = [f"CREATE TABLE {NAME} (seq INTEGER PRIMARY KEY, {columns})"]
    for number, trigger in enumerate(_triggers(tables)):
        condition = trigger.condition.replace("IS DISTINCT FROM", "IS NOT")
        when = f" WHEN {condition}" if condition else ""
        insert = f"INSERT INTO {NAME} (kind, data) VALUES ('{trigger.kind}', json_object({_pairs(trigger, seconds)}));"
        on = f"AFTER {trigger.event} ON {trigger.table.name} FOR EACH ROW{when}"
        statements.append(f"CREATE TRIGGER log_{number} {on} BEGIN {insert} END")
    return statements


def _postgresql(tables: Tables) -> list[str]:
    now = "extract(epoch from clock_timestamp()), extract(epoch from now())"
    columns = "kind text, data text, at float DEFAULT extract(epoch from clock_timestamp()),"
    columns += " began float DEFAULT extract(epoch from now())"
    statements = [f"CREATE TABLE {NAME} (seq bigserial PRIMARY KEY, {columns})"]
    for number, trigger in enumerate(_triggers(tables)):
        data = f"json_build_object({_pairs(trigger, 'extract(epoch from {})::float')})::text"
        insert = f"INSERT INTO {NAME} (kind, data, at, began) VALUES ('{trigger.kind}', {data}, {now});"
        statements.append(
            f"CREATE FUNCTION log_{number}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {insert} RETURN NULL; END $$"
        )
        when = f" WHEN ({trigger.condition})" if trigger.condition else ""
        statements.append(
            f"CREATE CONSTRAINT TRIGGER recorded_{number} AFTER {trigger.event} ON {trigger.table.name}"
            f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW{when} EXECUTE FUNCTION log_{number}()"
        )
    return statements
