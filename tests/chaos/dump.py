"""The dump: the content of the database, read once at rest."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.database import Database
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


class Tried(NamedTuple):
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
        tried: failed attempts.
        paid: the tasks of the payments that were written, one for each.
    """

    live: tuple[Row, ...] = ()
    ended: tuple[Row, ...] = ()
    tried: tuple[Tried, ...] = ()
    paid: tuple[int, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.live + self.ended


async def take(database: Database) -> Dump:
    """Read everything in one transaction."""
    tables = database.tables
    async with database.reading() as tx:
        live = await tx.rows(_select(tables.task, Row))
        ended = await tx.rows(_select(tables.history, Row))
        tried = await tx.rows(_select(tables.attempt, Tried))
        paid = await _paid(tx)
    return Dump(
        tuple(Row._make(map(plain, row)) for row in live),
        tuple(Row._make(map(plain, row)) for row in ended),
        tuple(Tried._make(map(plain, row)) for row in tried),
        paid,
    )


async def _paid(tx: Transaction) -> tuple[int, ...]:
    if not await tx.connection.run_sync(lambda connection: sa.inspect(connection).has_table("payments")):
        return ()
    return tuple(row.task for row in await tx.rows(sa.text("SELECT task FROM payments")))


def _select(table: sa.Table, kind: type[Row] | type[Tried]) -> sa.Select[Any]:
    return sa.select(*(table.c[name] if name in table.c else sa.null().label(name) for name in kind._fields))


def plain(value: Any) -> Any:
    """A moment as a number; anything else as it is."""
    return value.timestamp() if isinstance(value, datetime) else value
