"""repeated_failures: the live tasks that failed again and again, by handler."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.queries.rows import as_text

MOST_ATTEMPTS = 10_000
"""Failed attempts that are read, the latest ones."""

MOST_TASKS = 1_000
"""Tasks that are looked up among those of these attempts, the latest ones."""


@dataclass(frozen=True, slots=True)
class RepeatedFailures:
    """The live tasks of a handler that failed again and again.

    Args:
        tasks: their number.
        task: the id of the latest one.
        attempts: the number of the attempt of one that failed most often.
    """

    handler: str
    tasks: int
    task: int
    attempts: int


async def repeated_failures(tx: Transaction, since: datetime, more_than: int) -> list[RepeatedFailures]:
    """Find the live tasks that failed more often than a number of times; dead ones count elsewhere.

    Args:
        tx: an open transaction; one or two statements are executed, along the indexes `ended` and that of the ids.
        since: attempts that ended earlier do not count, aware.
        more_than: the number of attempts that may fail.
    """
    attempt, task = tx.tables.attempt.c, tx.tables.task.c
    latest = sa.select(attempt.task_id, attempt.handler, attempt.attempt).where(attempt.ended_at >= since)
    window = latest.order_by(attempt.ended_at.desc()).limit(MOST_ATTEMPTS).subquery()
    often = sa.select(window.c.task_id, window.c.handler, sa.func.max(window.c.attempt))
    often = often.where(window.c.attempt > more_than).group_by(window.c.task_id, window.c.handler)
    failed = await tx.rows(often.order_by(window.c.task_id.desc()).limit(MOST_TASKS))
    if not failed:
        return []
    # A statement of its own: a join with a window of unknown size reads all live tasks on PostgreSQL.
    ids = sorted({row[0] for row in failed})
    live = {row[0] for row in await tx.rows(sa.select(task.id).where(tx.dialect.one_of(task.id, ids)))}
    by_handler: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for id, handler, number in failed:
        if id in live:
            by_handler[as_text(handler)].append((id, number))
    rows = [
        RepeatedFailures(handler, len(tasks), max(tasks)[0], max(number for _, number in tasks))
        for handler, tasks in by_handler.items()
    ]
    return sorted(rows, key=lambda row: (-row.tasks, row.handler))
