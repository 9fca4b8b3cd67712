"""notes: the checkpoints, the progress and the log of attempts."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.errors import locks_refused
from runner.db.lock_limits import ATTEMPT_LOCKS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import Instant, JsonText, db_now
from runner.model.text_limits import to_storable

KEPT_CHECKPOINTS = 10
"""Checkpoints that a task keeps: the last ones."""


LINE_LIMIT = 2 * 1024
"""Maximum size of a log line in bytes."""


STACK_LEVEL = "stack"
"""The level of the lines of a stack."""


class Checkpoint(NamedTuple):
    """A state to store.

    Args:
        number: number of the checkpoint, from 1.
        state: JSON text.
    """

    task_id: int
    fence: int
    attempt: int
    number: int
    state: str


class Progress(NamedTuple):
    """The progress of an attempt.

    Args:
        done: finished units.
        total: all units; None if unknown.
        unit: name of the units.
        rate: units per second; None if unknown.
    """

    task_id: int
    fence: int
    done: float
    total: float | None
    unit: str | None
    rate: float | None


class LogLine(NamedTuple):
    """A line of the log of an attempt.

    Args:
        number: number of the line, from 1.
        at: time by the clock of the runner.
        level: name of the level, in lower case.
        line: text, without the values of secret fields.
    """

    task_id: int
    fence: int
    number: int
    attempt: int
    at: datetime
    level: str
    line: str


async def save_checkpoint(tx: Transaction, holder: int, checkpoint: Checkpoint) -> bool:
    """Store a checkpoint if the runner still holds the task.

    Args:
        tx: a writing transaction; one statement is executed, and more for the first checkpoint of an attempt and for
            one that replaces an old one.

    Returns:
        False if the task no longer belongs to this runner.

    Raises:
        RowLocked: another transaction locks the row of the task; nothing was changed.
    """
    parameters = checkpoint._asdict() | {"holder": holder}
    with locks_refused():
        if not await tx.run(_insertion(tx.tables, tx.driver), parameters):
            return False
    if checkpoint.number > KEPT_CHECKPOINTS:
        table = tx.tables.checkpoint
        old = table.c.number <= checkpoint.number - KEPT_CHECKPOINTS
        await tx.execute(sa.delete(table).where(table.c.task_id == checkpoint.task_id, old))
    if checkpoint.fence > 1:
        await tx.run(progressed(tx.tables, tx.driver), {"task_id": checkpoint.task_id})
    return True


@lru_cache
def _insertion(tables: Tables, driver: sa.Dialect) -> Prepared:
    """Insert from the locked row of the task: a rescue that has begun finishes before, and a later one waits.

    A number is used again if the runner received no answer to its commit: the later state then replaces the earlier.
    """
    table = tables.checkpoint
    types: dict[str, Any] = {"number": sa.Integer, "attempt": sa.Integer, "state": sa.Text}
    parameters: dict[str, Any] = {name: sa.bindparam(name, type_=kind) for name, kind in types.items()}
    row = sa.select(
        tables.task.c.id,
        tables.task.c.fence,
        parameters["number"],
        parameters["attempt"],
        sa.cast(parameters["state"], JsonText),
    )
    limit = DIALECTS[driver.name].lock_limit(ATTEMPT_LOCKS)
    locked = row.where(has_fence(tables), limit).with_for_update()
    names = ["task_id", "fence", "number", "attempt", "state"]
    insert = DIALECTS[driver.name].insert(table).from_select(names, locked)
    statement = insert.on_conflict_do_update(
        index_elements=table.primary_key,
        set_={"state": insert.excluded.state, "at": db_now()},
        where=table.c.fence == insert.excluded.fence,
    )
    return Prepared(statement.returning(table.c.number), driver)


def has_fence(tables: Tables) -> sa.ColumnElement[bool]:
    """The condition that a runner still holds a task: the parameters are `task_id`, `fence` and `holder`."""
    task = tables.task.c
    condition: sa.ColumnElement[bool] = (
        (task.id == sa.bindparam("task_id", type_=sa.BigInteger))
        & (task.fence == sa.bindparam("fence", type_=sa.BigInteger))
        & (task.runner_id == sa.bindparam("holder", type_=sa.BigInteger))
    )
    return condition


@lru_cache
def progressed(tables: Tables, driver: sa.Dialect) -> Prepared:
    """Forget the interruptions of a task before an attempt that has stored a state."""
    task = tables.task
    interrupted = (task.c.id == sa.bindparam("task_id", type_=sa.BigInteger)) & (task.c.interruptions > 0)
    return Prepared(sa.update(task).where(interrupted).values(interruptions=0), driver)


@needs(Needs.PREPARED)
async def last_checkpoints(tx: Transaction, task_ids: Sequence[int]) -> dict[int, tuple[int, str]]:
    """Read the number and the JSON text of the last checkpoint of each task that has one, by task id.

    Args:
        tx: an open transaction; one statement is executed.
    """
    rows = await tx.run(_last_checkpoints(tx.tables, tx.driver), tx.dialect.parameters("resumed", {"id": task_ids}))
    return {row[0]: (row[1], row[2]) for row in rows}


@lru_cache
def _last_checkpoints(tables: Tables, driver: sa.Dialect) -> Prepared:
    table, other = tables.checkpoint, tables.checkpoint.alias()
    last = sa.select(sa.func.max(other.c.number)).where(other.c.task_id == table.c.task_id).scalar_subquery()
    tasks = DIALECTS[driver.name].in_batch(table.c.task_id, "resumed")
    return Prepared(
        sa.select(table.c.task_id, table.c.number, table.c.state).where(tasks, table.c.number == last), driver
    )


async def write_notes(tx: Transaction, holder: int, progress: Sequence[Progress], lines: Sequence[LogLine]) -> None:
    """Write the progress of tasks that the runner still holds or that have finished with this fence, and log lines.

    Args:
        progress: at most one per task.
        lines: log lines; existing rows stay unchanged, so that a repeated write changes nothing.

    Raises:
        RowLocked: another transaction locks a row; nothing was changed.
    """
    with locks_refused():
        for item in sorted(progress):
            values = item._asdict()
            if not await tx.run(_progress(tx.tables, tx.driver), values | {"holder": holder}):
                await tx.run(_last_progress(tx.tables, tx.driver), values)
    if lines:
        table = tx.tables.log
        insert = tx.dialect.insert(table).on_conflict_do_nothing(index_elements=table.primary_key)
        await tx.execute(insert, [line._replace(line=to_storable(line.line, LINE_LIMIT))._asdict() for line in lines])


@lru_cache
def _progress(tables: Tables, driver: sa.Dialect) -> Prepared:
    return _write_progress(tables, driver, tables.task, has_fence(tables))


@lru_cache
def _last_progress(tables: Tables, driver: sa.Dialect) -> Prepared:
    """The progress that a task reported in the second before its end."""
    past = tables.history.c
    is_last = (past.id == sa.bindparam("task_id", type_=sa.BigInteger)) & (
        past.fence == sa.bindparam("fence", type_=sa.BigInteger)
    )
    return _write_progress(tables, driver, tables.history, is_last)


def _write_progress(tables: Tables, driver: sa.Dialect, task: sa.Table, where: sa.ColumnElement[bool]) -> Prepared:
    table = tables.progress
    types: dict[str, Any] = {"done": sa.Float, "total": sa.Float, "unit": sa.Text, "rate": sa.Float}
    values = [sa.cast(sa.bindparam(name, type_=kind), kind) for name, kind in types.items()]
    now = sa.type_coerce(db_now(), Instant)
    row = sa.select(task.c.id, task.c.fence, *values, now).where(where, DIALECTS[driver.name].lock_limit(ATTEMPT_LOCKS))
    insert = DIALECTS[driver.name].insert(table).from_select(["task_id", "fence", *types, "at"], row)
    new = {name: insert.excluded[name] for name in ("fence", *types, "at")}
    statement = insert.on_conflict_do_update(index_elements=table.primary_key, set_=new)
    return Prepared(statement.returning(table.c.task_id), driver)
