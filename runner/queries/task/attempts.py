"""The attempts of a task, with their progress, checkpoints and log lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Annotated

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.errors import TaskNotFound
from runner.queries.rows import as_text, from_row, readable
from runner.queries.runners import runner_value
from runner.text import formatting
from runner.text.document import Treatment
from runner.text.progress import TaskProgress
from runner.text.redact import mask
from runner.text.sanitize import one_line
from runner.text.times import format_moment

MOST_ATTEMPTS = 1_000
"""Attempts that are read: the last ones."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt.

    Args:
        attempt: its number, from 1.
        started_at: when the runner claimed it.
        ended_at: when it ended.
        verb: the resulting move.
        error_type: the class of the exception.
        traceback: the traceback; None if there is none.
        fingerprint: see Failures.
        delay: the delay until the next attempt; None if there was none.
        rule: the rule that decided the next step; None for a retry by default.
        pid: the process id of its runner; None if the runner has ended and was not lost.
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
    pid: int | None = None

    @property
    def duration(self) -> timedelta | None:
        """The time from its claim to its end."""
        return self.ended_at - self.started_at if self.started_at and self.ended_at else None


async def attempts_of(tx: Transaction, id: int) -> list[Attempt]:
    """Read the failed attempts of a task, oldest first."""
    attempt = tx.tables.attempt
    columns = (*readable(tx, attempt.c), runner_value(tx.tables, attempt.c.runner_id, "pid"))
    statement = sa.select(*columns).where(attempt.c.task_id == id).order_by(attempt.c.fence.desc())
    rows = (await tx.execute(statement.limit(MOST_ATTEMPTS))).mappings().all()
    return [from_row(Attempt, row) for row in reversed(rows)]


async def last_rule(tx: Transaction, id: int, attempt: int) -> str:
    """Return the rule that decided what followed an attempt; "" without one."""
    column = tx.tables.attempt.c
    statement = sa.select(column.attempt, column.rule).where(column.task_id == id).order_by(column.fence.desc())
    row = next(iter(await tx.rows(statement.limit(1))), None)
    return as_text(row.rule) if row is not None and row.rule and row.attempt == attempt else ""


MOST_LINES = 10_000
"""Maximum number of log lines per query."""

STATE_LENGTH = 80
"""Characters of a state in a list of checkpoints."""

LAST_LINES = 20
"""Log lines in the detail of a task."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A stored checkpoint.

    Args:
        number: its number; the highest one counts.
        at: when it was stored.
        state: the state, JSON text.
    """

    number: int
    attempt: int
    at: datetime | None
    state: Annotated[str, Treatment.JSON]


@dataclass(frozen=True, slots=True)
class LogRow:
    """A line of the log.

    Args:
        at: when it was written, by the clock of the runner.
    """

    fence: int
    number: int
    attempt: int
    at: datetime | None
    level: str
    line: str


def log_line(row: LogRow, zone: tzinfo, *, reveal: bool = False) -> str:
    """A log line as one line: time, attempt, level and text."""
    at = format_moment(row.at, zone) if row.at else ""
    level = "" if row.level == "info" else f"{row.level}: "
    return f"{at}  attempt {row.attempt}  {level}{one_line(mask(row.line, reveal=reveal))}"


def checkpoint_lines(rows: Sequence[CheckpointRow], at: datetime, *, reveal: bool = False) -> list[str]:
    """List checkpoints: number, attempt, age, size and the beginning of the state."""
    return [
        f"{row.number:>4}  attempt {row.attempt}, {formatting.distance(row.at, at) if row.at else ''}, "
        f"{formatting.size(len(row.state.encode()))}: {one_line(mask(row.state, reveal=reveal))[:STATE_LENGTH]}"
        for row in rows
    ]


async def progress_of(tx: Transaction, id: int) -> TaskProgress | None:
    """Read the progress of a task; None without one."""
    table = tx.tables.progress
    row = (await tx.execute(sa.select(*readable(tx, table.c)).where(table.c.task_id == id))).mappings().one_or_none()
    return None if row is None else from_row(TaskProgress, row)


async def checkpoints_of(tx: Transaction, id: int) -> list[CheckpointRow]:
    """Read the checkpoints of a task, oldest first."""
    table = tx.tables.checkpoint
    statement = sa.select(*readable(tx, table.c)).where(table.c.task_id == id).order_by(table.c.number)
    rows = (await tx.execute(statement)).mappings().all()
    return [from_row(CheckpointRow, row) for row in rows]


async def log_of(
    tx: Transaction, id: int, after: tuple[int, int] = (0, 0), attempt: int | None = None, limit: int = MOST_LINES
) -> list[LogRow]:
    """Read the last log lines of a task, oldest first.

    Args:
        after: fence and number of the last known line; only later ones are read.
        attempt: number of the only attempt to read; None for all.
        limit: maximum number of lines.
    """
    table = tx.tables.log
    fence, number_ = after
    later = (table.c.fence > fence) | ((table.c.fence == fence) & (table.c.number > number_))
    conditions = [table.c.task_id == id, later, *([table.c.attempt == attempt] if attempt is not None else [])]
    order = (table.c.fence.desc(), table.c.number.desc())
    statement = sa.select(*readable(tx, table.c)).where(*conditions).order_by(*order).limit(limit)
    return [from_row(LogRow, row) for row in reversed((await tx.execute(statement)).mappings().all())]


async def is_finished(tx: Transaction, id: int) -> bool:
    """True if a task has finished.

    Raises:
        TaskNotFound: no task has this id.
    """
    for table, finished in ((tx.tables.task, False), (tx.tables.history, True)):
        if await tx.rows(sa.select(table.c.id).where(table.c.id == id).limit(1)):
            return finished
    raise TaskNotFound(id=id)
