"""The row of a new workflow."""

from collections.abc import Sequence
from functools import lru_cache

import sqlalchemy as sa

from runner.db.schema import Tables
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.errors import InvalidTask
from runner.model.task import NewTask, NewWorkflow
from runner.model.task_batch import TaskBatch


def insert_workflow(frame: Frame, tasks: Sequence[NewTask]) -> Steps[tuple[Sequence[NewTask], int | None]]:
    """Insert the workflow that a submit creates.

    Returns:
        The tasks with its id, and the id; the same tasks and None if they create none.

    Raises:
        InvalidTask: only some of the tasks belong to it, or they name two.
    """
    alike = [tasks.like] if isinstance(tasks, TaskBatch) else tasks
    new = {task.workflow for task in alike if isinstance(task.workflow, NewWorkflow)}
    if not new:
        return tasks, None
    if len(new) > 1 or any(task.workflow not in new for task in alike):
        raise InvalidTask(field="workflow", value=next(iter(new)).name, why="a submit creates at most one workflow")
    values = {"name": new.pop().name, "submitted_by": alike[0].submitted_by}
    [(id,)] = yield Step(_insertion(frame.tables, frame.driver), values)
    if isinstance(tasks, TaskBatch):
        return TaskBatch(tasks.like._replace(workflow=id), tasks.payloads), id
    return [task._replace(workflow=id) for task in tasks], id


@lru_cache
def _insertion(tables: Tables, driver: sa.Dialect) -> Prepared:
    values = {name: sa.bindparam(name, type_=sa.Text) for name in ("name", "submitted_by")}
    return Prepared(sa.insert(tables.workflow).values(values).returning(tables.workflow.c.id), driver)
