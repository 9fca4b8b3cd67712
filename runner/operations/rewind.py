"""rewind: let a task continue from an earlier checkpoint, or from an earlier step."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import db_now
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor, Result, Skipped, Target
from runner.operations.targets import LockedTask, change, lock_targets
from runner.operations.written_rows import write_rows
from runner.store.dependencies.resolve import unblock_dependents


async def rewind(tx: Transaction, targets: Iterable[Target], number: int, by: Actor) -> Result:
    """Store copies of earlier checkpoints as the last ones: the next attempts continue from them.

    No checkpoint is deleted, so that a second rewind returns to the present one.

    Args:
        targets: the tasks, with the versions that the operator saw. A running task is skipped, because its handler
            continues from memory.
    """
    tasks, result = await lock_targets(tx, "rewind", targets)
    entries = [await copy_checkpoint(tx, task, number, result) for task in tasks]
    await record(tx, by, [entry for entry in entries if entry is not None])
    return result


async def copy_checkpoint(
    tx: Transaction, task: LockedTask, number: int, result: Result, last_known: int | None = None
) -> AuditEntry | None:
    """Store a copy of an earlier checkpoint as the last one.

    Args:
        result: receives the task, or the reason why it is skipped.
        last_known: skip the task if this is not its last checkpoint; None for any.

    Returns:
        The entry for the audit; None if the task is skipped.
    """
    table, numbers = tx.tables.checkpoint, await checkpoint_numbers(tx, task.id)
    last = numbers[-1] if numbers else 0
    why = checkpoint_objection(numbers, number)
    if number in numbers and last_known not in (None, last):
        why = f"it has stored checkpoint {last} since"
    if why is not None:
        result.skipped.append(Skipped(task.id, why))
        return None
    copied = sa.select(table.c.task_id, sa.literal(last + 1), table.c.fence, table.c.attempt, table.c.state)
    copied = copied.where(table.c.task_id == task.id, table.c.number == number)
    await write_rows(tx, sa.insert(table).from_select(["task_id", "number", "fence", "attempt", "state"], copied))
    if not task.state.final:
        await change(tx, [task.id])
    result.changed.append(task.id)
    return AuditEntry("rewind", {"checkpoint": last}, {"checkpoint": last + 1, "copy_of": number}, task.id)


async def checkpoint_numbers(tx: Transaction, id: int) -> list[int]:
    """Read the numbers of the checkpoints of a task, the oldest first."""
    table = tx.tables.checkpoint
    statement = sa.select(table.c.number).where(table.c.task_id == id).order_by(table.c.number)
    return [row.number for row in await tx.rows(statement)]


def checkpoint_objection(numbers: Sequence[int], number: int) -> str | None:
    """The reason why a task with some checkpoints cannot return to one; None if it can."""
    if number not in numbers:
        return f"it has no checkpoint {number}; its checkpoints: {', '.join(map(str, numbers)) or 'none'}"
    return f"checkpoint {number} is its last one already" if number == numbers[-1] else None


FORGET = "forget_steps"
"""The audit verb of a rewind to a step. It has no undo: the results of the steps are gone."""


async def forget_steps(tx: Transaction, targets: Iterable[Target], name: str, by: Actor) -> Result:
    """Forget a step and those that were written after it: the next attempts run them again.

    A task that waits for one of them is due now. A signal that a forgotten wait has received stays received. A child of
    a forgotten call continues, and the call submits another one.

    Args:
        targets: the tasks, with the versions that the operator saw. A running task is skipped, because its handler
            continues from memory.
        name: name of the step.
    """
    tasks, result = await lock_targets(tx, "rewind", targets)
    entries: list[AuditEntry] = []
    table = tx.tables.step
    for task in tasks:
        places = await step_places(tx, task.id)
        later = steps_from(places, name)
        if not later:
            result.skipped.append(Skipped(task.id, f"it has no step {name}"))
            continue
        gone = (table.c.task_id == task.id) & tx.dialect.one_of(table.c.name, later)
        await write_rows(tx, sa.delete(table).where(gone).returning(table.c.name), len(later))
        await _forget_children(tx, task, later)
        if not task.state.final:
            pending = {place.name for place in places if place.pending}
            await change(tx, [task.id], **({} if pending.isdisjoint(later) else {"run_at": db_now()}))
        entries.append(AuditEntry(FORGET, {"steps": ", ".join(sorted(later))}, {}, task.id))
        result.changed.append(task.id)
    await record(tx, by, entries)
    return result


async def _forget_children(tx: Transaction, task: LockedTask, steps: Sequence[str]) -> None:
    """Let a task call other children. Those that it has called continue."""
    dependency = tx.tables.dependency
    called = (dependency.c.task_id == task.id) & tx.dialect.one_of(dependency.c.step, steps)
    rows = await tx.rows(sa.select(dependency.c.satisfied_at).where(called))
    await tx.execute(sa.delete(dependency).where(called))
    if waited_for := sum(row.satisfied_at is None for row in rows):
        await unblock_dependents(tx, {task.id: waited_for})


class StepPlace(NamedTuple):
    """The place of a step among the others of its task.

    Args:
        number: position among the steps of the handler, from 1; None for one of another asyncio task or thread.
        at: when it was written last.
        pending: True if it sleeps, waits for a signal, or waits for its retry.
    """

    name: str
    number: int | None
    at: datetime
    pending: bool = False


async def step_places(tx: Transaction, id: int) -> list[StepPlace]:
    """Read the places of the steps of a task, the oldest first."""
    step = tx.tables.step.c
    pending = step.done_at.is_(None) & (step.signal.is_not(None) | (step.due_at > db_now()))
    columns = (step.name, step.number, step.at, pending)
    statement = sa.select(*columns).where(step.task_id == id).order_by(step.at, step.number)
    return [StepPlace(*row) for row in await tx.rows(statement)]


def steps_from(places: Sequence[StepPlace], name: str) -> list[str]:
    """The names of a step and of those that were written after it; empty if there is no such step."""
    first = next((place for place in places if place.name == name), None)
    if first is None:
        return []
    numbered = [place.number for place in (first, *places) if place.number is not None and place.at >= first.at]
    least = first.number if first.number is not None else min(numbered, default=None)
    return [place.name for place in places if _is_later(place, first.at, least)]


def _is_later(place: StepPlace, at: datetime, number: int | None) -> bool:
    """True for a step from a position on; for one without a position, from a time on."""
    return place.at >= at if place.number is None or number is None else place.number >= number
