"""deaths: the dead tasks of a period by handler, and the live ones that failed several times."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.db.schema.task import is_final_state
from runner.db.transaction import Transaction
from runner.model.task import State
from runner.queries.counting import Count
from runner.queries.rows import as_text, moment, readable

MOST_DEAD = 10_000
"""Dead tasks that are counted."""


async def dead_by_handler(tx: Transaction, since: datetime | None = None) -> dict[str, Count]:
    """Count the latest MOST_DEAD dead tasks by handler, along the index `ended`.

    Args:
        tx: an open transaction; one statement is executed.
        since: only those that died since then, aware; None for all.
    """
    past = tx.tables.history.c
    window = sa.select(past.handler).where(is_final_state(past.state, State.DEAD))
    if since is not None:
        window = window.where(past.finished_at >= since)
    latest = window.order_by(past.finished_at.desc()).limit(MOST_DEAD).subquery()
    tasks = sa.func.count()
    statement = sa.select(latest.c.handler, tasks).group_by(latest.c.handler).order_by(tasks.desc(), latest.c.handler)
    rows = await tx.rows(statement)
    more = sum(row[1] for row in rows) >= MOST_DEAD
    return {as_text(name): Count(number, more) for name, number in rows}


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
        since: the first time that one of them had failed too often; None if that is unknown for one.
    """

    handler: str
    tasks: int
    task: int
    attempts: int
    since: datetime | None = None


async def repeated_failures(tx: Transaction, since: datetime, more_than: int) -> list[RepeatedFailures]:
    """Find the live tasks that failed more often than a number of times; dead ones count elsewhere.

    Args:
        tx: an open transaction; one or two statements are executed, along the indexes `ended` and that of the ids.
        since: attempts that ended earlier do not count, aware.
        more_than: the number of attempts that may fail.
    """
    attempt, task = tx.tables.attempt.c, tx.tables.task.c
    columns = (attempt.task_id, attempt.handler, attempt.attempt, *readable(tx, [attempt.ended_at]))
    latest = sa.select(*columns).where(attempt.ended_at >= since)
    window = latest.order_by(attempt.ended_at.desc()).limit(MOST_ATTEMPTS).subquery()
    first = sa.func.max(sa.case((window.c.attempt == more_than + 1, window.c.ended_at)))
    often = sa.select(window.c.task_id, window.c.handler, sa.func.max(window.c.attempt), first)
    often = often.where(window.c.attempt > more_than).group_by(window.c.task_id, window.c.handler)
    failed = await tx.rows(often.order_by(window.c.task_id.desc()).limit(MOST_TASKS))
    if not failed:
        return []
    # A statement of its own: a join with a window of unknown size reads all live tasks on PostgreSQL.
    ids = sorted({row[0] for row in failed})
    live = {row[0] for row in await tx.rows(sa.select(task.id).where(tx.dialect.one_of(task.id, ids)))}
    by_handler: dict[str, list[tuple[int, int, datetime | None]]] = defaultdict(list)
    for id, handler, number, at in failed:
        if id in live:
            by_handler[as_text(handler)].append((id, number, moment(at)))
    rows = [_repeated(handler, tasks) for handler, tasks in by_handler.items()]
    return sorted(rows, key=lambda row: (-row.tasks, row.handler))


def _repeated(handler: str, tasks: list[tuple[int, int, datetime | None]]) -> RepeatedFailures:
    ids, attempts, times = zip(*tasks, strict=True)
    known = [at for at in times if at is not None]
    since = min(known) if len(known) == len(times) else None
    return RepeatedFailures(handler, len(ids), max(ids), max(attempts), since)
