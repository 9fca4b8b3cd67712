"""The failed attempts of a task."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.queries.rows import as_int, as_text, moment, number, readable, text

MOST_ATTEMPTS = 1_000
"""Attempts that are read: the last ones."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt.

    Args:
        attempt: its number, from 1.
        fence: the fence of its claim.
        started_at: when the runner claimed it.
        ended_at: when it ended.
        runner_id: the runner that executed it.
        host: the host of that runner.
        verb: the resulting move.
        error_type: the class of the exception.
        message: the message of the exception.
        traceback: the traceback; None if there is none.
        fingerprint: see Failures.
        delay: the delay until the next attempt; None if there was none.
        rule: the rule that decided what follows; None for a retry by default.
    """

    attempt: int
    fence: int
    started_at: datetime | None
    ended_at: datetime | None
    runner_id: int | None
    host: str | None
    verb: str
    error_type: str
    message: str
    traceback: str | None
    fingerprint: str
    delay: timedelta | None
    rule: str | None = None

    @property
    def duration(self) -> timedelta | None:
        """The time from its claim to its end."""
        return self.ended_at - self.started_at if self.started_at and self.ended_at else None


async def attempts_of(tx: Transaction, id: int) -> list[Attempt]:
    """Read the failed attempts of a task, oldest first."""
    attempt = tx.tables.attempt
    statement = sa.select(*readable(tx, attempt.c)).where(attempt.c.task_id == id).order_by(attempt.c.fence.desc())
    rows = (await tx.execute(statement.limit(MOST_ATTEMPTS))).mappings().all()
    return [_attempt(row) for row in reversed(rows)]


async def last_rule(tx: Transaction, id: int, attempt: int) -> str:
    """Return the rule that decided what followed an attempt; "" without one.

    Args:
        tx: an open transaction.
        id: the task's id.
        attempt: number of the attempt.
    """
    column = tx.tables.attempt.c
    statement = sa.select(column.attempt, column.rule).where(column.task_id == id).order_by(column.fence.desc())
    row = next(iter(await tx.rows(statement.limit(1))), None)
    return as_text(row.rule) if row is not None and row.rule and row.attempt == attempt else ""


def _attempt(row: sa.RowMapping) -> Attempt:
    return Attempt(
        attempt=as_int(row["attempt"]),
        fence=row["fence"],
        started_at=moment(row["started_at"]),
        ended_at=moment(row["ended_at"]),
        runner_id=row["runner_id"],
        host=text(row["host"]),
        verb=as_text(row["verb"]),
        error_type=as_text(row["error_type"]),
        message=as_text(row["message"]),
        traceback=text(row["traceback"]),
        fingerprint=as_text(row["fingerprint"]),
        delay=_span(number(row["delay"])),
        rule=text(row["rule"]),
    )


def _span(seconds: float | None) -> timedelta | None:
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None
