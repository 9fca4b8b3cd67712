"""health: the state of the database as far as this login may see it, the changes it may make, and problems."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.queries.rows import as_int, as_text, number, text
from runner.text import formatting
from runner.text.operator import now
from runner.text.sanitize import one_line


class Permission(Enum):
    """The rights of this connection."""

    READ_WRITE = "a login that may change tasks and write the audit log"
    READ_ONLY = "a read-only login"
    STANDBY = "a standby, which is read-only"
    CLOSED = "a database in read-only mode"


async def connection_permission(tx: Transaction) -> Permission:
    """Find out which changes this connection may make."""
    conditions = tx.dialect.permissions(tx.tables)
    row = (await tx.rows(sa.select(*(condition.label(name) for name, condition in conditions.items()))))[0]
    if row.follows:
        return Permission.STANDBY
    if row.closed:
        return Permission.CLOSED
    return Permission.READ_WRITE if row.intervenes else Permission.READ_ONLY


async def reads_audit(tx: Transaction) -> bool:
    """True if this login may read the audit log."""
    return bool(await tx.scalar(sa.select(tx.dialect.permissions(tx.tables)["reads_audit"])))


async def staleness(tx: Transaction) -> float | None:
    """The age of the newest change on a standby, in seconds.

    Returns:
        None if the database is not a standby or has not replayed a change yet. The age also grows while the primary
        is idle, but heartbeats change rows every few seconds.
    """
    value = await tx.scalar(sa.select(tx.dialect.staleness()))
    return None if value is None else max(0.0, float(value))


OLD = 300.0
"""Seconds after which an open transaction is reported: vacuum cannot remove rows that died since it began."""

MANY_DEAD = 100_000
"""Dead rows of a table that are reported if they also outnumber the live ones."""

LARGE_WAL = 256 * 1024 * 1024
"""Bytes of a write-ahead log that are reported: a long-running reader has blocked checkpoints."""

NEARLY_ALL = 0.9
"""The share of the allowed connections that is reported."""


class OpenTransaction(NamedTuple):
    """The oldest open transaction.

    Args:
        age: seconds since it began.
        pid: the process id of its connection on the server.
        program: the application name of the connection.
        state: the current state of the connection.
    """

    age: float
    pid: int
    program: str
    state: str


class DeadRows(NamedTuple):
    """The dead rows of a table, which take space until a vacuum.

    Args:
        live: the estimated number of live rows.
        dead: the estimated number of dead rows.
        vacuumed: seconds since the last vacuum; None for never.
    """

    table: str
    live: int
    dead: int
    vacuumed: float | None

    @property
    def is_bloated(self) -> bool:
        """True if there are many dead rows, and more than live ones."""
        return self.dead > max(MANY_DEAD, self.live)

    @property
    def remedy(self) -> str:
        """The statement that frees their space."""
        return f"VACUUM {self.table}"


class Health(NamedTuple):
    """The state of a database; fields that it does not have, or this login may not see, are None.

    Args:
        version: the version of the server or library.
        size: bytes of our tables, or of the file.
        free: unused bytes of the file.
        wal: bytes of the write-ahead log of the file.
        connections: open and allowed connections.
        hidden: connections whose activity this login may not see.
        oldest: the oldest open transaction.
        tables: bytes by table, with its indexes; empty for a file.
        stale: seconds since the newest change that a standby shows; None if it is not a standby.
    """

    at: datetime
    kind: str
    version: str
    size: int | None = None
    free: int | None = None
    wal: int | None = None
    connections: tuple[int, int] | None = None
    hidden: int = 0
    oldest: OpenTransaction | None = None
    dead: tuple[DeadRows, ...] = ()
    tables: Mapping[str, int] = {}
    stale: float | None = None


class HealthIssue(NamedTuple):
    """A problem of a database.

    Args:
        text: a sentence, safe to print.
        advice: the next step.
    """

    text: str
    advice: str


async def health(tx: Transaction) -> Health:
    """Read the state of the database.

    Args:
        tx: an open transaction; a few statements are executed, none of which reads our tables.
    """
    statements = tx.dialect.vitals(tx.tables)
    at, stale, results = await tx.gather(
        clock(tx), staleness(tx), tx.gather(*(tx.rows(statement) for statement in statements.values()))
    )
    vitals = dict(zip(statements, results, strict=True))
    size, free, file = vitals["size"][0] if vitals.get("size") else (None, None, None)
    tables = {as_text(row[0]): as_int(row[1]) for row in vitals.get("tables", ())}
    used, most, hidden = vitals["connections"][0] if vitals.get("connections") else (None, 0, 0)
    dead = (
        DeadRows(as_text(row[0]), as_int(row[1]), as_int(row[2]), number(row[3])) for row in vitals.get("bloat", ())
    )
    oldest = (OpenTransaction(row[0], row[1], as_text(row[2]), as_text(row[3])) for row in vitals.get("oldest", ()))
    return Health(
        at=at,
        kind=tx.dialect.name,
        version=as_text(vitals["version"][0][0]),
        size=sum(tables.values()) if tables else size,
        free=free,
        wal=_wal(text(file)),
        connections=None if used is None else (used, most),
        hidden=hidden,
        oldest=next(iter(oldest), None),
        dead=tuple(dead),
        tables=tables,
        stale=stale,
    )


def health_issues(health: Health) -> Iterator[HealthIssue]:
    """Find the problems, most urgent first."""
    if health.oldest is not None and health.oldest.age > OLD:
        program = one_line(health.oldest.program) or "an unnamed program"
        connection = f"{program} (connection {health.oldest.pid}, {health.oldest.state})"
        age = formatting.age(health.oldest.age)
        yield HealthIssue(
            f"a transaction of {connection} has been open for {age}: dead rows accumulate until it ends",
            f"End it if it is not needed: SELECT pg_terminate_backend({health.oldest.pid})",
        )
    for table in health.dead:
        if table.is_bloated:
            last_vacuum = f"{formatting.age(table.vacuumed)} ago" if table.vacuumed is not None else "never"
            yield HealthIssue(
                f"{table.table} has {table.dead:,} dead and {table.live:,} live rows, last vacuum: {last_vacuum}",
                f"Find old transactions, then run: {table.remedy}",
            )
    if health.connections is not None and health.connections[0] >= NEARLY_ALL * health.connections[1]:
        used, most = health.connections
        yield HealthIssue(
            f"{used} of {most} connections are in use", "Raise max_connections, or open fewer connections."
        )
    if health.wal is not None and health.wal > LARGE_WAL:
        yield HealthIssue(
            f"the write-ahead log has grown to {formatting.size(health.wal)}",
            "A reader blocks checkpoints: find the program that keeps a transaction open.",
        )


def _wal(file: str | None) -> int | None:
    """The size of the write-ahead log beside a SQLite file."""
    try:
        return Path(f"{file}-wal").stat().st_size if file else None
    except (OSError, ValueError):
        return None


SLOW = 0.25
"""Seconds of a query from which an operator feels the latency: a key may need two queries."""


class Ping(NamedTuple):
    """The quickest of several answers.

    Args:
        took: seconds.
        skew: how far the database's clock is ahead of this host's, within half of `took`.
    """

    took: float
    skew: timedelta

    @property
    def slow(self) -> bool:
        """True if the latency is worth a figure in the heading."""
        return self.took >= SLOW


async def ping(ask: Callable[[], Awaitable[datetime]], times: int = 1) -> Ping:
    """Measure the latency and the clock skew.

    Args:
        ask: reads the database's time.
        times: the number of measurements; the quickest is the most accurate.
    """
    answers: list[Ping] = []
    while len(answers) < times and not (answers and answers[-1].slow):  # On a long way, one answer is accurate enough.
        start, here = time.perf_counter(), now()
        there = await ask()
        took = time.perf_counter() - start
        answers.append(Ping(took, there - here - timedelta(seconds=took / 2)))
    return min(answers)
