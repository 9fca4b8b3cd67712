"""stuck_rows: the rows of tasks that live runners could not change, and the sessions that lock them now."""

from collections.abc import Iterable

import sqlalchemy as sa

from runner.db.row_locks import row_locks
from runner.db.transaction import Transaction
from runner.db.types import db_now
from runner.model.stuck_row import StuckCause, StuckRow, read_stuck
from runner.queries.rows import text
from runner.queries.runners import RunnerRow, current_stuck


def stuck_on(runners: Iterable[RunnerRow]) -> list[StuckRow]:
    """The stuck rows of live runners, oldest first; each row once per verb."""
    rows: dict[tuple[int, str], StuckRow] = {}
    for row in sorted((row for each in runners if each.alive for row in each.stuck.rows), key=lambda row: row.since):
        rows.setdefault((row.task, row.verb), row)
    return list(rows.values())


def number_of_stuck(runners: Iterable[RunnerRow]) -> int:
    """The number of stuck rows of live runners; each listed row counts once per verb."""
    alive = [each for each in runners if each.alive]
    return len(stuck_on(alive)) + sum(each.stuck.total - len(each.stuck.rows) for each in alive)


async def stored_stuck(tx: Transaction, task: int) -> list[StuckRow]:
    """Find the stuck rows of one task as live runners stored them."""
    runner = tx.tables.runner.c
    stored = sa.select(runner.stuck).where(runner.stuck.is_not(None), runner.lease_until >= db_now())
    rows = [row for (value,) in await tx.rows(stored) for row in read_stuck(text(value)).rows if row.task == task]
    return await current_stuck(tx, rows)


async def with_sessions(tx: Transaction, rows: Iterable[StuckRow]) -> list[StuckRow]:
    """Replace the sessions that a runner has seen by those that lock the rows now, as far as they are certain.

    Args:
        tx: an open transaction without concurrent steps: a savepoint undoes a statement that fails.
    """
    all_rows = list(rows)
    locked = sorted({row.task for row in all_rows if row.cause is StuckCause.LOCKED})
    sessions = {task: each for task, each in (await row_locks(tx, locked)).items() if each.certain} if locked else {}
    return [row._replace(blocker=sessions.get(row.task, row.blocker)) for row in all_rows]
