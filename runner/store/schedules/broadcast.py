"""Broadcasts: the rounds of schedules that run each tick on every live runner.

The task of a round is in the queue of its runner, "@17" for runner 17, which no other runner claims from.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.transaction import Transaction
from runner.db.types import db_now
from runner.model.task import State
from runner.policy.lanes import RUNNER_QUEUE
from runner.store.schedules.unfinished import live_tasks, terminate

AFTER_QUEUES = chr(ord(RUNNER_QUEUE) + 1)
"""A name that sorts after the queues of single runners, and before all others that do."""


class BroadcastRound(NamedTuple):
    """A round of a broadcast.

    Args:
        runners: ids of the live runners that have the handler.
        unfinished: the unfinished task of the last round by runner.
    """

    runners: Sequence[int]
    unfinished: Mapping[int, int]


async def read_rounds(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> dict[str, BroadcastRound]:
    """Read the live runners, and the tasks of the last rounds, for broadcasts that are due.

    Args:
        tx: an open transaction.
        rows: rows of schedules that broadcast.

    Returns:
        A round for each schedule by id.
    """
    if not rows:
        return {}
    runners = await _live_runners(tx)
    last = await _last_tasks(tx, rows)
    live = await live_tasks(tx, [task_id for tasks in last.values() for task_id in tasks.values()])
    return {
        row["id"]: BroadcastRound(
            [runner_id for runner_id, handlers in runners.items() if row["handler"] in handlers],
            {runner_id: task_id for runner_id, task_id in last.get(row["id"], {}).items() if task_id in live},
        )
        for row in rows
    }


async def _live_runners(tx: Transaction) -> dict[int, frozenset[str]]:
    """The handlers of the live runners by runner id."""
    runner = tx.tables.runner
    rows = await tx.rows(sa.select(runner.c.id, runner.c.handlers).where(runner.c.lease_until > db_now()))
    return {row.id: _names(row.handlers) for row in sorted(rows)}


def _names(text: str) -> frozenset[str]:
    try:
        return frozenset(name for name in json.loads(text) if isinstance(name, str))
    except (TypeError, ValueError):
        return frozenset()


async def _last_tasks(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, int]]:
    tick = tx.tables.tick
    result: dict[str, dict[int, int]] = {}
    for row in rows:
        is_last = (tick.c.schedule == row["id"]) & (tick.c.tick == row["last_tick"]) & tick.c.task_id.is_not(None)
        tasks = await tx.rows(sa.select(tick.c.runner_id, tick.c.task_id).where(is_last))
        result[row["id"]] = {each.runner_id: each.task_id for each in tasks}
    return result


async def abandon_rounds(tx: Transaction, limit: int = 1_000) -> list[int]:
    """Cancel the waiting tasks of runners that no longer exist: no other runner claims them.

    Args:
        tx: a writing transaction.
        limit: maximum number of tasks.

    Returns:
        The ids of the cancelled tasks.
    """
    task, runner = tx.tables.task, tx.tables.runner
    in_runner_queue = (task.c.queue >= RUNNER_QUEUE) & (task.c.queue < AFTER_QUEUES)
    waiting = is_state(task.c.state, State.WAITING) & in_runner_queue  # a range of the index of the claims
    owner: sa.ColumnElement[str] = sa.literal_column(f"'{RUNNER_QUEUE}'") + sa.cast(runner.c.id, sa.Text)
    gone = sa.select(task.c.id).where(waiting, ~sa.exists().where(owner == task.c.queue)).limit(limit)
    ids = [row.id for row in await tx.rows(gone)]
    await terminate(tx, dict.fromkeys(ids, "its runner no longer exists"))
    return ids
