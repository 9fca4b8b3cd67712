"""Attempts: store when a prefetched one started, why one failed, and its checkpoints, progress and log lines."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, by_column
from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import EARLIEST, LATEST, Instant, JsonText, db_later, db_now
from runner.model.outcome import Failure, fingerprint
from runner.model.text_limits import to_storable

MESSAGE_LIMIT = 4 * 1024
TRACEBACK_LIMIT = 16 * 1024
"""Maximum sizes in bytes."""


START_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "fence": sa.BigInteger, "ago": sa.Float}


class Start(NamedTuple):
    """The start of a task.

    Args:
        id: task id.
        fence: fence of the claim.
        ago: seconds since the start, negative.
    """

    id: int
    fence: int
    ago: float


async def mark_started(tx: Transaction, holder: int, starts: Sequence[Start]) -> None:
    """Mark prefetched tasks as started, each if its fence still matches.

    Args:
        tx: an open transaction; one statement is executed.
        holder: id of the runner.
        starts: at most one per task.
    """
    parameters = tx.dialect.parameters("start", by_column(START_COLUMNS, starts))
    await tx.run(_mark_started(tx.tables, tx.driver), parameters | {"holder": holder})


@lru_cache
def _mark_started(tables: Tables, driver: sa.Dialect) -> Prepared:
    task, dialect = tables.task, DIALECTS[driver.name]
    start, match = dialect.one_by_one(dialect.rows("start", START_COLUMNS), task, _is_started)
    started_at = db_later(db_now(), start.c.ago)
    return Prepared(sa.update(task).where(match).values(started_at=started_at).returning(task.c.id), driver)


def _is_started(task: Any, start: Any) -> sa.ColumnElement[bool]:
    """The condition that the fence matches; it compares no state, as in runner.store.history."""
    holder = sa.bindparam("holder", type_=sa.BigInteger)
    condition: sa.ColumnElement[bool] = (
        (task.c.id == start.c.id) & (task.c.fence == start.c.fence) & (task.c.runner_id == holder)
    )
    return condition


class FailedAttempt(NamedTuple):
    """A failed attempt.

    Args:
        row: the task's row with id, fence, attempt, queue, handler, claimed_at, runner_id and host of the attempt.
        verb: the resulting move.
        failure: the reason.
        delay: seconds until the next attempt; None without one.
        breaks: True if the breaker of the handler counts it.
    """

    row: Any
    verb: str
    failure: Failure
    delay: float | None
    breaks: bool = False


def started_at_column(task: Any) -> sa.Label[Any]:
    """Return the start of an attempt as the column claimed_at; NULL for values that the driver cannot read.

    Args:
        task: the columns of the task.
    """
    return sa.case((task.claimed_at.between(EARLIEST, LATEST), task.claimed_at)).label("claimed_at")


async def record(tx: Transaction, attempts: Sequence[FailedAttempt]) -> None:
    """Write one row per failed attempt.

    Args:
        tx: the transaction that also moves the tasks.
        attempts: the attempts; existing rows stay unchanged.
    """
    if attempts:
        await tx.execute(sa.insert(tx.tables.attempt), [_values(item) for item in attempts])


def _values(item: FailedAttempt) -> dict[str, Any]:
    row, failure = item.row, item.failure
    kind, message = to_storable(failure.type, 1024), to_storable(failure.message, MESSAGE_LIMIT)
    return {
        "task_id": row.id,
        "fence": row.fence,
        "attempt": row.attempt,
        "queue": row.queue,
        "handler": row.handler,
        "started_at": row.claimed_at,
        "runner_id": row.runner_id,
        "host": row.host,
        "verb": item.verb,
        "error_type": kind,
        "message": message,
        "traceback": to_storable(failure.traceback, TRACEBACK_LIMIT) or None,
        "fingerprint": fingerprint(row.handler, kind, message),
        "delay": item.delay,
        "breaks": item.breaks or None,
        "rule": to_storable(failure.rule, MESSAGE_LIMIT) or None,
    }


KEPT_CHECKPOINTS = 10
"""Checkpoints that a task keeps: the last ones."""

LINE_LIMIT = 2 * 1024
"""Maximum size of a log line in bytes."""

STACK_LEVEL = "stack"
"""The level of the lines of a stack."""


class Checkpoint(NamedTuple):
    """A state to store.

    Args:
        task_id: task id.
        fence: fence of the claim.
        attempt: number of the attempt.
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
        task_id: task id.
        fence: fence of the claim.
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
        task_id: task id.
        fence: fence of the claim.
        number: number of the line, from 1.
        attempt: number of the attempt.
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
        holder: id of the runner.
        checkpoint: the checkpoint.

    Returns:
        False if the task no longer belongs to this runner.
    """
    parameters = checkpoint._asdict() | {"holder": holder}
    if not await tx.run(_insertion(tx.tables, tx.driver), parameters):
        return False
    task, table = tx.tables.task, tx.tables.checkpoint
    if checkpoint.number > KEPT_CHECKPOINTS:
        old = table.c.number <= checkpoint.number - KEPT_CHECKPOINTS
        await tx.execute(sa.delete(table).where(table.c.task_id == checkpoint.task_id, old))
    if checkpoint.fence > 1:
        interrupted = (task.c.id == checkpoint.task_id) & (task.c.interruptions > 0)
        await tx.execute(sa.update(task).where(interrupted).values(interruptions=0))
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
    locked = row.where(_has_fence(tables)).with_for_update()
    names = ["task_id", "fence", "number", "attempt", "state"]
    insert = DIALECTS[driver.name].insert(table).from_select(names, locked)
    statement = insert.on_conflict_do_update(
        index_elements=table.primary_key,
        set_={"state": insert.excluded.state, "at": db_now()},
        where=table.c.fence == insert.excluded.fence,
    )
    return Prepared(statement.returning(table.c.number), driver)


def _has_fence(tables: Tables) -> sa.ColumnElement[bool]:
    task = tables.task.c
    condition: sa.ColumnElement[bool] = (
        (task.id == sa.bindparam("task_id", type_=sa.BigInteger))
        & (task.fence == sa.bindparam("fence", type_=sa.BigInteger))
        & (task.runner_id == sa.bindparam("holder", type_=sa.BigInteger))
    )
    return condition


async def last_checkpoints(tx: Transaction, task_ids: Sequence[int]) -> dict[int, tuple[int, str]]:
    """Read the number and the JSON text of the last checkpoint of each task that has one, by task id.

    Args:
        tx: an open transaction; one statement is executed.
        task_ids: the tasks.
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
        tx: a writing transaction.
        holder: id of the runner.
        progress: at most one per task.
        lines: log lines; existing rows stay unchanged, so that a repeated write changes nothing.
    """
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
    return _write_progress(tables, driver, tables.task, _has_fence(tables))


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
    row = sa.select(task.c.id, task.c.fence, *values, now).where(where)
    insert = DIALECTS[driver.name].insert(table).from_select(["task_id", "fence", *types, "at"], row)
    new = {name: insert.excluded[name] for name in ("fence", *types, "at")}
    statement = insert.on_conflict_do_update(index_elements=table.primary_key, set_=new)
    return Prepared(statement.returning(table.c.task_id), driver)
