"""pause: pause and resume queues and handlers."""

from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.db.types import EARLIEST, bounded
from runner.errors import InvalidEdit, InvalidTask
from runner.filter.fields import Operator, suggestion
from runner.filter.parse import Filter, Term
from runner.model.task import NewTask
from runner.model.text_limits import to_storable
from runner.operations.audit_log import NAME_LIMIT, REASON_LIMIT, AuditEntry, record
from runner.operations.results import Actor
from runner.policy.claim_policy import PAUSED
from runner.queries.registries import MOST, registry_entries
from runner.queries.rows import as_text, moment, readable, text, texts

MOST_NAMES = 5
"""Maximum number of names in a filter that are looked up."""


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
        tx: a writing transaction.
        target: the queue or handler; it need not have tasks yet.
        by: the author and the reason.
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
        "paused_by": to_storable(by.operator, NAME_LIMIT),
        "paused_why": paused.why,
    }
    await _enter(tx, target, values)
    await record(tx, by, [AuditEntry("pause", before, values, target=str(target))])
    return paused


async def preview_pause(tx: Transaction, target: PauseTarget, by: Actor, until: datetime | None = None) -> Paused:
    """Preview a pause; see `pause`.

    Args:
        tx: an open transaction.
        target: the queue or handler.
        by: the author and the reason.
        until: when the pause would end automatically, aware; None to keep the current end, or for never.

    Raises:
        InvalidEdit: as in `pause`.
    """
    await _check(tx, target, until)
    return _paused(await pause_of(tx, target, locked=False), by, until)


def _paused(before: Mapping[str, Any], by: Actor, until: datetime | None) -> Paused:
    why = before.get("paused_why") if by.reason is None else to_storable(by.reason, REASON_LIMIT)
    return Paused(until or before.get("paused_until"), why, bool(before))


async def _check(tx: Transaction, target: PauseTarget, until: datetime | None) -> datetime:
    """Validate the pause and return the database's time."""
    _check_name(target)
    now = await clock(tx)
    if until is not None and not (until.tzinfo and now < until and bounded(until)):
        raise InvalidEdit(field="the end of the pause", value=str(until), why="it must be in the future")
    return now


async def resume(tx: Transaction, target: PauseTarget, by: Actor) -> bool:
    """Hand out tasks of a queue or handler again.

    Args:
        tx: a writing transaction.
        target: the queue or handler.
        by: the author.

    Returns:
        False if it was not paused, and nothing was changed.
    """
    before = await pause_of(tx, target)
    if before:
        await pause_set(tx, target, {})
        await record(tx, by, [AuditEntry("resume", before, {}, target=str(target))])
    return bool(before)


def _check_name(target: PauseTarget) -> None:
    from runner.store.validation import (
        check,
    )  # imports the task options, which the console's first screen does not need

    try:
        check(NewTask(target.name))
    except InvalidTask as error:
        raise InvalidEdit(**error.fields | {"field": f"the name of a {target.kind}"}) from error


def registry_of(tx: Transaction, target: PauseTarget) -> sa.Table:
    """The registry table of a queue or handler."""
    return tx.tables.queue if target.kind is PauseKind.QUEUE else tx.tables.handler


async def pause_set(tx: Transaction, target: PauseTarget, values: Mapping[str, Any]) -> None:
    """Set the pause of a registry_entries queue or handler; empty values remove it."""
    registry = registry_of(tx, target)
    statement = sa.update(registry).where(registry.c.name == target.name)
    await tx.execute(statement.values(dict.fromkeys(PAUSE) | dict(values)))


async def pause_of(tx: Transaction, target: PauseTarget, *, locked: bool = True) -> dict[str, Any]:
    """The pause in force; empty if there is none."""
    registry = registry_of(tx, target)
    columns = readable(tx, [registry.c[name] for name in PAUSE])
    statement = sa.select(*columns).where(registry.c.name == target.name, PAUSED.is_paused(registry))
    row = (await tx.execute(statement.with_for_update() if locked else statement)).mappings().one_or_none()
    times = ("paused_at", "paused_until")
    return {name: (moment if name in times else text)(row[name]) for name in PAUSE} if row else {}


