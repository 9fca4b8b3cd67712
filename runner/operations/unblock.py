"""unblock: remove open dependencies of blocked tasks."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import is_open
from runner.db.transaction import Transaction
from runner.db.types import db_now
from runner.model.task import State
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor, Result, Skipped, Target
from runner.operations.targets import LockedTask, change, lock_targets, read_tasks
from runner.queries.rows import as_text
from runner.store.dependencies.resolve import unblock_dependents


class Closed(NamedTuple):
    """A removed dependency: the name of its parent, and its id."""

    parent: str
    id: int


async def unblock(tx: Transaction, targets: Iterable[Target], by: Actor, dependency_id: int | None = None) -> Result:
    """Resolve the dependencies of blocked tasks as if the parents had succeeded.

    Args:
        by: the author; the dependency stores the name too.
        dependency_id: the id of the only dependency to remove, which must belong to one of the tasks; None for all.

    Returns:
        The result; a task that still has open dependencies counts as changed and stays blocked.
    """
    tasks, result = await lock_targets(tx, "unblock", targets)
    closed = await _close(tx, [task.id for task in tasks], by, dependency_id)
    changed = [task.id for task in tasks if dependency_id is None or task.id in closed]
    result.skipped += [
        Skipped(task.id, f"it has no open dependency {dependency_id}") for task in tasks if task.id not in changed
    ]
    released = set(await unblock_dependents(tx, {id: len(closed[id]) for id in changed}))
    await change(tx, [id for id in changed if id not in released])
    unblocked = await read_tasks(tx, sorted(released), locked=False)
    await record(
        tx, by, [_entry(task, closed[task.id], unblocked.get(task.id)) for task in tasks if task.id in changed]
    )
    result.changed = changed
    return result


async def _close(tx: Transaction, ids: Sequence[int], by: Actor, dependency_id: int | None) -> dict[int, list[Closed]]:
    """Close open dependencies, and return them by task."""
    dependency = tx.tables.dependency
    of_tasks = tx.dialect.one_of(dependency.c.task_id, ids) & is_open(dependency.c)
    condition = of_tasks if dependency_id is None else of_tasks & (dependency.c.id == dependency_id)
    update = sa.update(dependency).where(condition).values(satisfied_at=db_now(), satisfied_by=by.stored.operator)
    columns = (
        dependency.c.task_id,
        dependency.c.id,
        dependency.c.parent_id,
        dependency.c.parent_handler,
        dependency.c.parent_key,
    )
    closed: dict[int, list[Closed]] = defaultdict(list)
    for task_id, id, parent_id, handler, key in await tx.rows(update.returning(*columns)):
        parent = f"task {parent_id}" if key is None else f"{as_text(handler)} {as_text(key)}"
        closed[task_id].append(Closed(parent, id))
    return closed


def _entry(task: LockedTask, closed: Sequence[Closed], unblocked: LockedTask | None) -> AuditEntry:
    parents = sorted(dependency.parent for dependency in closed)
    names = parents[:MAX_NAMES] + ([f"and {len(parents) - MAX_NAMES} more"] * (len(parents) > MAX_NAMES))
    ids = sorted(dependency.id for dependency in closed)
    before: dict[str, Any] = {"state": State.BLOCKED, "waited_for": names, "dependencies": ids, "fence": task.fence}
    after = {"state": (unblocked or task).state, "waited_for": [], "fence": task.fence}
    if unblocked is not None and unblocked.run_at != task.run_at:
        before["run_at"], after["run_at"] = task.run_at, unblocked.run_at
    return AuditEntry("unblock", before, after, task.id)


MAX_NAMES = 20
"""Maximum number of parents in an audit entry."""
