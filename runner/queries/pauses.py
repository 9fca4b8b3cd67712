"""pauses: the paused queues and handlers, with since when, until when, and by whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import EARLIEST
from runner.policy.claim_order import LIMITED, PAUSED
from runner.policy.limits import UNLIMITED, SharedLimits
from runner.queries.rows import as_text, moment, readable, text

MOST = 1_000
"""Maximum number of rows of a registry that are read."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause in force.

    Args:
        since: when it began.
        until: when it ends automatically; None for never.
        by: the operator.
        why: the reason.
    """

    since: datetime | None
    until: datetime | None
    by: str | None
    why: str | None


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """The registry entry of a queue or a handler.

    Args:
        name: the name of the queue or handler.
        pause: the pause in force; None if it is not paused.
        limits: its limits over all runners.
        seen: when a runner last had the handler; None for never, if a pause created the entry.
    """

    name: str
    pause: Pause | None
    limits: SharedLimits = UNLIMITED
    seen: datetime | None = None

    @property
    def is_changed(self) -> bool:
        """True if it is paused or limited."""
        return self.pause is not None or self.limits != UNLIMITED


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses in force.

    Args:
        queues: the pauses by queue.
        handlers: the pauses by handler.
    """

    queues: Mapping[str, Pause]
    handlers: Mapping[str, Pause]


async def pauses(tx: Transaction) -> Pauses:
    """Find the pauses in force."""
    return Pauses(await _in_force(tx, tx.tables.queue), await _in_force(tx, tx.tables.handler))


async def _in_force(tx: Transaction, registry: sa.Table) -> dict[str, Pause]:
    entries = await _entries(tx, registry, PAUSED.is_paused(registry))
    return {name: entry.pause for name, entry in entries.items() if entry.pause is not None}


async def registry_entries(
    tx: Transaction, registry: sa.Table, names: Sequence[str] | None = None
) -> dict[str, RegistryEntry]:
    """Read a registry.

    Args:
        tx: an open transaction.
        registry: the table of queues or of handlers.
        names: only the entries of these names; None for all.

    Returns:
        Its first entries by name.
    """
    return await _entries(tx, registry, *([] if names is None else [tx.dialect.one_of(registry.c.name, names)]))


async def changed_entries(tx: Transaction, registry: sa.Table) -> dict[str, RegistryEntry]:
    """Read the entries with a pause or limits; see `registry_entries`."""
    return await _entries(tx, registry, PAUSED.is_paused(registry) | LIMITED.is_limited(registry))


async def entry(tx: Transaction, registry: sa.Table, name: str) -> RegistryEntry | None:
    """Read the registry entry of one queue or handler; None if there is none."""
    return next(iter((await _entries(tx, registry, registry.c.name == name)).values()), None)


async def _entries(tx: Transaction, registry: sa.Table, *only: sa.ColumnElement[bool]) -> dict[str, RegistryEntry]:
    paused = PAUSED.is_paused(registry).label("paused")
    statement = sa.select(*readable(tx, registry.c), paused).where(*only).order_by(registry.c.name).limit(MOST)
    rows = (await tx.execute(statement)).mappings().all()
    return {as_text(row["name"]): _entry(row) for row in rows}


def _entry(row: Mapping[Any, Any]) -> RegistryEntry:
    seen = moment(row.get("last_seen_at"))
    pause = Pause(
        moment(row["paused_at"]), moment(row["paused_until"]), text(row["paused_by"]), text(row["paused_why"])
    )
    return RegistryEntry(
        name=as_text(row["name"]),
        pause=pause if row["paused"] else None,
        limits=SharedLimits.of_row(row),
        seen=None if seen == EARLIEST else seen,
    )
