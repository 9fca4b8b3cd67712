"""health: how the database itself is, as far as the role may see it, and what gives cause for worry."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from runner.people import cells
from runner.people.terminal import one_line
from runner.store.observe.legible import clock, number, text, whole, words
from runner.store.observe.rights import staleness
from runner.store.transaction import Transaction

OLD = 300.0
"""Seconds after which an open transaction is a worry: nothing that has ended since it began can be cleaned up."""

MANY_DEAD = 100_000
"""Dead rows of a table that are a worry when they are more than the live ones too."""

LARGE_WAL = 256 * 1024 * 1024
"""Bytes of a write-ahead log that are a worry: a reader has kept it from being written back for long."""

NEARLY_ALL = 0.9
"""The share of the allowed connections from which on they may run out."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The transaction that was begun first of those that are open.

    Args:
        age: seconds since it was begun.
        pid: of its connection, on the server.
        program: what it calls itself.
        state: what it does at present.
    """

    age: float
    pid: int
    program: str
    state: str


@dataclass(frozen=True, slots=True)
class DeadRows:
    """Rows of a table that nobody sees any more, and that take room until they are vacuumed.

    Args:
        table: its name.
        live: rows that can be seen, estimated.
        dead: rows that cannot.
        vacuumed: seconds since it was vacuumed; None for never.
    """

    table: str
    live: int
    dead: int
    vacuumed: float | None


@dataclass(frozen=True, slots=True)
class Health:
    """How a database is; what it cannot tell, or must not tell this role, is None.

    Args:
        at: its time.
        kind: which database it is.
        version: of its program.
        size: bytes of our tables, or of the file.
        free: bytes of the file that nothing uses.
        wal: bytes of the file's write-ahead log.
        connections: how many there are, and how many there may be.
        hidden: connections of which this role may not see what they do.
        oldest: the transaction that has been open for longest.
        dead: tables by their dead rows.
        stale: seconds since the newest change was made that a standby shows; None where there is no standby.
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
    stale: float | None = None


@dataclass(frozen=True, slots=True)
class Worry:
    """Something about a database that should not stay as it is.

    Args:
        text: a sentence, safe to show.
        advice: what to do.
    """

    text: str
    advice: str


async def health(tx: Transaction) -> Health:
    """Ask the database how it is.

    Args:
        tx: an open transaction; a few statements are executed, none of which reads our tables.
    """
    told = {name: await tx.rows(statement) for name, statement in tx.dialect.vitals(tx.tables).items()}
    size, free, file = told["size"][0] if told.get("size") else (None, None, None)
    used, most, hidden = told["connections"][0] if told.get("connections") else (None, 0, 0)
    dead = (DeadRows(words(row[0]), whole(row[1]), whole(row[2]), number(row[3])) for row in told.get("bloat", ()))
    oldest = (OpenTransaction(row[0], row[1], words(row[2]), words(row[3])) for row in told.get("oldest", ()))
    return Health(
        at=await clock(tx),
        kind=tx.dialect.name,
        version=words(told["version"][0][0]),
        size=size,
        free=free,
        wal=_wal(text(file)),
        connections=None if used is None else (used, most),
        hidden=hidden,
        oldest=next(iter(oldest), None),
        dead=tuple(dead),
        stale=await staleness(tx),
    )


def worries(found: Health) -> Iterator[Worry]:
    """Tell what gives cause for worry, the worst first."""
    if found.oldest is not None and found.oldest.age > OLD:
        who = f"{one_line(found.oldest.program) or 'somebody'} (connection {found.oldest.pid}, {found.oldest.state})"
        yield Worry(
            f"a transaction of {who} has been open for {cells.age(found.oldest.age)}: dead rows stay until it ends",
            f"End it, if nobody needs it: SELECT pg_terminate_backend({found.oldest.pid})",
        )
    for table in found.dead:
        if table.dead > max(MANY_DEAD, table.live):
            when = f"{cells.age(table.vacuumed)} ago" if table.vacuumed is not None else "never"
            yield Worry(
                f"{table.table} has {table.dead:,} dead rows beside {table.live:,} live ones, vacuumed {when}",
                f"Look for old transactions, then: VACUUM {table.table}",
            )
    if found.connections is not None and found.connections[0] >= NEARLY_ALL * found.connections[1]:
        used, most = found.connections
        yield Worry(f"{used} of {most} connections are in use", "Raise max_connections, or use fewer.")
    if found.wal is not None and found.wal > LARGE_WAL:
        yield Worry(
            f"the write-ahead log has grown to {cells.size(found.wal)}",
            "Somebody has been reading for long: look for programs that keep a transaction open.",
        )


def _wal(file: str | None) -> int | None:
    """The size of the log beside a SQLite file."""
    try:
        return Path(f"{file}-wal").stat().st_size if file else None
    except (OSError, ValueError):
        return None