async def _enter(tx: Transaction, target: PauseTarget, values: dict[str, Any]) -> None:
    registry = registry_of(tx, target)
    # No runner has ever had a handler whose entry was created by a pause.
    unseen = {"last_seen_at": EARLIEST} if target.kind is PauseKind.HANDLER else {}
    insert = tx.dialect.insert(registry)
    insert = insert.values(name=target.name, **values, **unseen)
    await tx.execute(insert.on_conflict_do_update(index_elements=registry.primary_key, set_=values))


async def name_warning(tx: Transaction, target: PauseTarget, *, if_similar: bool = False) -> str:
    """Warn about a new name, with a similar known one.

    Args:
        tx: an open transaction.
        target: the queue or handler.
        if_similar: warn only if there is a similar name.

    Returns:
        A clause; empty if a task, runner or pause has used the name.
    """
    from runner.queries.task_list.search import find  # The first data of the console does not need it.
    from runner.store.lanes import survey

    runner = tx.tables.runner.c
    column = runner.queues if target.kind is PauseKind.QUEUE else runner.handlers
    names = {*await registry_entries(tx, registry_of(tx, target))}
    names.update(name for row in await tx.rows(sa.select(column)) for name in texts(row[0]))
    if target.name in names or (await find(tx, Filter((Term(target.kind, Operator.EQ, target.name),)), 1)).ids:
        return ""
    names.update(as_text(getattr(head.lane, target.kind)) for head in await survey(tx))
    return _unknown(target, names, if_similar=if_similar)


async def handler_warning(tx: Transaction, name: str) -> str:
    """Warn about a handler that no runner ever had, as `name_warning` does, for tasks that need one.

    Args:
        tx: an open transaction.
        name: name of the handler.

    Returns:
        A clause; empty if a runner had the handler, or if no runner has started yet. A task does not make it known.
    """
    table = tx.tables.handler.c
    registered = sa.select(table.name).where(table.last_seen_at > sa.literal(EARLIEST, table.last_seen_at.type))
    if await tx.scalar(registered.where(table.name == name)) is not None:
        return ""
    names = {as_text(row[0]) for row in await tx.rows(registered.order_by(table.name).limit(MOST))}
    return _unknown(PauseTarget(PauseKind.HANDLER, name), names) if names else ""


def _unknown(target: PauseTarget, names: Collection[str], *, if_similar: bool = False) -> str:
    similar = suggestion(target.name, tuple(sorted(names)))
    is_queue = target.kind is PauseKind.QUEUE
    clause = f"{target} has never been used" if is_queue else f"no runner ever had {target}"
    return f"{clause}{similar}" if similar or not if_similar else ""


async def pause_note(tx: Transaction, target: PauseTarget) -> str:
    """Warn about a pause of a name that is new: it may be misspelled, or meant for tasks to come.

    Args:
        tx: an open transaction.
        target: the queue or handler.

    Returns:
        A clause; empty if a task, runner or pause has used the name.
    """
    warning = await name_warning(tx, target)
    return f"{warning}; the pause holds its first tasks back" if warning else ""


async def filter_warnings(tx: Transaction, task_filter: Filter) -> list[str]:
    """Warn about names of queues and handlers in a filter that are new and similar to known ones.

    A filter may name a queue that has no tasks yet: a script prints no warning then.

    Args:
        tx: an open transaction; a few statements per name, for MOST_NAMES of them.
        task_filter: a filter that nothing matches.
    """
    kinds = {kind.value: kind for kind in PauseKind}
    targets = [
        PauseTarget(kinds[term.field], str(name))
        for term in task_filter.terms
        if term.field in kinds and term.operator in (Operator.EQ, Operator.IN) and not term.negated
        for name in (term.value if isinstance(term.value, tuple) else (term.value,))
    ]
    warnings = [await name_warning(tx, target, if_similar=True) for target in targets[:MOST_NAMES]]
    return [warning for warning in warnings if warning]
