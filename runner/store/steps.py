"""steps: the durable steps of tasks."""

from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.errors import locks_refused
from runner.db.lock_limits import ATTEMPT_LOCKS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, JsonText, db_later, db_now, seconds_until
from runner.model.step import StepKind, StepWrite, StoredStep
from runner.model.text_limits import ERROR_LIMIT, to_storable
from runner.store.notes import has_fence, progressed


class StepOwner(NamedTuple):
    """The attempt that writes a step.

    Args:
        holder: id of the runner.
        progressed: True if the step is the first one that this attempt completes: interruptions before do not count.
    """

    task_id: int
    fence: int
    attempt: int
    holder: int
    progressed: bool = False


@needs(Needs.PREPARED)
async def load_steps(tx: Transaction, task_id: int) -> list[StoredStep]:
    """Read the steps of a task."""
    rows = await tx.run(_load(tx.tables, tx.driver), {"task_id": task_id})
    return [StoredStep._make((*row[:7], bool(row[7]), *row[8:])) for row in rows]


@lru_cache
def _load(tables: Tables, driver: sa.Dialect) -> Prepared:
    step = tables.step.c
    columns = (step.name, step.kind, step.number, step.function, step.attempt, step.failures)
    left, child = seconds_until(step.due_at), tables.dependency.c
    called = (child.task_id == step.task_id) & (child.step == step.name)
    statement = sa.select(*columns, left, step.done_at.is_not(None), sa.cast(step.result, sa.Text), child.parent_id)
    statement = statement.add_columns((-seconds_until(step.at)).label("age"))
    statement = statement.select_from(tables.step.outerjoin(tables.dependency, called))
    return Prepared(statement.where(step.task_id == sa.bindparam("task_id", type_=sa.BigInteger)), driver)


@lru_cache
def lock_of(tables: Tables, driver: sa.Dialect) -> Prepared:
    """Lock the row of the task of a step if the runner still holds it, and return its id and workflow."""
    limit = DIALECTS[driver.name].lock_limit(ATTEMPT_LOCKS)
    columns = (tables.task.c.id, tables.task.c.workflow)
    return Prepared(sa.select(*columns).where(has_fence(tables), limit).with_for_update(), driver)


@needs(Needs.PREPARED)
async def save_step(tx: Transaction, owner: StepOwner, write: StepWrite) -> bool:
    """Store a step if the runner still holds the task.

    Returns:
        False if the task no longer belongs to this runner.

    Raises:
        RowLocked: another transaction locks the row of the task; nothing was changed.
    """
    with locks_refused():
        return await tx.follow(saving(tx, owner, write, waits=False))


def saving(frame: Frame, owner: StepOwner, write: StepWrite, *, waits: bool) -> Steps[bool]:
    """Store a step in any transaction; False if the task no longer belongs to this runner.

    Args:
        waits: wait for the lock of the row of the task, as the transaction of a handler does.
    """
    values = owner._asdict() | write._asdict() | {"error": write.error and to_storable(write.error, ERROR_LIMIT)}
    if not (yield Step(_insertion(frame.tables, frame.driver, waits=waits), values)):
        return False
    if owner.progressed and owner.fence > 1:
        yield Step(progressed(frame.tables, frame.driver), {"task_id": owner.task_id})
    return True


TYPES: dict[str, Any] = {
    "name": sa.Text,
    "kind": sa.Text,
    "number": sa.Integer,
    "function": sa.Text,
    "signal": sa.Text,
    "attempt": sa.Integer,
    "failures": sa.Integer,
    "error": sa.Text,
    "due_in": sa.Float,
    "done": sa.Boolean,
    "duration": sa.Float,
    "result": sa.Text,
}


@lru_cache
def _insertion(tables: Tables, driver: sa.Dialect, *, waits: bool) -> Prepared:
    """Insert from the locked row of the task: a rescue that has begun finishes before, and a later one waits.

    A step that is done stays, except for its own attempt, which received no answer to its commit.
    """
    table, dialect = tables.step, DIALECTS[driver.name]
    given = {name: sa.cast(sa.bindparam(name, type_=kind), kind) for name, kind in TYPES.items()}
    now = sa.type_coerce(db_now(), table.c.at.type)
    columns: dict[str, Any] = {
        name: given[name] for name in ("name", "kind", "number", "function", "signal", "attempt", "failures")
    }
    columns |= {name: given[name] for name in ("error", "duration")}
    columns["result"] = sa.cast(given["result"], JsonText)
    columns["due_at"] = db_later(db_now(), given["due_in"])
    columns["done_at"] = sa.case((given["done"], now))
    columns["at"] = now
    row = sa.select(tables.task.c.id, tables.task.c.fence, *columns.values())
    limits = [] if waits else [dialect.lock_limit(ATTEMPT_LOCKS)]
    locked = row.where(has_fence(tables), *limits).with_for_update()
    insert = dialect.insert(table).from_select(["task_id", "fence", *columns], locked)
    new = {name: insert.excluded[name] for name in ("fence", *columns) if name != "name"}
    new["due_at"] = sa.case(
        (table.c.kind == sa.literal_column(f"'{StepKind.FUNCTION}'"), new["due_at"]), else_=table.c.due_at
    )
    statement = insert.on_conflict_do_update(
        index_elements=table.primary_key,
        set_=new,
        where=table.c.done_at.is_(None) | (table.c.fence == insert.excluded.fence),
    )
    return Prepared(statement.returning(table.c.name), driver)


def is_suspended(task_id: Any, tables: Tables) -> sa.ColumnElement[bool]:
    """The condition that a task sleeps, or waits for a signal."""
    step = tables.step.c
    pending = (step.task_id == task_id) & step.done_at.is_(None) & step.signal.is_not(None)
    return sa.exists(sa.select(step.name).where(pending))


def has_begun(task_id: Any, tables: Tables) -> sa.ColumnElement[bool]:
    """The condition that a task has stored a step or a checkpoint, from which its next attempt continues."""
    records = (tables.step.c, tables.checkpoint.c)
    stored = [sa.select(record.task_id).where(record.task_id == task_id).offset(NO_JOIN) for record in records]
    return sa.or_(*(each.exists() for each in stored))
