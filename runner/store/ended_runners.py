"""ended_runners: the runners that have stopped, and those that a rescue removed as lost."""

from collections.abc import Sequence

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.transaction import Transaction
from runner.model.task import State

KEPT = ("host", "pid", "version", "started_at", "heartbeat_at")
"""Columns of a live runner that remain."""


async def end_runners(tx: Transaction, ids: Sequence[int], *, lost: bool) -> None:
    """Move runners from the live ones to the ended ones, with the number of tasks that are running on them.

    The database alone copies the values: one that another program wrote, and that Python cannot read, stops no rescue.

    Args:
        tx: an open transaction; two statements are executed.
        ids: the runners; others of them are ignored.
        lost: True if a rescue removes them, False if they stop by themselves.
    """
    runner, ended, task = tx.tables.runner, tx.tables.ended_runner, tx.tables.task.c
    of_ids = tx.dialect.one_of(runner.c.id, ids)
    running = sa.select(sa.func.count()).where(task.runner_id == runner.c.id, is_state(task.state, State.RUNNING))
    tasks, is_lost = running.correlate(runner).scalar_subquery(), sa.literal(lost, sa.Boolean)
    rows = sa.select(runner.c.id, *(runner.c[name] for name in KEPT), is_lost, tasks).where(of_ids)
    entered = tx.dialect.insert(ended).from_select(["runner_id", *KEPT, "lost", "tasks"], rows)
    await tx.execute(entered.on_conflict_do_nothing())
    await tx.execute(sa.delete(runner).where(of_ids))
