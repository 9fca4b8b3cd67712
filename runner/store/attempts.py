"""attempts: the records of failed attempts."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.errors import locks_refused
from runner.db.lock_limits import ATTEMPT_LOCKS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import Instant, db_later, db_now, is_readable
from runner.model.outcome import Failure, fingerprint
from runner.model.text_limits import to_storable

MESSAGE_LIMIT = 4 * 1024
TRACEBACK_LIMIT = 16 * 1024
"""Maximum sizes in bytes."""


START_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "fence": sa.BigInteger, "ago": sa.Float}


class Start(NamedTuple):
    """The start of a task.

    Args:
        ago: seconds since the start, negative.
    """

    id: int
    fence: int
    ago: float


@needs(Needs.PREPARED)
async def mark_started(tx: Transaction, holder: int, starts: Sequence[Start]) -> None:
    """Mark prefetched tasks as started, each if its fence still matches.

    Args:
        tx: an open transaction; one statement is executed.
        starts: at most one per task.

    Raises:
        RowLocked: another transaction locks one of the rows; nothing was changed.
    """
    parameters = tx.dialect.row_parameters("start", START_COLUMNS, starts)
    with locks_refused():
        await tx.run(_mark_started(tx.tables, tx.driver), parameters | {"holder": holder})


@lru_cache
def _mark_started(tables: Tables, driver: sa.Dialect) -> Prepared:
    task, dialect = tables.task, DIALECTS[driver.name]
    start, match = dialect.one_by_one(dialect.rows("start", START_COLUMNS), task, _is_started)
    started_at = db_later(db_now(), start.c.ago)
    marked = sa.update(task).where(match, dialect.lock_limit(ATTEMPT_LOCKS)).values(started_at=started_at)
    return Prepared(marked.returning(task.c.id), driver)


def _is_started(task: Any, start: Any) -> sa.ColumnElement[bool]:
    """The condition that the fence matches; it compares no state, as in runner.store.history."""
    holder = sa.bindparam("holder", type_=sa.BigInteger)
    condition: sa.ColumnElement[bool] = (
        (task.c.id == start.c.id) & (task.c.fence == start.c.fence) & (task.c.runner_id == holder)
    )
    return condition


class FailedAttempt(NamedTuple):
    """A failed attempt.

    Args:
        row: the task's row with id, fence, attempt, queue, handler, claimed_at, runner_id and host of the attempt.
        verb: the resulting move.
        delay: seconds until the next attempt; None without one.
        breaks: True if the breaker of the handler counts it.
    """

    row: Any
    verb: str
    failure: Failure
    delay: float | None
    breaks: bool = False


def started_at_column(task: Any) -> sa.Label[Any]:
    """Return the start of an attempt as the column claimed_at; NULL for values that the driver cannot read."""
    return sa.case((is_readable(task.claimed_at), task.claimed_at)).label("claimed_at")


ATTEMPT_COLUMNS: dict[str, Any] = {
    "task_id": sa.BigInteger,
    "fence": sa.BigInteger,
    "attempt": sa.Integer,
    "queue": sa.Text,
    "handler": sa.Text,
    "started_at": Instant,
    "runner_id": sa.BigInteger,
    "host": sa.Text,
    "verb": sa.Text,
    "error_type": sa.Text,
    "message": sa.Text,
    "traceback": sa.Text,
    "fingerprint": sa.Text,
    "delay": sa.Float,
    "breaks": sa.Boolean,
    "rule": sa.Text,
}
"""The columns of a failed attempt that the database does not fill in."""


async def record(tx: Transaction, attempts: Sequence[FailedAttempt]) -> None:
    """Write one row per failed attempt.

    Args:
        tx: the transaction that also moves the tasks.
        attempts: the attempts; existing rows stay unchanged.
    """
    if attempts:
        rows = tx.dialect.row_parameters("failed", ATTEMPT_COLUMNS, map(_values, attempts))
        await tx.run(_record(tx.tables, tx.driver), rows)


@lru_cache
def _record(tables: Tables, driver: sa.Dialect) -> Prepared:
    rows = DIALECTS[driver.name].rows("failed", ATTEMPT_COLUMNS)
    return Prepared(sa.insert(tables.attempt).from_select([*ATTEMPT_COLUMNS], sa.select(*rows.c)), driver)


def _values(item: FailedAttempt) -> tuple[Any, ...]:
    """The values of ATTEMPT_COLUMNS."""
    row, failure = item.row, item.failure
    kind, message = to_storable(failure.type, 1024), to_storable(failure.message, MESSAGE_LIMIT)
    return (
        row.id,
        row.fence,
        row.attempt,
        row.queue,
        row.handler,
        row.claimed_at,
        row.runner_id,
        row.host,
        item.verb,
        kind,
        message,
        to_storable(failure.traceback, TRACEBACK_LIMIT) or None,
        fingerprint(row.handler, kind, message),
        item.delay,
        item.breaks or None,
        to_storable(failure.rule, MESSAGE_LIMIT) or None,
    )
