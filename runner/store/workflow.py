"""The row of a new workflow, and the tasks that a running task adds to its own."""

from collections.abc import Sequence
from functools import lru_cache

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.schema import Tables, is_open, is_state
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.errors import InvalidTask
from runner.model.task import BatchMember, NewTask, NewWorkflow, State
from runner.model.task_batch import TaskBatch
from runner.store.dependencies.parents import is_of_submit


def insert_workflow(frame: Frame, tasks: Sequence[NewTask]) -> Steps[tuple[Sequence[NewTask], int]]:
    """Insert the workflow that a submit creates.

    Args:
        tasks: at least one of them has a new workflow.

    Returns:
        The tasks with its id, and the id.

    Raises:
        InvalidTask: only some of the tasks belong to it, or they name two.
    """
    alike = [tasks.like] if isinstance(tasks, TaskBatch) else tasks
    new = {task.workflow for task in alike if isinstance(task.workflow, NewWorkflow)}
    if len(new) > 1 or any(task.workflow not in new for task in alike):
        raise InvalidTask(field="workflow", value=next(iter(new)).name, why="a submit creates at most one workflow")
    (own,) = new
    if own.of is not None and own.name is None:
        id = yield from _workflow_of(frame, own.of)
    else:
        id = yield from _inserted(frame, own.name, alike[0].submitted_by)
    if isinstance(tasks, TaskBatch):
        return TaskBatch(tasks.like._replace(workflow=id), tasks.payloads), id
    return [task._replace(workflow=id) for task in tasks], id


def _inserted(frame: Frame, name: str | None, submitted_by: str | None) -> Steps[int]:
    [(id,)] = yield Step(_insertion(frame.tables, frame.driver), {"name": name, "submitted_by": submitted_by})
    return int(id)


def _workflow_of(frame: Frame, task_id: int) -> Steps[int]:
    rows = yield Step(_membership(frame.tables, frame.driver), {"id": task_id})
    if not rows or rows[0][0] is None:
        why = f"task {task_id} belongs to no workflow: give the new one a name"
        raise InvalidTask(field="workflow", value=None, why=why)
    return int(rows[0][0])


def continued_task(tasks: Sequence[NewTask]) -> int | None:
    """The running task whose workflow new tasks continue; None without one."""
    return next((task.workflow.of for task in tasks if isinstance(task.workflow, NewWorkflow)), None)


def hold_dependents(frame: Frame, parent: int, tasks: Sequence[NewTask], ids: Sequence[int]) -> Steps[None]:
    """Let the tasks that wait for a running task wait for new tasks too: for those without a dependent among them.

    The task is live, and its row locked by the transaction of its handler, so its dependents stay blocked until then.

    Args:
        parent: the running task.
        ids: the ids of the new tasks.
    """
    positions = {
        each.parent.position for task in tasks for each in task.after or () if isinstance(each.parent, BatchMember)
    }
    last = sorted({id for position, id in enumerate(ids) if position not in positions})
    lock, addition, count = _holding(frame.tables, frame.driver)
    if not (yield Step(lock, {"parent": parent})):
        return
    yield Step(addition, frame.dialect.parameters("added", {"id": last}) | {"parent": parent})
    yield Step(count, {"parent": parent, "number": len(last)})


@lru_cache
def _membership(tables: Tables, driver: sa.Dialect) -> Prepared:
    id = sa.bindparam("id", type_=sa.BigInteger)
    return Prepared(sa.select(tables.task.c.workflow).where(tables.task.c.id == id), driver)


@lru_cache
def _holding(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared, Prepared]:
    """Lock the dependents of a task in the order of ids; add their dependencies on new tasks; count these."""
    task, dependency = tables.task, tables.dependency
    parent = sa.bindparam("parent", type_=sa.BigInteger)
    waits = (
        (dependency.c.parent_id == parent)
        & dependency.c.parent_key.is_(None)
        & is_open(dependency.c)
        & is_of_submit(dependency.c)
    )
    ids = sa.select(dependency.c.task_id).where(waits)
    blocked = task.c.id.in_(ids) & is_state(task.c.state, State.BLOCKED)
    lock = sa.select(task.c.id).where(blocked).order_by(task.c.id).with_for_update()
    added = DIALECTS[driver.name].rows("added", {"id": sa.BigInteger})
    own = sa.select(task.c.id).where(task.c.id == dependency.c.task_id, is_state(task.c.state, State.BLOCKED)).exists()
    rows = sa.select(dependency.c.task_id, added.c.id, dependency.c.on_failure).where(waits, own)
    addition = sa.insert(dependency).from_select(["task_id", "parent_id", "on_failure"], rows.order_by(added.c.id))
    number = sa.bindparam("number", type_=sa.Integer)
    count = sa.update(task).where(blocked).values(blocked_by=task.c.blocked_by + number)
    return Prepared(lock, driver), Prepared(addition, driver), Prepared(count, driver)


@lru_cache
def _insertion(tables: Tables, driver: sa.Dialect) -> Prepared:
    values = {name: sa.bindparam(name, type_=sa.Text) for name in ("name", "submitted_by")}
    return Prepared(sa.insert(tables.workflow).values(values).returning(tables.workflow.c.id), driver)
