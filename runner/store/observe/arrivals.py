"""arrivals: what was submitted in some time and nobody has claimed yet.

What was claimed is in the statistics. Those alone would show a queue that falls behind as one that gets no more than it
does: tasks at the end of a growing backlog are claimed much later than they are submitted.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.store.observe.legible import words
from runner.store.transaction import Transaction

STEPS = (1_000, 10_000)
"""So many of the newest tasks are looked at; more of them only when all of the first were submitted later."""


class Unclaimed(NamedTuple):
    """Tasks that nobody has claimed yet.

    Args:
        places: how many of them, by queue and handler.
        more: True when there may be more of them, anywhere.
    """

    places: Mapping[tuple[str, str], int]
    more: bool

    def of(self, queue: str) -> int:
        """How many of them are in a queue."""
        return sum(number for place, number in self.places.items() if place[0] == queue)


async def unclaimed(tx: Transaction, since: datetime, until: datetime, steps: tuple[int, ...] = STEPS) -> Unclaimed:
    """Count the tasks that were submitted in some time and that nobody has claimed.

    Tasks get their ids when they are submitted, so that the newest ones are the last ones: a walk backwards along the
    ids finds them, until one is met that is older than that time.

    Args:
        tx: an open transaction; one statement is executed for each step that is needed.
        since: the beginning, aware.
        until: the time before which to stop, aware.
        steps: the most tasks to look at, first and last.
    """
    for limit in steps:
        rows = await tx.rows(_newest(tx, since, until, limit))
        more = sum(row[3] for row in rows) >= limit and not any(row[4] for row in rows)
        if not more:
            break
    return Unclaimed({(words(row[0]), words(row[1])): int(row[2]) for row in rows if row[2]}, more)


def _newest(tx: Transaction, since: datetime, until: datetime, limit: int) -> sa.Select[Any]:
    """By queue and handler: tasks of the time that were never claimed, all tasks, and whether one is older."""
    task = tx.tables.task.c
    columns = (task.queue, task.handler, task.fence, task.submitted_at)
    window = sa.select(*columns).order_by(task.id.desc()).limit(limit).subquery()
    inside = (window.c.submitted_at >= since) & (window.c.submitted_at < until) & (window.c.fence == 0)
    mine, older = sa.case((inside, 1), else_=0), sa.case((window.c.submitted_at < since, 1), else_=0)
    groups = (window.c.queue, window.c.handler)
    return sa.select(*groups, sa.func.sum(mine), sa.func.count(), sa.func.max(older)).group_by(*groups)
