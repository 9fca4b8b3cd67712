"""parents: what a blocked task waits for."""

from dataclasses import dataclass

import sqlalchemy as sa

from runner.store.observe.legible import text, words
from runner.store.observe.tasks import TaskRow, task_rows
from runner.store.transaction import Transaction

MOST = 20
"""Parents that are told of."""


@dataclass(frozen=True, slots=True)
class Parent:
    """Something that a task waits for.

    Args:
        task: the task that it is; None when it was not submitted yet, or is gone.
        id: of that task, where it is known.
        handler: of that task, where it is known by its business key.
        key: its business key.
        on_failure: what its failure means.
    """

    task: TaskRow | None
    id: int | None
    handler: str | None
    key: str | None
    on_failure: str


async def parents(tx: Transaction, id: int) -> tuple[Parent, ...]:
    """Find what a task still waits for, in the order in which it was said; at most MOST."""
    dependency = tx.tables.dependency.c
    columns = [dependency[name] for name in ("parent_id", "parent_handler", "parent_key", "on_failure")]
    waits = (dependency.task_id == id) & dependency.satisfied_at.is_(None)
    rows = await tx.rows(sa.select(*columns).where(waits).order_by(dependency.id).limit(MOST))
    found = {task.id: task for task in await task_rows(tx, [row[0] for row in rows if row[0] is not None])}
    return tuple(
        Parent(found.get(parent_id), parent_id, text(handler), text(key), words(on_failure))
        for parent_id, handler, key, on_failure in rows
    )
