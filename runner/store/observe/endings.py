"""endings: what has become of tasks that somebody waits for, many at a look."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import JsonText
from runner.store.observe.legible import text, whole, words
from runner.store.transaction import Transaction
from runner.task import State


class Ending(NamedTuple):
    """How a task ended.

    Args:
        id: the task's.
        handler: the name of its handler.
        state: a final one.
        attempt: attempts used.
        result: JSON text; None for nothing.
        error: the last error, or why its result was not kept; None when there was none.
        error_type: of the failure that ended it; empty when it did not fail.
        message: of that failure.
        traceback: of that failure, as far as it was kept.
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


async def endings(tx: Transaction, ids: Sequence[int]) -> dict[int, Ending | None]:
    """Find out which of these tasks have ended, and how.

    Args:
        tx: an open transaction.
        ids: any number of them.

    Returns:
        The ending of each, or None for one that is live; an id that nobody has is missing.
    """
    found = {row.id: _ending(row) for row in await tx.rows(_either(tx, ids))}
    dead = [id for id, ending in found.items() if ending is not None and ending.state is State.DEAD]
    for row in await tx.rows(_last_attempts(tx, dead)) if dead else ():
        if (ending := found[row.task_id]) is not None:
            kind, message, trace = words(row.error_type), words(row.message), words(row.traceback)
            found[row.task_id] = ending._replace(error_type=kind, message=message, traceback=trace)
    return found


def _either(tx: Transaction, ids: Sequence[int]) -> sa.CompoundSelect[Any]:
    """One statement, which sees one moment: a task on its way from one table to the other is in one of them."""
    task, past = tx.tables.task.c, tx.tables.history.c
    columns = [past.id, past.state, past.handler, past.attempt, past.result, past.error]
    nothing = [sa.null(), sa.null(), sa.null(), sa.cast(sa.null(), JsonText), sa.null()]
    live = sa.select(task.id, *nothing).where(tx.dialect.one_of(task.id, ids))
    return sa.select(*columns).where(tx.dialect.one_of(past.id, ids)).union_all(live)


def _last_attempts(tx: Transaction, ids: Sequence[int]) -> sa.Select[Any]:
    attempt = tx.tables.attempt
    later = attempt.alias("later")
    last = sa.select(sa.func.max(later.c.fence)).where(later.c.task_id == attempt.c.task_id).scalar_subquery()
    columns = (attempt.c.task_id, attempt.c.error_type, attempt.c.message, attempt.c.traceback)
    return sa.select(*columns).where(tx.dialect.one_of(attempt.c.task_id, ids), attempt.c.fence == last)


def _ending(row: Any) -> Ending | None:
    if row.state is None:
        return None
    kind, _, message = words(row.error).partition(": ")
    ended = Ending(row.id, words(row.handler), State(row.state), whole(row.attempt), text(row.result), text(row.error))
    return ended._replace(error_type=kind, message=message) if ended.state is State.DEAD else ended
