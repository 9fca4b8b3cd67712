"""complete: end a task as succeeded in the transaction of its handler."""

from functools import lru_cache

import sqlalchemy as sa

from runner.db.schema import Tables
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.store.history import FinishedTask, Success, reused_id, success_steps
from runner.store.notes import has_fence


def complete_steps(frame: Frame, holder: int, ending: FinishedTask, part: int = 0) -> Steps[bool]:
    """Move a task to the history as succeeded, if its fence still matches.

    The row is locked first: a rescue that has begun finishes before, and a later one finds the task gone. The writes of
    the handler in this transaction commit only with a valid fence.

    Args:
        part: number of the row of the minute statistics that this transaction writes.

    Returns:
        False if the task no longer belongs to this runner; the transaction must not commit then.
    """
    lock, find_earlier = _statements(frame.tables, frame.driver)
    if not (yield Step(lock, {"task_id": ending.id, "fence": ending.fence, "holder": holder})):
        return False
    if (yield Step(find_earlier, {"task_id": ending.id})):
        raise reused_id(ending.id)
    moved = yield from success_steps(frame, Success.COMPLETE, holder, [ending], part=part)
    return bool(moved)


@lru_cache
def _statements(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared]:
    task, history = tables.task, tables.history
    task_id = sa.bindparam("task_id", type_=sa.BigInteger)
    lock = sa.select(task.c.id).where(has_fence(tables)).with_for_update()
    return Prepared(lock, driver), Prepared(sa.select(history.c.id).where(history.c.id == task_id), driver)
