"""endings: the results of tasks that an application waits for, many per statement."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.transaction import Transaction
from runner.db.types import JsonText
from runner.model.task import State
from runner.queries.rows import as_int, as_text, text


class TaskResult(NamedTuple):
    """The result of a task.

    Args:
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


@needs(Needs.PREPARED)
def endings(frame: Frame, ids: Sequence[int]) -> Steps[dict[int, TaskResult | None]]:
    """Read the results of tasks that have ended, with prepared statements.

    Args:
        frame: tables and dialect; each statement may see a snapshot of its own.
        ids: any number of task ids, each a value that the column can hold.

    Returns:
        The result by id, or None for a live task; ids of unknown tasks are missing.
    """
    rows = yield Step(_either(frame.tables, frame.driver), frame.dialect.parameters("request", {"id": ids}))
    by_id = {row[0]: _ending(*row) for row in rows}
    dead = [id for id, ending in by_id.items() if ending is not None and ending.state is State.DEAD]
    if dead:
        parameters = frame.dialect.parameters("request", {"id": dead})
        attempts = yield Step(_last_attempts(frame.tables, frame.driver), parameters)
        for id, error_type, message, trace in attempts:
            if (ending := by_id[id]) is not None:
                by_id[id] = ending._replace(
                    error_type=as_text(error_type), message=as_text(message), traceback=as_text(trace)
                )
    return by_id


@lru_cache
def _either(tables: Tables, driver: sa.Dialect) -> Prepared:
    """One statement, so that a task that moves between the tables is seen in one of them."""
    dialect, task, history = DIALECTS[driver.name], tables.task.c, tables.history.c
    columns = [history.id, history.state, history.handler, history.attempt, history.result, history.error]
    nulls = [sa.null(), sa.null(), sa.null(), sa.cast(sa.null(), JsonText), sa.null()]
    live = sa.select(task.id, *nulls).where(dialect.in_batch(task.id, "request"))
    return Prepared(sa.select(*columns).where(dialect.in_batch(history.id, "request")).union_all(live), driver)


@lru_cache
def _last_attempts(tables: Tables, driver: sa.Dialect) -> Prepared:
    dialect, attempt = DIALECTS[driver.name], tables.attempt
    newer = attempt.alias("later")
    last = sa.select(sa.func.max(newer.c.fence)).where(newer.c.task_id == attempt.c.task_id).scalar_subquery()
    columns = (attempt.c.task_id, attempt.c.error_type, attempt.c.message, attempt.c.traceback)
    of_tasks = dialect.in_batch(attempt.c.task_id, "request")
    return Prepared(sa.select(*columns).where(of_tasks, attempt.c.fence == last), driver)


def _ending(id: int, state: Any, handler: Any, attempt: Any, result: Any, error: Any) -> TaskResult | None:
    if state is None:
        return None
    ending = TaskResult(id, as_text(handler), State(state), as_int(attempt), text(result), text(error))
    error_type, _, message = as_text(error).partition(": ")
    return ending._replace(error_type=error_type, message=message) if ending.state is State.DEAD else ending


async def unfinished(tx: Transaction, handler: str, key: str, limit: int = 100) -> list[int]:
    """Find the live tasks of a handler and a business key.

    Args:
        tx: an open transaction, possibly the caller's own.
        key: the business key.
        limit: maximum number of ids to return.

    Returns:
        Their ids, oldest first.
    """
    task = tx.tables.task.c
    statement = sa.select(task.id).where(task.key == key, task.handler == handler).order_by(task.id).limit(limit)
    return [row.id for row in await tx.rows(statement)]
