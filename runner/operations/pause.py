"""pause: stop starting the tasks of a queue or a handler."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.lock_limits import OPERATION_LOCKS
from runner.db.transaction import Transaction, clock
from runner.db.types import EARLIEST, bounded
from runner.errors import InvalidEdit, InvalidTask
from runner.model.text_limits import require_name
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor
from runner.operations.written_rows import write_rows
from runner.policy.claim_policy import PAUSED
from runner.queries.rows import moment, readable, text


class PauseKind(StrEnum):
    """The kinds of objects that can be paused."""

    QUEUE = "queue"
    HANDLER = "handler"


class PauseTarget(NamedTuple):
    """A queue or handler, by name."""

    kind: PauseKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Paused(NamedTuple):
    """A pause in force.

    Args:
        until: when it ends automatically; None for never.
        why: its reason; None if none was given.
        again: True if it replaced a pause, whose end and reason it keeps unless new ones were given.
    """

    until: datetime | None
    why: str | None
    again: bool


PAUSE = ("paused_at", "paused_until", "paused_by", "paused_why")


async def pause(tx: Transaction, target: PauseTarget, by: Actor, until: datetime | None = None) -> Paused:
    """Stop handing out tasks of a queue or handler; running tasks continue.

    Args:
        target: the queue or handler; it need not have tasks yet.
        until: when the pause ends automatically, aware; None to keep the current end, or for never.

    Returns:
        The pause in force, with the end and reason of the previous one where none are given.

    Raises:
        InvalidEdit: the name is invalid, or the end is in the past.
    """
    now = await _check(tx, target, until)
    before = await pause_of(tx, target)
    paused = _paused(before, by, until)
    values = {
        "paused_at": now,
        "paused_until": paused.until,
        "paused_by": by.stored.operator,
        "paused_why": paused.why,
    }
    await _enter(tx, target, values)
    await record(tx, by, [AuditEntry("pause", before, values, target=str(target))])
    return paused


async def preview_pause(tx: Transaction, target: PauseTarget, by: Actor, until: datetime | None = None) -> Paused:
    """Preview a pause; see `pause`.

    Args:
        target: the queue or handler.
        until: when the pause would end automatically, aware; None to keep the current end, or for never.

    Raises:
        InvalidEdit: as in `pause`.
    """
    await _check(tx, target, until)
    return _paused(await pause_of(tx, target, locked=False), by, until)


def _paused(before: Mapping[str, Any], by: Actor, until: datetime | None) -> Paused:
    why = before.get("paused_why") if by.reason is None else by.stored.reason
    return Paused(until or before.get("paused_until"), why, bool(before))


async def _check(tx: Transaction, target: PauseTarget, until: datetime | None) -> datetime:
    """Validate the pause and return the database's time."""
    _check_name(target)
    now = await clock(tx)
    if until is not None:
        require_future("the end of the pause", until, now)
    return now


def require_future(name: str, end: datetime, now: datetime) -> None:
    """Reject an end that has passed, or that a database cannot store."""
    if not (end.tzinfo and now < end and bounded(end)):
        raise InvalidEdit(field=name, value=str(end), why="it must be in the future")


def _check_name(target: PauseTarget) -> None:
    try:
        require_name("handler", target.name)
    except InvalidTask as error:
        raise InvalidEdit(**error.fields | {"field": f"the name of a {target.kind}"}) from error


def registry_of(tx: Transaction, target: PauseTarget) -> sa.Table:
    """The registry table of a queue or handler."""
    return tx.tables.queue if target.kind is PauseKind.QUEUE else tx.tables.handler


async def pause_set(tx: Transaction, target: PauseTarget, values: Mapping[str, Any]) -> None:
    """Set the pause of a registry_entries queue or handler; empty values remove it."""
    registry = registry_of(tx, target)
    statement = sa.update(registry).where(registry.c.name == target.name)
    await write_rows(tx, statement.values(dict.fromkeys(PAUSE) | dict(values)))


async def pause_of(tx: Transaction, target: PauseTarget, *, locked: bool = True) -> dict[str, Any]:
    """The pause in force; empty if there is none."""
    registry = registry_of(tx, target)
    columns = readable(tx, [registry.c[name] for name in PAUSE])
    conditions = (registry.c.name == target.name, PAUSED.is_paused(registry), tx.dialect.lock_limit(OPERATION_LOCKS))
    statement = sa.select(*columns).where(*conditions)
    row = (
        (await tx.execute(statement.with_for_update(key_share=True) if locked else statement)).mappings().one_or_none()
    )
    times = ("paused_at", "paused_until")
    return {name: (moment if name in times else text)(row[name]) for name in PAUSE} if row else {}


async def _enter(tx: Transaction, target: PauseTarget, values: dict[str, Any]) -> None:
    registry = registry_of(tx, target)
    # No runner has ever had a handler whose entry was created by a pause.
    unseen = {"last_seen_at": EARLIEST} if target.kind is PauseKind.HANDLER else {}
    insert = tx.dialect.insert(registry)
    insert = insert.values(name=target.name, **values, **unseen)
    await write_rows(tx, insert.on_conflict_do_update(index_elements=registry.primary_key, set_=values))
