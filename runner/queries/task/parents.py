"""parents: the tasks that a task depends on, open and resolved."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.db.schema import is_open, is_state
from runner.db.transaction import Transaction
from runner.model.task import State
from runner.queries.counting import Count
from runner.queries.rows import as_text, moment, readable, text
from runner.queries.task_list.row import TaskRow, task_rows
from runner.store.dependencies.parents import parent_of

MOST = 20
"""Maximum number of parents to read."""

MOST_BLOCKED = 1_000
"""Maximum number of blocked tasks whose parents are looked up."""

SCAN_LIMIT = 20_000
"""Maximum number of open dependencies to scan for parents that have failed."""


@dataclass(frozen=True, slots=True)
class Parent:
    """One dependency of a task.

    Args:
        task: the parent; None if it is not submitted yet, or no longer exists.
        id: the parent's id, if known.
        handler: the parent's handler, if the dependency names a business key.
        key: the parent's business key.
        on_failure: the effect of a failed parent: wait, cancel or run.
        dependency_id: the id of the dependency, as an operator unblocks it.
        child: the id of the dependent task.
        open: True while the task waits for the parent.
        satisfied_by: the operator who removed the dependency; None if no operator did.
        in_order: True if the parent is the task before it in its order key.
        step: the step that called it; None for a parent of the submit.
        judged: True if its failure has had its effect: a task that was retried since waits for a retry of the parent.
    """

    task: TaskRow | None
    id: int | None
    handler: str | None
    key: str | None
    on_failure: str
    dependency_id: int = 0
    child: int = 0
    open: bool = True
    satisfied_by: str | None = None
    in_order: bool = False
    step: str | None = None
    judged: bool = False

    @property
    def name(self) -> str:
        """The name of a parent without a row."""
        return f"task {self.id}" if self.key is None else f"{self.handler} {self.key}"


async def parents(tx: Transaction, *children: int, closed: bool = False, limit: int = MOST) -> tuple[Parent, ...]:
    """Find the dependencies of tasks, in submit order.

    Args:
        closed: include resolved dependencies, after the open ones.
        limit: maximum number of dependencies.
    """
    dependency = tx.tables.dependency
    of_children = tx.dialect.one_of(dependency.c.task_id, children)
    condition = of_children if closed else of_children & is_open(dependency.c)
    # A business key can name a newer task by now; for a resolved dependency the recorded parent counts.
    current_id = sa.func.coalesce(parent_of(tx.tables, dependency), dependency.c.parent_id)
    parent_id = sa.case((is_open(dependency.c), current_id), else_=dependency.c.parent_id).label("parent")
    names = ("id", "task_id", "parent_handler", "parent_key", "on_failure", "satisfied_by", "in_order", "step")
    judged = dependency.c.parent_state.is_not(None) & (dependency.c.parent_id == current_id)
    columns = [*(dependency.c[name] for name in names), is_open(dependency.c).label("open"), parent_id]
    columns.append(judged.label("judged"))
    # Open dependencies first, then parents that did not succeed, then the rest.
    succeeded = sa.func.coalesce(is_state(dependency.c.parent_state, State.SUCCEEDED), sa.false())
    order = (sa.case((is_open(dependency.c), 0), (~succeeded, 1), else_=2), dependency.c.id)
    rows = await tx.rows(sa.select(*columns).where(condition).order_by(*order).limit(limit))
    tasks = {task.id: task for task in await task_rows(tx, [row.parent for row in rows if row.parent is not None])}
    return tuple(_parent(row, tasks.get(row.parent)) for row in rows)


def _parent(row: Any, task: TaskRow | None) -> Parent:
    return Parent(
        task=task,
        id=row.parent,
        handler=text(row.parent_handler),
        key=text(row.parent_key),
        on_failure=as_text(row.on_failure),
        dependency_id=row.id,
        child=row.task_id,
        open=bool(row.open),
        satisfied_by=text(row.satisfied_by),
        in_order=bool(row.in_order),
        step=text(row.step),
        judged=bool(row.judged),
    )


@dataclass(frozen=True, slots=True)
class StuckTasks:
    """The blocked tasks that wait for a dead or cancelled task, until an operator retries that one or unblocks them.

    Args:
        number: their number among the first blocked tasks.
        task: the id of one of them.
        parent: the id of a dead or cancelled task that it waits for.
        since: the time since when one of them waits so; None if unknown.
    """

    number: Count
    task: int
    parent: int
    since: datetime | None = None


async def stuck_tasks(tx: Transaction, most: int = MOST_BLOCKED) -> StuckTasks | None:
    """Find the blocked tasks that wait for a dead or cancelled task; None if there are none.

    Args:
        tx: an open transaction; at most four statements are executed, each along an index.
        most: maximum number of blocked tasks to look at, and of their dependencies on tasks that have failed; these are
            searched among the first SCAN_LIMIT open ones.
    """
    task, dependency, history = tx.tables.task.c, tx.tables.dependency.c, tx.tables.history.c
    blocked = await tx.rows(sa.select(task.id).where(is_state(task.state, State.BLOCKED)).limit(most))
    if not blocked:
        return None
    of_blocked = tx.dialect.one_of(dependency.task_id, [row[0] for row in blocked]) & is_open(dependency)
    columns = (dependency.task_id, dependency.parent_id, dependency.parent_state)
    row = sa.select(*columns).where(of_blocked).limit(SCAN_LIMIT).subquery().c
    failing = sa.select(row.task_id, row.parent_id).where(is_state(row.parent_state, State.DEAD, State.CANCELLED))
    pairs = await tx.rows(failing.order_by(row.task_id, row.parent_id).limit(most))
    final = is_state(history.state, State.DEAD, State.CANCELLED)  # others are being retried
    ids = sorted({row[1] for row in pairs})
    ends = sa.select(history.id, *readable(tx, [history.finished_at])).where(tx.dialect.one_of(history.id, ids), final)
    failed = {row[0]: moment(row[1]) for row in await tx.rows(ends)}
    stuck = [(row[0], row[1]) for row in pairs if row[1] in failed]
    if not stuck:
        return None
    tasks = sorted({task_id for task_id, _ in stuck})
    starts = sa.select(task.id, *readable(tx, [task.submitted_at])).where(tx.dialect.one_of(task.id, tasks))
    submitted = {row[0]: moment(row[1]) for row in await tx.rows(starts)}
    times = [(failed[parent], submitted.get(task_id)) for task_id, parent in stuck]
    since = min((max(ended, at) for ended, at in times if ended is not None and at is not None), default=None)
    return StuckTasks(Count(len(tasks), max(len(blocked), len(pairs)) >= most), *stuck[0], since)
