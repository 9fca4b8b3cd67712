"""The dump: the content of the database, read once at rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema import MINUTE_COUNTS
from runner.db.transaction import Transaction


class Row(NamedTuple):
    """A task, live or ended; times in seconds of the epoch."""

    id: int
    state: str
    payload: str
    attempt: int
    max_attempts: int | None
    fence: int
    rescues: int
    releases: int
    run_at: float
    claimed_at: float | None
    finished_at: float | None
    """None while it lives."""
    handler: str
    key: str | None = None
    unique_key: str | None = None
    runner_id: int | None = None


class Attempt(NamedTuple):
    """A failed or rescued attempt."""

    task_id: int
    fence: int
    attempt: int
    verb: str
    error_type: str
    started_at: float | None
    ended_at: float
    delay: float | None
    runner_id: int | None = None


@dataclass(frozen=True)
class Dump:
    """All tasks and all failed attempts.

    Args:
        live: rows of the table of live tasks.
        ended: rows of the history.
        attempts: failed attempts.
        paid: the tasks of the payments that were written, one for each.
    """

    live: tuple[Row, ...] = ()
    history: tuple[Row, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    paid: tuple[int, ...] = ()
    audited: tuple[tuple[str, int], ...] = ()
    """The verb and the task of each entry in the audit log."""
    reported: Mapping[str, int] = field(default_factory=dict)
    """The sums of the minute statistics by column."""

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.live + self.history


async def take(database: Database) -> Dump:
    """Read everything in one transaction."""
    tables = database.tables
    async with database.reading() as tx:
        live = await tx.rows(_select(tables.task, Row))
        history = await tx.rows(_select(tables.history, Row))
        attempts = await tx.rows(_select(tables.attempt, Attempt))
        paid = await _paid(tx)
        audit, minute = tables.audit.c, tables.minute.c
        audited = await tx.rows(sa.select(audit.verb, audit.task_id).where(audit.task_id.is_not(None)))
        sums = [sa.func.coalesce(sa.func.sum(minute[name]), 0).label(name) for name in MINUTE_COUNTS]
        (reported,) = await tx.rows(sa.select(*sums))
    return Dump(
        tuple(Row._make(map(plain, row)) for row in live),
        tuple(Row._make(map(plain, row)) for row in history),
        tuple(Attempt._make(map(plain, row)) for row in attempts),
        paid,
        tuple((row.verb, row.task_id) for row in audited),
        {name: int(value) for name, value in reported._mapping.items()},
    )


async def _paid(tx: Transaction) -> tuple[int, ...]:
    if not await tx.connection.run_sync(lambda connection: sa.inspect(connection).has_table("payments")):
        return ()
    return tuple(row.task for row in await tx.rows(sa.text("SELECT task FROM payments")))


def _select(table: sa.Table, kind: type[Row] | type[Attempt]) -> sa.Select[Any]:
    return sa.select(*(table.c[name] if name in table.c else sa.null().label(name) for name in kind._fields))


def plain(value: Any) -> Any:
    """A moment as a number; anything else as it is."""
    return value.timestamp() if isinstance(value, datetime) else value
