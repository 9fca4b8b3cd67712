"""pause: let a queue or a handler stand still, and go on."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import EARLIEST, bounded
from runner.errors import InvalidEdit, InvalidTask
from runner.storable import to_storable
from runner.store.acceptance import check
from runner.store.intervene.answers import By
from runner.store.intervene.place import Kind, Place
from runner.store.intervene.record import NAME_LIMIT, REASON_LIMIT, Entry, record
from runner.store.observe.legible import clock, legible, moment, text
from runner.store.survey import is_paused
from runner.store.transaction import Transaction
from runner.task import NewTask


class Paused(NamedTuple):
    """A pause as it is in force now.

    Args:
        until: when it ends by itself; None for never.
        why: the reason for it; None when none was ever given.
        again: True when there was a pause already, of which the new one keeps what it does not say.
    """

    until: datetime | None
    why: str | None
    again: bool


PAUSE = ("paused_at", "paused_until", "paused_by", "paused_why")


async def pause(tx: Transaction, place: Place, by: By, until: datetime | None = None) -> Paused:
    """Hand out no more tasks of a queue or a handler; what runs goes on running.

    Args:
        tx: a writing transaction.
        place: what to pause; it need not have any tasks yet.
        by: who does it, and why.
        until: when the pause ends by itself, aware; None for when the present one does, or never.

    Returns:
        The pause in force, with the end and the reason of the one before where nothing else is said.

    Raises:
        InvalidEdit: the name cannot be one, or the time has passed.
    """
    now = await _checked(tx, place, until)
    before = await pause_of(tx, place)
    done = _paused(before, by, until)
    values = {
        "paused_at": now,
        "paused_until": done.until,
        "paused_by": to_storable(by.operator, NAME_LIMIT),
        "paused_why": done.why,
    }
    await _enter(tx, place, values)
    await record(tx, by, [Entry("pause", before, values, target=str(place))])
    return done


async def pausing(tx: Transaction, place: Place, by: By, until: datetime | None = None) -> Paused:
    """Tell which pause would be in force, without pausing anything; see `pause`.

    Args:
        tx: an open transaction.
        place: what would be paused.
        by: who would do it, and why.
        until: when the pause would end by itself, aware; None for when the present one does, or never.

    Raises:
        InvalidEdit: as `pause`.
    """
    await _checked(tx, place, until)
    return _paused(await pause_of(tx, place, locked=False), by, until)


def _paused(before: Mapping[str, Any], by: By, until: datetime | None) -> Paused:
    why = before.get("paused_why") if by.reason is None else to_storable(by.reason, REASON_LIMIT)
    return Paused(until or before.get("paused_until"), why, bool(before))


async def _checked(tx: Transaction, place: Place, until: datetime | None) -> datetime:
    """The database's time, if the pause can be."""
    _check_name(place)
    now = await clock(tx)
    if until is not None and not (until.tzinfo and now < until and bounded(until)):
        raise InvalidEdit(field="the end of the pause", value=str(until), why="it must be a time in the future")
    return now


async def resume(tx: Transaction, place: Place, by: By) -> bool:
    """Hand out tasks of a queue or a handler again.

    Args:
        tx: a writing transaction.
        place: what was paused.
        by: who does it.

    Returns:
        False when it was not paused; nothing has been changed then.
    """
    before = await pause_of(tx, place)
    if before:
        await pause_set(tx, place, {})
        await record(tx, by, [Entry("resume", before, {}, target=str(place))])
    return bool(before)


def _check_name(place: Place) -> None:
    try:
        check(NewTask(place.name))
    except InvalidTask as error:
        raise InvalidEdit(**error.fields | {"field": f"the name of a {place.kind}"}) from error


def registry_of(tx: Transaction, place: Place) -> sa.Table:
    """The table in which a place stands."""
    return tx.tables.queue if place.kind is Kind.QUEUE else tx.tables.handler


async def pause_set(tx: Transaction, place: Place, values: Mapping[str, Any]) -> None:
    """Set the pause of what is registered already; nothing for none."""
    registry = registry_of(tx, place)
    statement = sa.update(registry).where(registry.c.name == place.name)
    await tx.execute(statement.values(dict.fromkeys(PAUSE) | dict(values)))


async def pause_of(tx: Transaction, place: Place, *, locked: bool = True) -> dict[str, Any]:
    """The pause that is in force; empty when there is none."""
    registry = registry_of(tx, place)
    columns = legible(tx, [registry.c[name] for name in PAUSE])
    statement = sa.select(*columns).where(registry.c.name == place.name, is_paused(registry))
    row = (await tx.execute(statement.with_for_update() if locked else statement)).mappings().one_or_none()
    times = ("paused_at", "paused_until")
    return {name: (moment if name in times else text)(row[name]) for name in PAUSE} if row else {}


async def _enter(tx: Transaction, place: Place, values: dict[str, Any]) -> None:
    registry = registry_of(tx, place)
    # A handler that was entered for its pause has not been seen by any runner.
    unseen = {"last_seen_at": EARLIEST} if place.kind is Kind.HANDLER else {}
    insert = tx.dialect.insert(registry)
    insert = insert.values(name=place.name, **values, **unseen)
    await tx.execute(insert.on_conflict_do_update(index_elements=registry.primary_key, set_=values))
