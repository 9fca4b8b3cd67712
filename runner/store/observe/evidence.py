"""evidence: the failed attempts of a task, as they were kept."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from runner.store.observe.legible import legible, moment, number, text, whole, words
from runner.store.transaction import Transaction

MOST_ATTEMPTS = 1_000
"""Attempts that are told of, the last ones."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that failed.

    Args:
        attempt: its number, from 1.
        fence: that its claim handed out.
        started_at: when it was claimed.
        ended_at: when it ended.
        runner_id: the runner that had it.
        host: of that runner.
        verb: the move that it led to.
        error_type: the exception's class.
        message: what the exception said.
        traceback: None when there is none.
        fingerprint: see Failures.
        delay: until the next attempt, as it was chosen; None when there was none.
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

    @property
    def duration(self) -> timedelta | None:
        """How long it was in its runner's hands."""
        return self.ended_at - self.started_at if self.started_at and self.ended_at else None


async def attempts_of(tx: Transaction, id: int) -> list[Attempt]:
    """Read the failed attempts of a task, in order."""
    attempt = tx.tables.attempt
    statement = sa.select(*legible(tx, attempt.c)).where(attempt.c.task_id == id).order_by(attempt.c.fence.desc())
    rows = (await tx.execute(statement.limit(MOST_ATTEMPTS))).mappings().all()
    return [_attempt(row) for row in reversed(rows)]


def _attempt(row: sa.RowMapping) -> Attempt:
    return Attempt(
        attempt=whole(row["attempt"]),
        fence=row["fence"],
        started_at=moment(row["started_at"]),
        ended_at=moment(row["ended_at"]),
        runner_id=row["runner_id"],
        host=text(row["host"]),
        verb=words(row["verb"]),
        error_type=words(row["error_type"]),
        message=words(row["message"]),
        traceback=text(row["traceback"]),
        fingerprint=words(row["fingerprint"]),
        delay=_span(number(row["delay"])),
    )


def _span(seconds: float | None) -> timedelta | None:
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None
