"""pauses: the paused queues and handlers, with since when, until when, and by whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import EARLIEST
from runner.policy.claim_order import PAUSED
from runner.queries.rows import moment, readable, text, words

MOST = 1_000
"""The most rows of a registry that are read."""


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
class Registered:
    """The registry entry of a queue or a handler.

    Args:
        name: the name of the queue or handler.
        limit: the most tasks that may run concurrently; None for no limit.
        pause: the pause in force; None if it is not paused.
        breaker: the state of a handler's breaker.
        breaker_until: when the breaker allows a probe.
        seen: when a runner last had the handler; None for never, if a pause created the entry.
    """

    name: str
    limit: int | None
    pause: Pause | None
    breaker: str | None = None
    breaker_until: datetime | None = None
    seen: datetime | None = None


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


async def registered(tx: Transaction, registry: sa.Table) -> dict[str, Registered]:
    """Read a registry.

    Args:
        tx: an open transaction.
        registry: the table of queues or of handlers.

    Returns:
        Its entries by name.
    """
    return await _entries(tx, registry)


async def entry(tx: Transaction, registry: sa.Table, name: str) -> Registered | None:
    """Read the registry entry of one queue or handler; None if there is none."""
    return next(iter((await _entries(tx, registry, registry.c.name == name)).values()), None)


async def _entries(tx: Transaction, registry: sa.Table, *only: sa.ColumnElement[bool]) -> dict[str, Registered]:
    paused = PAUSED.is_paused(registry).label("paused")
    statement = sa.select(*readable(tx, registry.c), paused).where(*only).order_by(registry.c.name).limit(MOST)
    rows = (await tx.execute(statement)).mappings().all()
    return {words(row["name"]): _registered(row) for row in rows}


def _registered(row: Mapping[Any, Any]) -> Registered:
    seen = moment(row.get("last_seen_at"))
    pause = Pause(
        moment(row["paused_at"]), moment(row["paused_until"]), text(row["paused_by"]), text(row["paused_why"])
    )
    return Registered(
        name=words(row["name"]),
        limit=row["max_running"],
        pause=pause if row["paused"] else None,
        breaker=text(row.get("breaker")),
        breaker_until=moment(row.get("breaker_until")),
        seen=None if seen == EARLIEST else seen,
    )
