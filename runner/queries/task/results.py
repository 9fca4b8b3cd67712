"""endings: the results of tasks that an application waits for, many per statement."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import JsonText
from runner.model.task import State
from runner.queries.rows import text, whole, words


class TaskResult(NamedTuple):
    """The result of a task.

    Args:
        id: the task's id.
        handler: its handler's name.
        state: its final state.
        attempt: the attempts used.
        result: JSON text; None if there is none.
        error: the last error, or why its result was not stored; None if there is none.
        error_type: the error type of the final failure; empty if it did not fail.
        message: the message of the final failure.
        traceback: the traceback of the final failure, as stored.
    """

    id: int
    handler: str
    state: State
    attempt: int
    result: str | None
    error: str | None
    error_type: str = ""
    message: str = ""
    traceback: str = ""


async def endings(tx: Transaction, ids: Sequence[int]) -> dict[int, TaskResult | None]:
    """Read the results of tasks that have ended.

    Args:
        tx: an open transaction.
        ids: any number of task ids.

    Returns:
        The result by id, or None for a live task; ids of unknown tasks are missing.
    """
    by_id = {row.id: _ending(row) for row in await tx.rows(_either(tx, ids))}
    dead = [id for id, ending in by_id.items() if ending is not None and ending.state is State.DEAD]
    for row in await tx.rows(_last_attempts(tx, dead)) if dead else ():
        if (ending := by_id[row.task_id]) is not None:
            error_type, message, trace = words(row.error_type), words(row.message), words(row.traceback)
            by_id[row.task_id] = ending._replace(error_type=error_type, message=message, traceback=trace)
    return by_id


def _either(tx: Transaction, ids: Sequence[int]) -> sa.CompoundSelect[Any]:
    """One statement, so that a task that moves between the tables is seen in one of them."""
    task, history = tx.tables.task.c, tx.tables.history.c
    columns = [history.id, history.state, history.handler, history.attempt, history.result, history.error]
    nulls = [sa.null(), sa.null(), sa.null(), sa.cast(sa.null(), JsonText), sa.null()]
    live = sa.select(task.id, *nulls).where(tx.dialect.one_of(task.id, ids))
    return sa.select(*columns).where(tx.dialect.one_of(history.id, ids)).union_all(live)


def _last_attempts(tx: Transaction, ids: Sequence[int]) -> sa.Select[Any]:
    attempt = tx.tables.attempt
    newer = attempt.alias("later")
    last = sa.select(sa.func.max(newer.c.fence)).where(newer.c.task_id == attempt.c.task_id).scalar_subquery()
    columns = (attempt.c.task_id, attempt.c.error_type, attempt.c.message, attempt.c.traceback)
    return sa.select(*columns).where(tx.dialect.one_of(attempt.c.task_id, ids), attempt.c.fence == last)


def _ending(row: Any) -> TaskResult | None:
    if row.state is None:
        return None
    error_type, _, message = words(row.error).partition(": ")
    ending = TaskResult(
        row.id, words(row.handler), State(row.state), whole(row.attempt), text(row.result), text(row.error)
    )
    return ending._replace(error_type=error_type, message=message) if ending.state is State.DEAD else ending


async def unfinished(tx: Transaction, handler: str, key: str, limit: int = 100) -> list[int]:
    """Find the live tasks of a handler and a business key.

    Args:
        tx: an open transaction, possibly the caller's own.
        handler: the handler's name.
        key: the business key.
        limit: the most ids to return.

    Returns:
        Their ids, oldest first.
    """
    task = tx.tables.task.c
    statement = sa.select(task.id).where(task.key == key, task.handler == handler).order_by(task.id).limit(limit)
    return [row.id for row in await tx.rows(statement)]
