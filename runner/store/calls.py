"""calls: the tasks that a task submits as its children, and whose ends it waits for."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.errors import locks_refused
from runner.db.schema import Tables, state_literal
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, db_now, next_version
from runner.errors import InvalidStep
from runner.model.step import StepWrite
from runner.model.task import MOVES, NewTask, SubmitResult
from runner.store.dependencies.cycles import dependents_below
from runner.store.steps import StepOwner, lock_of, saving
from runner.store.submit import submit_with_result


async def submit_child(
    tx: Transaction, owner: StepOwner, call: StepWrite, task: NewTask, *, notify: bool = True
) -> SubmitResult | None:
    """Submit the child of a call, with the step and a dependency on it that does not block its task yet.

    Args:
        call: the step, which is not done.
        task: the child. It joins the workflow of the task that calls it.
        notify: wake listening runners (PostgreSQL).

    Returns:
        The id of the child, or of the task that holds its unique key; None if the caller no longer belongs to this
        runner.

    Raises:
        InvalidStep: the child would wait for the task that calls it.
        InvalidTask, DuplicateTask: see `submit`; nothing was written.
        RowLocked: another transaction locks the row of the task; nothing was changed.
    """
    with locks_refused():
        rows = await tx.run(lock_of(tx.tables, tx.driver), owner._asdict())
        if not rows:
            return None
        if task.workflow is None:
            task = task._replace(workflow=rows[0][1])
        result = await submit_with_result(tx, [task], notify=notify)
        (child,) = result.ids
        if result.duplicates or task.after or task.order_key:
            await _refuse_cycle(tx, owner.task_id, child, call.name)
        await tx.follow(saving(tx, owner, call, waits=False))
        values = {"task_id": owner.task_id, "child": child, "step": call.name}
        await tx.run(_insertion(tx.tables, tx.driver), values)
    return result


async def _refuse_cycle(tx: Transaction, parent: int, child: int, name: str) -> None:
    below = await tx.follow(dependents_below(tx, [(parent, None, None)]))
    if child == parent or child in {dependent.id for dependent in below}:
        path = "the task itself" if child == parent else f"task {child}, which waits for this one"
        raise InvalidStep(id=parent, name=name, why=f"it calls {path}: neither would ever start")


async def block_callers(tx: Transaction, children: Mapping[int, Sequence[int]]) -> None:
    """Block waiting tasks until their children have ended; a task whose children have all ended stays as it is.

    A child that ends while this transaction is open sees no open dependency: the caller of this function looks for it
    after the commit.

    Args:
        tx: a writing transaction with locks on these tasks.
        children: the ids of the children by task.
    """
    if not children:
        return
    reopening, blocking = _blocking(tx.tables, tx.driver)
    ids = sorted({child for each in children.values() for child in each})
    parameters = tx.dialect.parameters("callers", {"id": sorted(children)})
    live = await tx.run(reopening, parameters | tx.dialect.parameters("children", {"id": ids}))
    if callers := sorted({row[0] for row in live}):
        await tx.run(blocking, tx.dialect.parameters("callers", {"id": callers}))


@lru_cache
def _insertion(tables: Tables, driver: sa.Dialect) -> Prepared:
    values = {
        "task_id": sa.bindparam("task_id", type_=sa.BigInteger),
        "parent_id": sa.bindparam("child", type_=sa.BigInteger),
        "step": sa.bindparam("step", type_=sa.Text),
        "on_failure": sa.literal_column("'run'"),
        "satisfied_at": db_now(),
    }
    return Prepared(sa.insert(tables.dependency).values(values), driver)


@lru_cache
def _blocking(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared]:
    """Open the dependencies on live children, and block the tasks that have such ones."""
    dialect, task, dependency = DIALECTS[driver.name], tables.task, tables.dependency
    child = task.alias("child")
    lives = sa.select(child.c.id).where(child.c.id == dependency.c.parent_id).offset(NO_JOIN).exists()
    named = (dialect.in_batch(dependency.c.task_id, "callers"), dialect.in_batch(dependency.c.parent_id, "children"))
    opened = {"satisfied_at": sa.null(), "satisfied_by": sa.null(), "parent_state": sa.null()}
    reopening = sa.update(dependency).where(*named, dependency.c.step.is_not(None), lives).values(opened)
    of_task = (dependency.c.task_id == task.c.id) & dependency.c.satisfied_at.is_(None)
    number = sa.select(sa.func.count()).where(of_task).scalar_subquery()
    values = {
        "state": state_literal(MOVES["reblock"].target),
        "blocked_by": number,
        "version": next_version(task.c.version),
    }
    blocking = sa.update(task).where(dialect.in_batch(task.c.id, "callers")).values(values)
    return Prepared(reopening.returning(dependency.c.task_id), driver), Prepared(blocking, driver)
