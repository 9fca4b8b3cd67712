"""current_stuck: the stored stuck rows that are still of concern, because their tasks have not moved on."""

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.model.stuck_row import VERBS_OF_RUNNING, StuckRow, StuckVerb
from runner.model.task import LIVE, State


async def current_stuck(tx: Transaction, rows: Sequence[StuckRow]) -> list[StuckRow]:
    """Leave out the rows of tasks that have ended since a runner stored them, or that no longer run.

    Args:
        tx: an open transaction; one statement is executed if there are rows.
    """
    task = tx.tables.task.c
    ids = [row.task for row in rows]
    found = await tx.rows(sa.select(task.id, task.state).where(tx.dialect.one_of(task.id, ids))) if ids else []
    states = {row.id: row.state for row in found}
    return [row for row in rows if row.verb == "prune" or states.get(row.task) in _states_of(row.verb)]


def _states_of(verb: StuckVerb) -> Collection[str]:
    """The states of a task whose row a verb changes."""
    return (State.RUNNING,) if verb in VERBS_OF_RUNNING else LIVE
