"""Pauses, limits and breakers, by queue or handler."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import Dialect
from runner.db.transaction import Transaction
from runner.db.types import EARLIEST, seconds_until
from runner.policy.breaker import OpenBreaker
from runner.policy.claim_policy import LIMITED, PAUSED
from runner.policy.limits import UNLIMITED, SharedLimits
from runner.queries.rows import as_text, from_row, moment, number, read_time, readable, text, values_of
from runner.text.formatting import since

if TYPE_CHECKING:
    from runner.queries.audit import AuditRecord

MOST = 1_000
"""Maximum number of rows of a registry that are read."""


class Pause(NamedTuple):
    """A pause in force.

    Args:
        since: when it began.
        until: when it ends automatically; None for never.
    """

    since: datetime | None
    until: datetime | None
    by: str | None
    why: str | None


class RegistryEntry(NamedTuple):
    """The registry entry of a queue or a handler.

    Args:
        name: the name of the queue or handler.
        pause: the pause in force; None if it is not paused.
        limits: its limits over all runners.
        last_seen: when a runner last had the handler; None for never, if a pause created the entry.
    """

    name: str
    pause: Pause | None
    limits: SharedLimits = UNLIMITED
    last_seen: datetime | None = None

    @property
    def is_changed(self) -> bool:
        """True if it is paused or limited."""
        return self.pause is not None or self.limits != UNLIMITED


class Pauses(NamedTuple):
    """The pauses in force."""

    queues: Mapping[str, Pause]
    handlers: Mapping[str, Pause]


async def pauses(tx: Transaction) -> Pauses:
    """Find the pauses in force."""
    return Pauses(*await tx.gather(_in_force(tx, tx.tables.queue), paused_handlers(tx)))


async def paused_handlers(tx: Transaction) -> dict[str, Pause]:
    """Find the pauses of handlers in force."""
    return await _in_force(tx, tx.tables.handler)


async def _in_force(tx: Transaction, registry: sa.Table) -> dict[str, Pause]:
    entries = await _entries(tx, _paused_statement(registry, tx.dialect))
    return {name: entry.pause for name, entry in entries.items() if entry.pause is not None}


async def registry_entries(
    tx: Transaction, registry: sa.Table, names: Sequence[str] | None = None
) -> dict[str, RegistryEntry]:
    """Read a registry.

    Args:
        registry: the table of queues or of handlers.
        names: only the entries of these names; None for all.

    Returns:
        Its first entries by name.
    """
    every = _statement(registry, tx.dialect)
    return await _entries(tx, every if names is None else every.where(tx.dialect.one_of(registry.c.name, names)))


async def changed_entries(tx: Transaction, registry: sa.Table) -> dict[str, RegistryEntry]:
    """Read the entries with a pause or limits; see `registry_entries`."""
    is_changed = PAUSED.is_paused(registry) | LIMITED.is_limited(registry)
    return await _entries(tx, _statement(registry, tx.dialect).where(is_changed))


async def entry(tx: Transaction, registry: sa.Table, name: str) -> RegistryEntry | None:
    """Read the registry entry of one queue or handler; None if there is none."""
    statement = _statement(registry, tx.dialect).where(registry.c.name == name)
    return next(iter((await _entries(tx, statement)).values()), None)


@lru_cache
def _statement(registry: sa.Table, dialect: Dialect) -> sa.Select[Any]:
    paused = PAUSED.is_paused(registry).label("paused")
    return sa.select(*readable(dialect, registry.c), paused).order_by(registry.c.name).limit(MOST)


@lru_cache
def _paused_statement(registry: sa.Table, dialect: Dialect) -> sa.Select[Any]:
    return _statement(registry, dialect).where(PAUSED.is_paused(registry))


async def _entries(tx: Transaction, statement: sa.Select[Any]) -> dict[str, RegistryEntry]:
    rows = (await tx.execute(statement)).mappings().all()
    return {as_text(row["name"]): _entry(row) for row in rows}


def _entry(row: Mapping[Any, Any]) -> RegistryEntry:
    last_seen = moment(row.get("last_seen_at"))
    pause = Pause(
        moment(row["paused_at"]), moment(row["paused_until"]), text(row["paused_by"]), text(row["paused_why"])
    )
    return RegistryEntry(
        name=as_text(row["name"]),
        pause=pause if row["paused"] else None,
        limits=SharedLimits.of_row(row),
        last_seen=None if last_seen == EARLIEST else last_seen,
    )


def probe_in(registry: sa.Table) -> sa.ColumnElement[Any]:
    """The seconds until the next probe, as the column that `open_breaker` reads; null for queues."""
    if "breaker_probe_at" not in registry.c:
        return sa.null().label("probe_in")
    return seconds_until(registry.c.breaker_probe_at).label("probe_in")


def open_breaker(row: Mapping[Any, Any], at: datetime) -> OpenBreaker | None:
    """Read the open breaker of a registry row with `probe_in`; None if it is closed."""
    opened_at = moment(row.get("breaker_opened_at"))
    wait = number(row.get("breaker_wait")) or 0.0
    state = OpenBreaker.of_row({**row, "breaker_opened_at": opened_at, "breaker_wait": wait})
    if state is None:
        return None
    opened = since(opened_at, at)
    return state._replace(since=opened, why=text(row["breaker_why"]) or "", by=text(row["breaker_by"]))


MOST_CHANGES = 10_000
"""Changes of queues and handlers that are read, the latest first."""


async def registries_as_of(
    tx: Transaction, at: datetime, kind: str, *, audited: bool = True
) -> dict[str, tuple[Pause | None, SharedLimits]]:
    """Return the pause and the limits of each queue, or handler, at a moment.

    Each change has its values in the audit. An object without a change has its present ones.

    Args:
        at: the moment, aware.
        kind: "queue" or "handler".
        audited: the login may read the audit.
    """
    registry = tx.tables.queue if kind == "queue" else tx.tables.handler
    present = await registry_entries(tx, registry)
    result = {name: (_as_of(entry.pause, at), entry.limits) for name, entry in present.items()}
    if not audited:
        return result
    from runner.queries.audit import AuditRecord  # The first data of a program need no audit.

    table = tx.tables.audit.c
    changes = table.task_id.is_(None) & table.verb.in_(("pause", "resume", "limit"))
    statement = sa.select(*readable(tx, table)).where(changes).order_by(table.id.desc()).limit(MOST_CHANGES)
    records = [from_row(AuditRecord, row) for row in (await tx.execute(statement)).mappings()]
    for limiting in (False, True):
        for name, values in _values_as_of(records, kind, at, limiting=limiting).items():
            pause, limits = result.get(name, (None, UNLIMITED))
            result[name] = (pause, _limits(values)) if limiting else (_as_of(_pause(values), at), limits)
    return result


def _values_as_of(
    records: "Sequence[AuditRecord]", kind: str, at: datetime, *, limiting: bool
) -> dict[str, Mapping[str, Any]]:
    """The values after the last change up to a moment, or before the first one after it, by name."""
    values: dict[str, Mapping[str, Any]] = {}
    names: set[str] = set()
    for entry in records:  # latest first
        of_kind, _, name = (entry.target or "").partition(" ")
        if of_kind != kind or (entry.verb == "limit") != limiting or entry.at is None or name in names:
            continue
        if entry.at <= at:
            names.add(name)
        values[name] = values_of(entry.after if entry.at <= at else entry.before)
    return values


def _pause(values: Mapping[str, Any]) -> Pause | None:
    since = read_time(values.get("paused_at"))
    until, by, why = read_time(values.get("paused_until")), values.get("paused_by"), values.get("paused_why")
    return None if since is None else Pause(since, until, text(by), text(why))


def _as_of(pause: Pause | None, at: datetime) -> Pause | None:
    """A pause if it was in force at a moment."""
    begun = pause is not None and pause.since is not None and pause.since <= at
    return pause if pause is not None and begun and (pause.until is None or pause.until > at) else None


def _limits(values: Mapping[str, Any]) -> SharedLimits:
    return SharedLimits.of_row(dict.fromkeys(UNLIMITED.columns) | dict(values))
