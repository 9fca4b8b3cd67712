"""Last runs of schedules: which are unfinished, when the others ended, and the end of one that is replaced."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import next_version
from runner.model.task import State
from runner.store.history import UNASSIGNED, FinishedTask, finish
from runner.store.minute_statistics import NO_RUNNER, count_unclaimed


class LastRuns(NamedTuple):
    """The tasks of the last ticks.

    Args:
        live: ids of the unfinished ones.
        ended: the end of each other one by id; a task that was pruned is missing.
    """

    live: frozenset[int]
    ended: Mapping[int, datetime]


async def last_runs(tx: Transaction, ids: Sequence[int | None]) -> LastRuns:
    """Read the tasks of the last ticks.

    Args:
        tx: an open transaction.
        ids: task ids; None for schedules without a run.
    """
    known = [id for id in ids if id is not None]
    live = await live_tasks(tx, known)
    rest = [id for id in known if id not in live]
    if not rest:
        return LastRuns(live, {})
    history = tx.tables.history
    rows = await tx.rows(sa.select(history.c.id, history.c.finished_at).where(tx.dialect.one_of(history.c.id, rest)))
    return LastRuns(live, {row.id: row.finished_at for row in rows})


async def live_tasks(tx: Transaction, ids: Sequence[int]) -> frozenset[int]:
    """Return which of these tasks are live."""
    if not ids:
        return frozenset()
    task = tx.tables.task
    return frozenset(row.id for row in await tx.rows(sa.select(task.c.id).where(tx.dialect.one_of(task.c.id, ids))))


async def terminate(tx: Transaction, reasons: Mapping[int, str]) -> None:
    """Cancel tasks: waiting and blocked ones now, running ones through their runners.

    Call it once per transaction: it locks the tasks in the order of their ids, and a second call could wait for a
    transaction that waits for the first one.

    Args:
        tx: a writing transaction.
        reasons: the reason by task id, which the history keeps; finished tasks stay as they are.
    """
    if not reasons:
        return
    task = tx.tables.task
    selection = sa.select(task.c.id, task.c.state, task.c.fence).where(tx.dialect.one_of(task.c.id, sorted(reasons)))
    rows = await tx.rows(selection.order_by(task.c.id).with_for_update())
    running = [row.id for row in rows if row.state == State.RUNNING]
    idle = [FinishedTask(row.id, row.fence, error=reasons[row.id]) for row in rows if row.state != State.RUNNING]
    change = sa.update(task).values(version=next_version(task.c.version))
    if running:
        await tx.execute(change.where(tx.dialect.one_of(task.c.id, running)).values(cancel_requested=sa.true()))
    if idle:
        idle_ids = [ending.id for ending in idle]
        await tx.execute(change.where(tx.dialect.one_of(task.c.id, idle_ids)).values(UNASSIGNED))
        await count_unclaimed(tx, idle_ids)
        await finish(tx, "cancel", NO_RUNNER, idle)
