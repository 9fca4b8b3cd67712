"""lost_runners: the runners that a rescue removed from the live ones."""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.queries.rows import as_int, as_text, moment, readable

MOST = 100
"""Lost runners that are read, the latest ones."""


@dataclass(frozen=True, slots=True)
class LostRunner:
    """A lost runner.

    Args:
        tasks: the tasks that ran on it.
    """

    host: str
    pid: int
    lost_at: datetime
    tasks: int


async def lost_runners(tx: Transaction, since: datetime) -> list[LostRunner]:
    """List the runners that were lost since a time, the latest first.

    Args:
        tx: an open transaction; one statement is executed, along the index `at`.
        since: the time, aware.
    """
    ended = tx.tables.ended_runner.c
    columns = readable(tx, (ended.host, ended.pid, ended.ended_at, ended.tasks))
    statement = sa.select(*columns).where(ended.ended_at >= since, ended.lost)
    rows = await tx.rows(statement.order_by(ended.ended_at.desc()).limit(MOST))
    return [
        LostRunner(as_text(row.host), as_int(row.pid), at, as_int(row.tasks))
        for row in rows
        if (at := moment(row.ended_at)) is not None
    ]
