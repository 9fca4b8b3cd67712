"""conclude: end a task well in the transaction of its handler, together with what the handler wrote."""

from functools import lru_cache

import sqlalchemy as sa

from runner.schema import Tables
from runner.store.move import Ending, finishing
from runner.store.statement import Prepared
from runner.store.steps import Frame, Step, Steps


def conclude(frame: Frame, holder: int, ending: Ending) -> Steps[bool]:
    """Move a task to the history as succeeded, if its fence still holds.

    The row is locked first: a rescue that has begun is waited for, and one that comes later finds the task gone. What
    the handler wrote in this transaction commits only with the fence.

    Args:
        frame: what the statements are for.
        holder: the runner that executes the task.
        ending: how it ends.

    Returns:
        False when the task is not this runner's any more: the transaction must not commit then.
    """
    lock, make_way = _prepared(frame.tables, frame.driver)
    if not (yield Step(lock, {"task_id": ending.id, "given_fence": ending.fence, "holder": holder})):
        return False
    yield Step(make_way, {"task_id": ending.id})
    moved = yield from finishing(frame, "succeed", holder, [ending])
    return bool(moved)


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared]:
    task, history = tables.task, tables.history
    task_id = sa.bindparam("task_id", type_=sa.BigInteger)
    held = (task.c.fence == sa.bindparam("given_fence", type_=sa.BigInteger)) & (
        task.c.runner_id == sa.bindparam("holder", type_=sa.BigInteger)
    )
    lock = sa.select(task.c.id).where((task.c.id == task_id) & held).with_for_update()
    return Prepared(lock, driver), Prepared(sa.delete(history).where(history.c.id == task_id), driver)
