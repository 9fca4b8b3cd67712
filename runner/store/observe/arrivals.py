"""arrivals: what was submitted in the last full minute and nobody has claimed yet.

What was claimed is in the statistics. Those alone would show a queue that falls behind as one that gets no more than it
does: tasks at the end of a growing backlog are claimed much later than they are submitted.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import db_now, minute_number
from runner.store.observe.legible import words
from runner.store.transaction import Transaction

STEPS = (1_000, 10_000)
"""So many of the newest tasks are looked at; more of them only when the minute began before the first of these."""


class Unclaimed(NamedTuple):
    """Tasks that nobody has claimed yet.

    Args:
        queues: how many of them, by queue.
        more: True when there may be more of them, in any queue.
    """

    queues: Mapping[str, int]
    more: bool


async def unclaimed(tx: Transaction, steps: tuple[int, ...] = STEPS) -> Unclaimed:
    """Count by queue the tasks that were submitted in the last full minute and that nobody has claimed.

    Tasks get their ids when they are submitted, so that the newest ones are the last ones: a walk backwards along the
    ids finds them, until one is met that is older than the minute.

    Args:
        tx: an open transaction; one statement is executed for each step that is needed.
        steps: the most tasks to look at, first and last.
    """
    for limit in steps:
        rows = await tx.rows(_newest(tx, limit))
        more = sum(row[2] for row in rows) >= limit and not any(row[3] for row in rows)
        if not more:
            break
    return Unclaimed({words(row[0]): int(row[1]) for row in rows}, more)


def _newest(tx: Transaction, limit: int) -> sa.Select[Any]:
    """By queue: tasks of the minute that were never claimed, all tasks, and whether one is older than the minute."""
    task = tx.tables.task.c
    window = sa.select(task.queue, task.fence, task.submitted_at).order_by(task.id.desc()).limit(limit).subquery()
    age = minute_number(db_now()) - minute_number(window.c.submitted_at)
    mine = sa.case(((age == 1) & (window.c.fence == 0), 1), else_=0)
    older = sa.case((age > 1, 1), else_=0)
    columns = (window.c.queue, sa.func.sum(mine), sa.func.count(), sa.func.max(older))
    return sa.select(*columns).group_by(window.c.queue)
