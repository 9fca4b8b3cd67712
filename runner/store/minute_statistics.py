"""Minute statistics: counts of outcomes and submits, written in their transactions.

Each runner has its own rows. A settle therefore waits for no other runner, and the counts stay exact when a process
dies.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.errors import locks_refused
from runner.db.schema import MINUTE_COUNTS, MINUTE_TIMES, NO_BIN, Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import Instant, db_now, minute_at, minute_number, minute_start
from runner.model.task import State
from runner.policy.histogram import Times

COUNTED: dict[str, str] = {
    "succeed": State.SUCCEEDED,
    "retry": "retried",
    "die": "died",
    "cancel": State.CANCELLED,
    "rescue": "rescued",
}
"""The column for each move."""

EARLY = {1: "first_try", 2: "second_try"}
"""The additional column for a success on an early attempt."""

FIRST = 1
"""The fence of the first claim of a task."""

NO_RUNNER = 0
"""The id in place of a runner's, for tasks that no runner has."""

LOCK_TIMEOUT = "200ms"
"""Longest wait of a write of times for the lock of a row."""

MAX_AHEAD = 60
"""Minutes that a submit time may be ahead of the database's clock."""

MINUTE_KEY = ("minute", "queue", "handler")

MinuteKey: TypeAlias = tuple[datetime | str, str, str]
"""Minute, queue and handler. A minute of a prepared statement is text on SQLite."""

COUNT_COLUMNS: dict[str, Any] = {
    "minute": Instant,
    "queue": sa.Text,
    "handler": sa.Text,
    "runner_id": sa.BigInteger,
    "part": sa.SmallInteger,
    "bin_ms": sa.Integer,
}
"""The key of a row."""


class Run(NamedTuple):
    """A run that ended.

    Args:
        row: the task's row with queue, handler, attempt, fence of the run, and `minute_columns`.
        verb: the resulting move.
    """

    row: Any
    verb: str


def minute_columns(task: Any) -> list[sa.ColumnElement[Any]]:
    """Return the columns `minute`, the current one, and `submitted_minute` for the row of a Run."""
    return [minute_start(db_now()).label("minute"), _submitted_minute(task).label("submitted_minute")]


async def count_runs(tx: Transaction, runner_id: int, runs: Iterable[Run]) -> None:
    """Count runs that ended, and their tasks as submitted after the first run."""
    totals: dict[MinuteKey, Counter[str]] = defaultdict(Counter)
    for row, verb in runs:
        if verb in COUNTED:
            total = totals[row.minute, row.queue, row.handler]
            total[COUNTED[verb]] += 1
            if verb == "succeed" and row.attempt in EARLY:
                total[EARLY[row.attempt]] += 1
        if row.fence == FIRST:
            totals[row.submitted_minute, row.queue, row.handler]["submitted"] += 1
    await add_counts(tx, runner_id, totals)


async def count_cancelled(tx: Transaction, ids: Sequence[int]) -> None:
    """Count tasks that are cancelled because of a parent, and those of them as submitted that never ran.

    Args:
        ids: ids of locked tasks.
    """
    minute = minute_start(db_now())
    cancelled = await _numbers(tx, minute, tx.dialect.one_of(tx.tables.task.c.id, ids))
    totals = {minute_key: {State.CANCELLED.value: number} for minute_key, number in cancelled.items()}
    for minute_key, number in (await _unclaimed(tx, ids)).items():
        totals.setdefault(minute_key, {})["submitted"] = number
    await add_counts(tx, NO_RUNNER, totals)


async def count_unclaimed(tx: Transaction, ids: Sequence[int], times: int = 1) -> None:
    """Count tasks as submitted that finish without ever being claimed: no run counts them.

    Args:
        ids: ids of locked tasks.
        times: -1 reverts the count for tasks that return to the queue, where a run counts them.
    """
    unclaimed = await _unclaimed(tx, ids)
    await add_counts(
        tx, NO_RUNNER, {minute_key: {"submitted": times * number} for minute_key, number in unclaimed.items()}
    )


async def _unclaimed(tx: Transaction, ids: Sequence[int]) -> dict[MinuteKey, int]:
    task = tx.tables.task.c
    return await _numbers(tx, _submitted_minute(task), tx.dialect.one_of(task.id, ids) & (task.fence == 0))


async def _numbers(tx: Transaction, minute: Any, condition: sa.ColumnElement[bool]) -> dict[MinuteKey, int]:
    task = tx.tables.task.c
    columns = (minute, task.queue, task.handler)
    rows = await tx.rows(sa.select(*columns, sa.func.count()).where(condition).group_by(*columns))
    return {(row[0], row[1], row[2]): row[3] for row in rows}


async def add_counts(tx: Transaction, runner_id: int, totals: Mapping[MinuteKey, Mapping[str, int]]) -> None:
    """Add counts to the rows of a runner. Call it once per transaction, so that two transactions never deadlock.

    Args:
        totals: counts by column, for each minute, queue and handler.
    """
    names = tuple(name for name in MINUTE_COUNTS if any(name in counts for counts in totals.values()))
    rows = [
        (*minute_key, runner_id, 0, NO_BIN, *(counts.get(name, 0) for name in names))
        for minute_key, counts in totals.items()
    ]
    if names:
        parameters = tx.dialect.row_parameters("counts", (*COUNT_COLUMNS, *names), rows)
        await tx.run(_add_counts(tx.tables, tx.driver, names), parameters)


