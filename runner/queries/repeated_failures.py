"""repeated_failures: the live tasks that failed again and again, by handler."""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.queries.rows import as_text

MOST_ATTEMPTS = 10_000
"""Failed attempts that are read, the latest ones."""


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
        tx: an open transaction; one statement is executed, along the indexes `ended` and that of the ids.
        since: attempts that ended earlier do not count, aware.
        more_than: the number of attempts that may fail.
    """
    attempt, task = tx.tables.attempt.c, tx.tables.task.c
    latest = sa.select(attempt.task_id, attempt.handler, attempt.attempt).where(attempt.ended_at >= since)
    window = latest.order_by(attempt.ended_at.desc()).limit(MOST_ATTEMPTS).subquery()
    joined = window.join(tx.tables.task, task.id == window.c.task_id)
    tasks = sa.func.count(window.c.task_id.distinct())
    numbers = (tasks, sa.func.max(window.c.task_id), sa.func.max(window.c.attempt))
    statement = sa.select(window.c.handler, *numbers).select_from(joined).where(window.c.attempt > more_than)
    rows = await tx.rows(statement.group_by(window.c.handler).order_by(tasks.desc(), window.c.handler))
    return [RepeatedFailures(as_text(row[0]), *map(int, row[1:])) for row in rows]
