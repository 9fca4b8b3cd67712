"""pending: what is still to come, for a runner that ends when its work is done."""

from collections.abc import Collection
from typing import NamedTuple

import sqlalchemy as sa

from runner.columns import db_now
from runner.schema import is_state
from runner.store.eligible import has_attempts_left
from runner.store.survey import is_paused
from runner.store.transaction import Transaction
from runner.task import State

CAP = 10_000
"""Tasks that are counted at most."""


class Pending(NamedTuple):
    """What is still to come of some handlers.

    Args:
        running: True when a task of theirs is in some runner's hands.
        returning: True when a task is due, or was tried before and waits for its next time.
        later: how many tasks are scheduled for later and were never tried, up to CAP.
    """

    running: bool
    returning: bool
    later: int


async def pending(tx: Transaction, handlers: Collection[str], queues: Collection[str] = ()) -> Pending:
    """See what is still to come.

    Args:
        tx: an open transaction.
        handlers: names.
        queues: only these; empty for all.
    """
    task = tx.tables.task.c
    ours = task.handler.in_(handlers) & (task.queue.in_(queues) if queues else sa.true())
    standing_still = sa.exists().where(
        tx.tables.queue.c.name == task.queue, is_paused(tx.tables.queue)
    ) | sa.exists().where(tx.tables.handler.c.name == task.handler, is_paused(tx.tables.handler))
    claimable = has_attempts_left(tx.tables.task) & ~standing_still
    waiting = is_state(task.state, State.WAITING) & ours & claimable
    back = (task.fence > 0) | (task.run_at <= db_now())
    running = sa.exists().where(is_state(task.state, State.RUNNING), ours)
    some = sa.select(task.id).where(waiting, ~back).limit(CAP).subquery()
    later = sa.select(sa.func.count()).select_from(some).scalar_subquery()
    (row,) = await tx.rows(sa.select(running, sa.exists().where(waiting, back), later))
    return Pending(bool(row[0]), bool(row[1]), int(row[2]))
