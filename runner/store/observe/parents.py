"""parents: what a task waits for, or waited for."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from runner.schema import is_state
from runner.store.observe.legible import text, words
from runner.store.observe.tasks import TaskRow, task_rows
from runner.store.parentage import is_open, parent_of
from runner.store.transaction import Transaction
from runner.task import State

MOST = 20
"""Parents that are told of."""


@dataclass(frozen=True, slots=True)
class Parent:
    """Something that a task waits for, or waited for.

    Args:
        task: the task that it is; None when it was not submitted yet, or is gone.
        id: of that task, where it is known.
        handler: of that task, where it is named by its business key.
        key: its business key.
        on_failure: what its failure means: wait, cancel or run.
        edge: the number by which an operator can let go of it.
        child: the id of the task that waits.
        open: the task still waits for it.
        satisfied_by: the operator who let go of it; None when nobody did.
    """

    task: TaskRow | None
    id: int | None
    handler: str | None
    key: str | None
    on_failure: str
    edge: int = 0
    child: int = 0
    open: bool = True
    satisfied_by: str | None = None

    @property
    def name(self) -> str:
        """What it is called where there is no task to name."""
        return f"task {self.id}" if self.key is None else f"{self.handler} {self.key}"


async def parents(tx: Transaction, *children: int, closed: bool = False, limit: int = MOST) -> tuple[Parent, ...]:
    """Find what tasks wait for, in the order in which it was said.

    Args:
        tx: an open transaction.
        children: the tasks that wait.
        closed: also what they do not wait for any more, after the others.
        limit: the most to tell of.
    """
    edge = tx.tables.dependency
    theirs = tx.dialect.one_of(edge.c.task_id, children)
    wanted = theirs if closed else theirs & is_open(edge.c)
    # A handler and a key stand for another task every day; what was waited for once was the one that is written down.
    now = sa.func.coalesce(parent_of(tx.tables, edge), edge.c.parent_id)
    meant = sa.case((is_open(edge.c), now), else_=edge.c.parent_id).label("meant")
    names = ("id", "task_id", "parent_handler", "parent_key", "on_failure", "satisfied_by")
    columns = [*(edge.c[name] for name in names), is_open(edge.c).label("open"), meant]
    # What is waited for, then what did not end well, then the rest.
    well = sa.func.coalesce(is_state(edge.c.parent_state, State.SUCCEEDED), sa.false())
    order = (sa.case((is_open(edge.c), 0), (~well, 1), else_=2), edge.c.id)
    rows = await tx.rows(sa.select(*columns).where(wanted).order_by(*order).limit(limit))
    found = {task.id: task for task in await task_rows(tx, [row.meant for row in rows if row.meant is not None])}
    return tuple(_parent(row, found.get(row.meant)) for row in rows)


def _parent(row: Any, task: TaskRow | None) -> Parent:
    return Parent(
        task=task,
        id=row.meant,
        handler=text(row.parent_handler),
        key=text(row.parent_key),
        on_failure=words(row.on_failure),
        edge=row.id,
        child=row.task_id,
        open=bool(row.open),
        satisfied_by=text(row.satisfied_by),
    )
