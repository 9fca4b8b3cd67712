"""StuckRow: a row of a task that a verb could not change, because it is locked or because the database refuses it."""

import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

StuckVerb: TypeAlias = Literal[
    "settle",
    "complete",
    "claim",
    "start",
    "checkpoint",
    "step",
    "note",
    "rescue",
    "expire",
    "resolve",
    "schedule",
    "signal",
    "prune",
]
"""The verb that could not change the row."""


VERBS_OF_RUNNING: frozenset[StuckVerb] = frozenset(
    {"settle", "complete", "start", "checkpoint", "step", "note", "rescue"}
)
"""The verbs that change the row of a running task. Only `prune` changes the row of a finished one."""


class StuckCause(StrEnum):
    """Why a verb could not change a row."""

    LOCKED = "locked"
    """Another transaction locks it."""
    REFUSED = "refused"
    """The database refuses the change: a trigger or a constraint raises an error, or the row is damaged."""


class BlockingSession(NamedTuple):
    """The session of the database that locks a row.

    Args:
        pid: process id of the session on the server; None for a prepared transaction.
        state: state of the session, such as "idle in transaction"; empty if this login may not see it.
        age: seconds since its transaction began; None if this login may not see it.
        statement: start of its last statement, without the values in it; empty if this login may not see it.
        prepared: name of a prepared transaction; empty for others.
        certain: False if the session only probably holds the lock.
    """

    pid: int | None
    application: str = ""
    user: str = ""
    state: str = ""
    age: float | None = None
    statement: str = ""
    prepared: str = ""
    certain: bool = True


LONG_LOCK = 2.0
"""Seconds up to which a lock is one of a short transaction."""


class HeldLock(NamedTuple):
    """A lock of a row of any table, or of a whole table, with the session that holds it.

    Args:
        table: name of the table.
        key: primary key of the row as text; empty for the whole table, and if it is unknown.
        session: the session; the oldest one of several.
        mode: mode of a lock of a whole table; empty if it is unknown.
    """

    table: str
    key: str
    session: BlockingSession
    mode: str = ""

    @property
    def is_long(self) -> bool:
        """True if a transaction of this program would have ended; a prepared transaction without an age counts."""
        return self.session.age is None or self.session.age >= LONG_LOCK


class RowPlace(NamedTuple):
    """The address of a row of any table, which an error or a lock names.

    Args:
        table: name of the table, or of its partition.
        address: address of the row in it: its ctid.
    """

    table: str
    address: str


class RowFault(NamedTuple):
    """The reason why the database did not change a row.

    Args:
        cause: locked or refused.
        fact: the observed fact, which begins with the SQLSTATE or the name of the SQLite error.
        of_value: True if the reason may be a new value, and not the row.
        of_statement: True if the statement fails for all rows alike, unless it succeeds for some of them.
        place: the locked row, if the error names it; it may be one of another table.
    """

    cause: StuckCause
    fact: str
    of_value: bool = False
    of_statement: bool = False
    place: RowPlace | None = None


LOCKED = RowFault(StuckCause.LOCKED, "the row is locked by another transaction")
"""The reason of a verb that skips locked rows."""


class StuckRow(NamedTuple):
    """A row of a task that a verb could not change.

    Args:
        cause: locked or refused.
        fact: the observed fact, which begins with the SQLSTATE or the name of the SQLite error.
        since: time of the first failure, by the clock of the runner.
        tries: number of failures.
        blocker: the session that locks the row; None if it is unknown, and for a refused row.
    """

    task: int
    handler: str
    verb: StuckVerb
    cause: StuckCause
    fact: str
    since: datetime
    tries: int = 1
    blocker: BlockingSession | None = None


MOST_STORED = 20
"""Maximum number of stuck rows that a runner stores for other processes: the oldest ones."""


class StuckReport(NamedTuple):
    """The stuck rows that a runner stores for other processes.

    Args:
        rows: the oldest ones.
    """

    rows: tuple[StuckRow, ...] = ()
    total: int = 0

    def among(self, rows: Collection[StuckRow]) -> "StuckReport":
        """Keep only some of the rows."""
        kept = tuple(row for row in self.rows if row in rows)
        return StuckReport(kept, self.total - len(self.rows) + len(kept))


def stored_stuck(rows: Sequence[StuckRow]) -> str | None:
    """Write stuck rows as JSON text for the registry of runners; None without any."""
    if not rows:
        return None
    listed = [
        row._asdict() | {"since": row.since.isoformat(), "blocker": row.blocker and row.blocker._asdict()}
        for row in rows[:MOST_STORED]
    ]
    return json.dumps({"total": len(rows), "rows": listed})


def read_stuck(text: str | None) -> StuckReport:
    """Read the text of `stored_stuck`, as far as it is valid: any client may have written it."""
    try:
        stored = json.loads(text or "{}")
        listed = [row for each in stored.get("rows", ())[:MOST_STORED] if (row := _row(each)) is not None]
        total = stored.get("total")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return StuckReport()
    return StuckReport(tuple(listed), max(len(listed), total if isinstance(total, int) else 0))


def _row(stored: Any) -> StuckRow | None:
    try:
        since = datetime.fromisoformat(stored["since"]).astimezone(UTC)
        verb, blocker = stored["verb"], stored["blocker"]
        valid = (
            isinstance(stored["task"], int)
            and abs(stored["task"]) < 1 << 63
            and isinstance(stored["tries"], int)
            and verb in get_args(StuckVerb)
        )
        session = None if blocker is None else _session(blocker)
        texts = (str(stored["handler"]), verb, StuckCause(stored["cause"]), str(stored["fact"]))
        return StuckRow(stored["task"], *texts, since, stored["tries"], session) if valid else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _session(stored: Any) -> BlockingSession:
    pid, age = stored["pid"], stored["age"]
    texts = {name: str(stored[name]) for name in ("application", "user", "state", "statement", "prepared")}
    return BlockingSession(
        pid if isinstance(pid, int) else None,
        age=float(age) if isinstance(age, (int, float)) else None,
        certain=stored["certain"] is True,
        **texts,
    )
