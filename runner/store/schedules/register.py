"""register: bring the schedules of a runner's code into the database, and pause the ones that vanished from it.

Old and new code may run at the same time, and a runner with old code may restart. So a definition replaces a stored one
unless it is the one that the stored one replaced; and it replaces that too once no live runner has the stored one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.lock_limits import UPKEEP_LOCKS
from runner.db.transaction import Transaction, clock
from runner.db.types import db_now, next_version
from runner.handlers.schedules import DeclaredSchedule, fingerprint_of
from runner.model.schedule import SPEC_COLUMNS

BY = "runner"
"""The author of a pause that a runner sets."""


class Registered(NamedTuple):
    """The changes of a registration, by schedule id.

    Args:
        added: new schedules.
        changed: schedules whose definition was replaced; the columns that an operator had edited keep their values.
        kept: of these, the columns that keep the edit of an operator.
        vanished: schedules that were paused, because they are no longer in the code.
    """

    added: Sequence[str] = ()
    changed: Sequence[str] = ()
    kept: Mapping[str, Sequence[str]] = {}
    vanished: Sequence[str] = ()


async def register_schedules(
    tx: Transaction, runner_id: int, declared: Mapping[str, DeclaredSchedule], is_removed: Callable[[str, str], bool]
) -> Registered:
    """Register the schedules of a runner's code; a repetition changes nothing.

    Args:
        runner_id: the runner; its own row is ignored.
        is_removed: takes the id and the module of a schedule; returns True if the runner has that module's code, and
            the code does not have the schedule. It has vanished if no other live runner has it either.
    """
    schedule = tx.tables.schedule
    # In the order of their ids, so that two runners never deadlock.
    rows = (
        await tx.execute(
            sa.select(schedule)
            .where(_of_code(tx, declared), tx.dialect.lock_limit(UPKEEP_LOCKS))
            .order_by(schedule.c.id)
            .with_for_update(skip_locked=True)
        )
    ).mappings()
    stored = {row["id"]: dict(row) for row in rows}
    locked = {row.id for row in await tx.rows(sa.select(schedule.c.id).where(_of_code(tx, declared)))} - stored.keys()
    declared = {id: each for id, each in declared.items() if id not in locked}
    live = await _live_declarations(tx, runner_id)
    added = [id for id in sorted(declared) if id not in stored]
    if added:
        insert = tx.dialect.insert(schedule).on_conflict_do_nothing()
        await tx.execute(insert, [_new(declared[id]) for id in added])
    changed: list[str] = []
    kept: dict[str, list[str]] = {}
    for id in sorted(declared.keys() & stored.keys()):
        if _replaces(declared[id], stored[id], live):
            changed.append(id)
            kept[id] = await _redefine(tx, declared[id], stored[id])
    vanished = [
        id
        for id, row in stored.items()
        if row["module"] and not live.get(id) and row["paused_at"] is None and is_removed(id, row["module"])
    ]
    await _pause(tx, vanished)
    return Registered(added, changed, {id: names for id, names in kept.items() if names}, vanished)


async def has_changed(
    tx: Transaction, runner_id: int, declared: Mapping[str, DeclaredSchedule], is_removed: Callable[[str, str], bool]
) -> bool:
    """True if `register_schedules` would change something; it only reads.

    A runner asks this regularly: code that was older than the code of another runner counts when that has gone.
    """
    schedule = tx.tables.schedule
    columns = (schedule.c[name] for name in ("id", "declared", "replaced", "module", "paused_at", "paused_by"))
    stored = {
        row["id"]: dict(row) for row in (await tx.execute(sa.select(*columns).where(_of_code(tx, declared)))).mappings()
    }
    live = await _live_declarations(tx, runner_id)
    return any(id not in stored or _replaces(declared[id], stored[id], live) for id in declared) or any(
        row["module"] and not live.get(id) and row["paused_at"] is None and is_removed(id, row["module"])
        for id, row in stored.items()
    )


def _of_code(tx: Transaction, declared: Mapping[str, DeclaredSchedule]) -> sa.ColumnElement[bool]:
    """The condition that a schedule comes from any code, or has an id in this one."""
    column = tx.tables.schedule.c
    in_code = column.module.is_not(None)
    return tx.dialect.one_of(column.id, sorted(declared)) | in_code if declared else in_code


async def _live_declarations(tx: Transaction, runner_id: int) -> dict[str, set[str]]:
    """The fingerprints of the definitions that the other live runners have, by schedule id."""
    runner = tx.tables.runner
    is_other = (runner.c.lease_until > db_now()) & (runner.c.id != runner_id)
    declarations: dict[str, set[str]] = {}
    for row in await tx.rows(sa.select(runner.c.schedules).where(is_other)):
        for id, fingerprint in json.loads(row.schedules).items():
            declarations.setdefault(id, set()).add(fingerprint)
    return declarations


def _replaces(schedule: DeclaredSchedule, row: Mapping[str, Any], live: Mapping[str, set[str]]) -> bool:
    if row["declared"] == schedule.declaration:
        return bool(row["paused_by"] == BY)
    is_older = row["replaced"] == schedule.fingerprint
    stored = fingerprint_of(row["declared"]) if row["declared"] else ""
    return not (is_older and stored in live.get(schedule.id, ()))


def _new(schedule: DeclaredSchedule) -> dict[str, Any]:
    return schedule.spec.values() | {
        "id": schedule.id,
        "declared": schedule.declaration,
        "module": schedule.module,
    }


async def _redefine(tx: Transaction, schedule: DeclaredSchedule, row: Mapping[str, Any]) -> list[str]:
    """Replace a definition, except the columns that an operator edited, and return those."""
    before = json.loads(row["declared"]) if row["declared"] else {}
    new = schedule.spec.values()
    edited = [name for name in SPEC_COLUMNS if row[name] != before.get(name) and row[name] != new[name]]
    values: dict[str, Any] = {name: value for name, value in new.items() if name not in edited}
    if any(row[name] != values.get(name, row[name]) for name in ("rule", "timezone")):
        values["next_at"] = None  # the next tick of a runner computes it
    if row["paused_by"] == BY:  # it is in the code again
        values |= dict.fromkeys(("paused_at", "paused_until", "paused_by", "paused_why"))
    replaced = fingerprint_of(row["declared"]) if row["declared"] else None
    table = tx.tables.schedule
    change = sa.update(table).where(table.c.id == schedule.id)
    await tx.execute(
        change.values(
            **values,
            declared=schedule.declaration,
            module=schedule.module,
            replaced=replaced,
            error=None,
            version=next_version(table.c.version),
        )
    )
    return edited


async def _pause(tx: Transaction, ids: Sequence[str]) -> None:
    if not ids:
        return
    table = tx.tables.schedule
    values = {
        "paused_at": await clock(tx),
        "paused_until": None,
        "paused_by": BY,
        "paused_why": "it is no longer in the code",
        "next_at": None,
        "version": next_version(table.c.version),
    }
    await tx.execute(sa.update(table).where(tx.dialect.one_of(table.c.id, sorted(ids))).values(values))
