"""pauses: which queues and handlers stand still, since when, and who wanted it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.columns import EARLIEST
from runner.store.observe.legible import legible, moment, text, words
from runner.store.survey import is_paused
from runner.store.transaction import Transaction

MOST = 1_000
"""Rows of a registry that are read."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that is in force.

    Args:
        since: when it began.
        until: when it ends by itself; None for never.
        by: who asked for it.
        why: the reason given.
    """

    since: datetime | None
    until: datetime | None
    by: str | None
    why: str | None


@dataclass(frozen=True, slots=True)
class Registered:
    """What a registry says of a queue or a handler.

    Args:
        name: of the queue or handler.
        limit: how many of its tasks may run at once; None for any number.
        pause: None when it is not paused.
        breaker: the state of a handler's breaker.
        breaker_until: when the breaker lets a call through again.
        seen: when a runner last knew the handler; None for never: it was entered for its pause.
    """

    name: str
    limit: int | None
    pause: Pause | None
    breaker: str | None = None
    breaker_until: datetime | None = None
    seen: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pauses:
    """What stands still.

    Args:
        queues: pauses that are in force, by queue.
        handlers: the same by handler.
    """

    queues: Mapping[str, Pause]
    handlers: Mapping[str, Pause]


async def pauses(tx: Transaction) -> Pauses:
    """Find the pauses that are in force."""
    return Pauses(await _in_force(tx, tx.tables.queue), await _in_force(tx, tx.tables.handler))


async def _in_force(tx: Transaction, registry: sa.Table) -> dict[str, Pause]:
    entries = await _entries(tx, registry, is_paused(registry))
    return {name: entry.pause for name, entry in entries.items() if entry.pause is not None}


async def registered(tx: Transaction, registry: sa.Table) -> dict[str, Registered]:
    """Read a registry.

    Args:
        tx: an open transaction.
        registry: the table of queues or that of handlers.

    Returns:
        Its entries by name.
    """
    return await _entries(tx, registry)


async def entry(tx: Transaction, registry: sa.Table, name: str) -> Registered | None:
    """Read what a registry says of one queue or handler; None when it does not know it."""
    return next(iter((await _entries(tx, registry, registry.c.name == name)).values()), None)


async def _entries(tx: Transaction, registry: sa.Table, *only: sa.ColumnElement[bool]) -> dict[str, Registered]:
    paused = is_paused(registry).label("paused")
    statement = sa.select(*legible(tx, registry.c), paused).where(*only).order_by(registry.c.name).limit(MOST)
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