@lru_cache
def _add_counts(tables: Tables, driver: sa.Dialect, names: tuple[str, ...]) -> Prepared:
    dialect, columns = DIALECTS[driver.name], COUNT_COLUMNS | dict.fromkeys(names, sa.Integer)
    rows = dialect.rows("counts", columns)
    ordered = sa.select(*rows.c).order_by(*(rows.c[name] for name in MINUTE_KEY))
    return Prepared(_adding(tables, dialect.insert(tables.minute).from_select([*columns], ordered), names), driver)


async def record_times(tx: Transaction, runner_id: int, times: Mapping[tuple[str, str], Times]) -> None:
    """Add the run times and waits of attempts to the current minute.

    Args:
        tx: an open transaction; two statements are executed.
        times: histograms by queue and handler.

    Raises:
        RowLocked: another transaction locks a row of this minute.
    """
    minute = tx.tables.minute
    zero = dict.fromkeys(MINUTE_TIMES, 0)
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for (queue, handler), each in sorted(times.items()):
        for names, histogram in zip((("runs", "run_time"), ("waits", "wait_time")), each, strict=True):
            for bound, numbers in sorted(histogram.bins.items()):
                key = {"queue": queue, "handler": handler, "bin_ms": bound, "runner_id": runner_id}
                row = rows.setdefault((queue, handler, bound), key | zero)
                row.update(zip(names, numbers, strict=True))
    if rows:
        insert = tx.dialect.insert(minute).values(minute=minute_start(db_now()), part=0)
        await tx.execute(sa.select(tx.dialect.lock_limit(LOCK_TIMEOUT)))  # the heartbeats wait too
        with locks_refused():
            await tx.execute(_adding(tx.tables, insert, tuple(MINUTE_TIMES)), list(rows.values()))


def count_successes(tables: Tables, dialect: Dialect, run: sa.FromClause, holder: Any, part: Any) -> Any:
    """Return the insert that counts the successes of one settle.

    Args:
        run: the tasks with queue, handler, attempt, fence and submitted_at.
        part: number of the row among those of the runner.
    """
    column, zero = run.c, _number(0)
    keys = {
        "queue": column.queue,
        "handler": column.handler,
        "early": sa.case((column.attempt <= _number(max(EARLY)), column.attempt)),
        "submitted": sa.case((column.fence == _number(FIRST), _submitted_number(column))),
    }
    columns = [key.label(name) for name, key in keys.items()]
    # Each task is touched once; the rest works on the few groups.
    groups = sa.select(*columns, sa.cast(sa.func.count(), sa.Integer).label("runs"))
    group = groups.group_by(*(sa.text(name) for name in keys)).cte("run_group")
    lane = (group.c.queue, group.c.handler)
    early = [sa.case((group.c.early == _number(n), group.c.runs), else_=zero).label(EARLY[n]) for n in EARLY]
    success = sa.select(
        minute_start(db_now()).label("minute"),
        *lane,
        zero.label("submitted"),
        group.c.runs.label(COUNTED["succeed"]),
        *early,
    )
    submit = sa.select(_minute(group.c.submitted), *lane, group.c.runs, zero, *(zero for _ in EARLY))
    each = sa.union_all(success, submit.where(group.c.submitted.is_not(None))).subquery("each")
    names, key = ("submitted", COUNTED["succeed"], *EARLY.values()), [each.c[name] for name in MINUTE_KEY]
    counts = sa.select(*key, holder, part, *(sa.func.sum(each.c[name]) for name in names)).group_by(*key).order_by(*key)
    insert = dialect.insert(tables.minute).from_select([*MINUTE_KEY, "runner_id", "part", *names], counts)
    return _adding(tables, insert, names)


def _number(value: int) -> sa.ColumnElement[int]:
    return sa.literal_column(str(value), sa.Integer)


def _adding(tables: Tables, insert: Any, names: Sequence[str]) -> Any:
    """Let an insert add the counts to existing rows."""
    minute = tables.minute
    sums = {name: minute.c[name] + insert.excluded[name] for name in names}
    return insert.on_conflict_do_update(index_elements=minute.primary_key, set_=sums)


def _submitted_minute(task: Any) -> sa.ColumnElement[datetime]:
    """The minute of the submit, or the current one if the row has no plausible time."""
    return _minute(_submitted_number(task))


def _submitted_number(task: Any) -> sa.ColumnElement[float]:
    """The minutes from 1970 to the submit; -1 if the row has no readable time."""
    return sa.func.coalesce(minute_number(task.submitted_at), _number(-1))


def _minute(number: Any) -> sa.ColumnElement[datetime]:
    """The minute with a number since 1970, or the current one if it is not plausible."""
    latest = minute_number(db_now()) + _number(MAX_AHEAD)
    return sa.case((number.between(_number(0), latest), minute_at(number)), else_=minute_start(db_now()))
