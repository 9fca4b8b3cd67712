"""Partitions of the history: their layout, creating id ranges ahead of the ids, and dropping old ones as a whole."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from runner.db.errors import CONTENT_STATES, fact_of, is_transient
from runner.db.schema import Tables, is_open, is_state
from runner.db.schema.partitions import SUCCEEDED, full_name, range_name
from runner.db.transaction import Transaction, clock
from runner.errors import DatabaseRefused
from runner.model.task import State
from runner.policy.partitions import FEW, Fate, Range, RangeState, beyond, fate, next_range
from runner.policy.retention import Retention
from runner.store.dependencies.parents import is_awaited, is_unresolved

BOUNDS = re.compile(r"FOR VALUES FROM \('(-?\d+)'\) TO \('(-?\d+)'\)")

# The default partition has no bounds. Reading them would wait for a transaction that creates a range.
RANGES = sa.text("""
    SELECT pg_get_expr(part.relpartbound, part.oid) AS bounds, part.reltuples AS rows
    FROM pg_inherits AS link JOIN pg_class AS part ON part.oid = link.inhrelid
        JOIN pg_partitioned_table AS whole ON whole.partrelid = link.inhparent AND whole.partdefid <> part.oid
    WHERE link.inhparent = CAST(:whole AS regclass)
""")

# Only owners may read the sequence.
RIGHTS = sa.text("""
    SELECT own, CASE WHEN own THEN pg_sequence_last_value(CAST(pg_get_serial_sequence(:task, 'id') AS regclass)) END,
        current_user
    FROM (
        SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE') AS own
        FROM pg_class WHERE oid = CAST(:whole AS regclass)
    ) AS rights
""")


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranges of the history.

    Args:
        ranges: the ranges in the order of ids, with the row counts of the server statistics; None before the first
            ANALYZE.
        next_id: the next id of the task sequence; 0 if this role may not read it.
        may_change: True if this role may create and drop partitions.
    """

    ranges: dict[Range, int | None]
    next_id: int
    may_change: bool
    role: str


async def read_layout(tx: Transaction) -> Layout | None:
    """Read the ranges of the history.

    Args:
        tx: an open transaction; two statements are executed.

    Returns:
        The ranges; None if this database has no partitions.
    """
    if not tx.dialect.partitions:
        return None
    whole, ranges = full_name(tx.tables.history, SUCCEEDED), {}
    for row in await tx.rows(RANGES, {"whole": whole}):
        # A range that was dropped while the statement ran is still listed, without bounds.
        if bounds := BOUNDS.fullmatch(row.bounds or ""):
            ranges[Range(int(bounds[1]), int(bounds[2]))] = None if row.rows < 0 else round(row.rows)
    ((own, last, role),) = await tx.rows(RIGHTS, {"whole": whole, "task": full_name(tx.tables.task)})
    return Layout(dict(sorted(ranges.items())), (last or 0) + 1 if own else 0, own, role)


SPACE = 0x7461736B
"""The first key of the advisory locks ("task"); the second is the oid of the table."""

LOCK_TIMEOUT = "50ms"
"""Longest wait for each table lock. Settles queue behind the request; they wait for 100 ms themselves."""

TRIES, PAUSE = 8, 0.2
"""Tries to drop a range that another transaction uses, and the seconds between them."""

LOCK = sa.text("SELECT pg_try_advisory_xact_lock(:space, CAST(CAST(:whole AS regclass) AS oid)::integer)")


async def lock_partitions(tx: Transaction) -> bool:
    """Lock the partitions until the transaction ends; return False if another transaction has the lock."""
    return bool(await tx.scalar(LOCK, {"space": SPACE, "whole": full_name(tx.tables.history, SUCCEEDED)}))


class LockAttempt:
    """The result of a change.

    Args:
        failed: True if a table was in use or a row was in conflict; nothing was changed.
        in_use: True if another transaction was the reason, so that a later try may succeed.
        fact: the reason of the database.
    """

    failed: bool = False
    in_use: bool = False
    fact: str = ""


@asynccontextmanager
async def attempt_change(tx: Transaction) -> AsyncIterator[LockAttempt]:
    """Roll the block back if a lock is not available within LOCK_TIMEOUT, and report it.

    Its locks stop every settle. They end with the pause limit if this process is stopped before the commit.
    """
    attempt = LockAttempt()
    try:
        async with tx.connection.begin_nested():
            await tx.execute(sa.select(tx.dialect.lock_limit(LOCK_TIMEOUT), tx.dialect.pause_limit()))
            yield attempt
    except sa.exc.DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""
        if not (is_transient(error) or state.startswith(CONTENT_STATES)):
            raise
        attempt.failed, attempt.in_use, attempt.fact = True, is_transient(error), fact_of(error)


async def assess(tx: Transaction, part: Range, next_id: int, before: datetime, soon: datetime) -> RangeState:
    """Determine the age of the rows of a range, and the number of rows that may still arrive.

    Args:
        tx: an open transaction; one statement is executed, which reads at most FEW rows of each table. It looks for
            live tasks only in a range that may be dropped: it passes the dead entries of all tasks that have ended.
        next_id: the next id of the task sequence.
        before: tasks that finished before this time are old.
        soon: tasks that finished before this time will be old after the leeway.
    """
    past, task = tx.tables.history.c, tx.tables.task.c
    finished = sa.select(past.finished_at).where(*within(tx.tables, part))
    oldest = finished.order_by(past.finished_at).limit(1).scalar_subquery()
    youngest = finished.order_by(past.finished_at.desc()).offset(FEW).limit(1).scalar_subquery()
    live = sa.select(task.id).where(task.id >= part.first, task.id < part.end).limit(FEW + 1).subquery()
    number = sa.select(sa.func.count()).select_from(live).scalar_subquery()
    used_up = part.end <= next_id
    few_live = sa.case((oldest >= before, sa.true()), else_=number <= FEW) if used_up else sa.true()
    (row,) = await tx.rows(sa.select(few_live, oldest < before, youngest < before, youngest < soon))
    return RangeState(used_up, *row)


def within(tables: Tables, part: Range) -> tuple[sa.ColumnElement[bool], ...]:
    """The conditions that a finished task is in a range."""
    past: Any = tables.history.c
    return is_state(past.state, State.SUCCEEDED), past.id >= part.first, past.id < part.end


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The time from which succeeded tasks are too young to be deleted.

    Args:
        before: tasks that finished before this time are old.
        queues: the same for the queues whose tasks are kept longer; None keeps them indefinitely.
    """

    before: datetime
    queues: Mapping[str, datetime | None] = field(default_factory=dict)

    def is_young(self, past: Any) -> sa.ColumnElement[bool]:
        """The condition that a finished task is too young, for the columns of a history."""
        return sa.or_(past.finished_at >= self.before, *self.kept(past))

    def kept(self, past: Any) -> list[sa.ColumnElement[bool]]:
        """The conditions that a finished task is in one of the queues, and too young there."""
        return [
            past.queue == queue if before is None else (past.queue == queue) & (past.finished_at >= before)
            for queue, before in self.queues.items()
        ]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The ranges to drop and to spare; tasks of other ranges are deleted row by row.

    Args:
        drop: ranges to drop now, the lowest ids first.
        spare: ranges to skip, because they can be dropped soon.
    """

    cutoff: Cutoff
    drop: Sequence[Range] = ()
    spare: Sequence[Range] = ()


async def forecast(tx: Transaction, retention: Retention, leeway: float, at_least: timedelta = timedelta()) -> Forecast:
    """Decide which ranges of the history to drop or to spare, without changes.

    Args:
        retention: retention of finished tasks, with one of succeeded tasks.
        leeway: fraction of the retention by which they may be kept longer.
        at_least: the shortest retention of succeeded tasks.
    """
    now, layout = await clock(tx), await read_layout(tx)
    age, queues = max(retention.states[State.SUCCEEDED], at_least), retention.longer(State.SUCCEEDED)
    cutoff = Cutoff(now - age, {queue: own if own is None else now - max(own, age) for queue, own in queues.items()})
    if layout is None or not layout.may_change:
        return Forecast(cutoff)
    soon = cutoff.before + leeway * age
    started_ranges = [part for part in layout.ranges if part.first < layout.next_id]
    fates = {part: await _fate(tx, part, layout.next_id, cutoff, soon) for part in started_ranges}
    drop, spare = ([part for part in started_ranges if fates[part] is fate] for fate in (Fate.DROP, Fate.SPARE))
    return Forecast(cutoff, drop, spare)


async def _fate(tx: Transaction, part: Range, next_id: int, cutoff: Cutoff, soon: datetime) -> Fate:
    """Decide about a range. One with many tasks of queues that are kept longer is not dropped."""
    decided = fate(await assess(tx, part, next_id, cutoff.before, soon))
    if decided not in (Fate.DROP, Fate.SPARE) or not cutoff.queues:
        return decided
    past = tx.tables.history.c
    kept = sa.select(past.id).where(*within(tx.tables, part), sa.or_(*cutoff.kept(past))).limit(FEW + 1)
    many = await tx.scalar(sa.select(sa.func.count() > FEW).select_from(kept.subquery()))
    return Fate.SWEEP if many else decided


async def has_tasks_beyond(tx: Transaction, end: int) -> bool:
    """Return True if there are succeeded tasks beyond all ranges of the history.

    Args:
        end: the end of the last range.
    """
    past = tx.tables.history.c
    there = sa.select(past.id).where(is_state(past.state, State.SUCCEEDED), past.id >= end).exists()
    return bool(await tx.scalar(sa.select(there)))


MAX_SKIPPED = 10
"""Maximum number of ranges to skip because the default partition already contains rows of them."""


async def extend(tx: Transaction) -> Range | None:
    """Create one range if there are too few beyond the next id.

    Returns:
        The new range; call again in another transaction. None if there are enough ranges, if this role may not create
        any, or if the caller must try again later.
    """
    layout = await read_layout(tx)
    if layout is None or not layout.may_change or not await lock_partitions(tx):
        return None
    new_range = await _next_free(
        tx, await read_layout(tx) or layout
    )  # another runner may have created it before the lock
    return new_range if new_range and await _create(tx, new_range) else None


async def _next_free(tx: Transaction, layout: Layout) -> Range | None:
    """Return the range to create; the default partition must not contain a row of it."""
    new_range, past = next_range(list(layout.ranges), layout.next_id), tx.tables.history.c
    for _ in range(MAX_SKIPPED):
        if new_range is None:
            break
        within = is_state(past.state, State.SUCCEEDED) & (past.id >= new_range.first) & (past.id < new_range.end)
        highest_id = await tx.scalar(sa.select(sa.func.max(past.id)).where(within))
        if highest_id is None:
            return new_range
        new_range = beyond(new_range, highest_id)
    return None


async def _create(tx: Transaction, new_range: Range) -> bool:
    whole = full_name(tx.tables.history, SUCCEEDED)
    table = full_name(tx.tables.history, range_name(new_range.first))
    async with attempt_change(tx) as attempt:
        # Create a table and attach it: PARTITION OF would wait for every settle and reader, and they for it.
        await tx.execute(sa.text(f"CREATE TABLE {table} (LIKE {whole} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"))
        values = f"FROM ({new_range.first}) TO ({new_range.end})"
        await tx.execute(sa.text(f"ALTER TABLE {whole} ATTACH PARTITION {table} FOR VALUES {values}"))
    return not attempt.failed


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dropped range.

    Args:
        tasks: number of succeeded tasks in it, as far as the server had counted them.
    """

    part: Range
    tasks: int


@dataclass(frozen=True, slots=True)
class InUse:
    """A range that another transaction used, also a vacuum.

    Args:
        fact: the reason of the database.
    """

    fact: str


async def drop(tx: Transaction, part: Range, cutoff: Cutoff) -> Dropped | InUse | None:
    """Drop a range of the history if all but a few of its rows are old.

    These few, parents of open dependencies, and children whose callers have not read their ends move to the default
    partition.

    Returns:
        The dropped range, or the reason if all tries failed. None if another runner drops ranges, if the range is gone,
        or if it has young rows.

    Raises:
        DatabaseRefused: the range cannot be dropped, as a view depends on it.
    """
    if not await lock_partitions(tx):
        return None
    layout = await read_layout(tx)
    if layout is None or part not in layout.ranges:
        return None
    if await _fate(tx, part, layout.next_id, cutoff, cutoff.before) is not Fate.DROP:
        return None
    estimate = layout.ranges[part]
    tasks = await _count(tx, part) if estimate is None else estimate
    for number in range(TRIES):
        if number:
            await asyncio.sleep(PAUSE)
        async with attempt_change(tx) as attempt:
            moved = await _drop(tx, part, cutoff)
        if not attempt.in_use:
            break
    if attempt.in_use:
        return InUse(attempt.fact)
    if attempt.failed:
        raise DatabaseRefused(why=attempt.fact)
    return Dropped(part, max(0, tasks - moved))


async def _count(tx: Transaction, part: Range) -> int:
    """Count the rows of a range without server statistics; such a range is small."""
    past = tx.tables.history
    return int(await tx.scalar(sa.select(sa.func.count()).select_from(past).where(*within(tx.tables, part))))


async def _drop(tx: Transaction, part: Range, cutoff: Cutoff) -> int:
    """Drop the range and return the number of rows that were kept: young ones, and those that others wait for."""
    history = tx.tables.history
    whole, table = (full_name(history, name) for name in (SUCCEEDED, range_name(part.first)))
    await tx.execute(sa.text(f"ALTER TABLE {whole} DETACH PARTITION {table}"))
    names = [column.name for column in history.c]
    apart = sa.table(f"{history.name}_{range_name(part.first)}", *map(sa.column, names), schema=history.schema)
    is_young = cutoff.is_young(apart.c)
    young = sa.select(*apart.c).where(is_young)
    moved = await tx.rows(sa.insert(history).from_select(names, young).returning(history.c.id))
    if ids := await _awaited(tx, apart, part):
        kept = sa.select(*apart.c).where(~is_young, tx.dialect.one_of(apart.c.id, ids))
        moved = [*moved, *await tx.rows(sa.insert(history).from_select(names, kept).returning(history.c.id))]
    await tx.execute(sa.text(f"DROP TABLE {table}"))
    return len(moved)


async def _awaited(tx: Transaction, apart: Any, part: Range) -> list[int]:
    """The tasks of a range that others wait for, found by the dependencies: the range may have millions of rows."""
    dependency = tx.tables.dependency.c
    by_id = (is_unresolved(tx.tables, dependency), dependency.parent_id >= part.first, dependency.parent_id < part.end)
    same_key = (apart.c.key == dependency.parent_key) & (apart.c.handler == dependency.parent_handler)
    named = sa.select(apart.c.id).where(is_open(dependency), dependency.parent_key.is_not(None), same_key)
    return sorted({row[0] for row in await tx.rows(sa.union_all(sa.select(dependency.parent_id).where(*by_id), named))})


async def strip(tx: Transaction, part: Range, cutoff: Cutoff, limit: int = 1_000) -> Range | None:
    """Delete attempts, audit entries, dependencies and notes of the old tasks of a range, in small steps.

    Rows of other tasks with ids in the range stay: these are dead, live, not old yet, or others wait for them.

    Args:
        part: the range to drop, or the rest from the last call.
        limit: maximum number of rows to read in each table.

    Returns:
        The rest of the range for another transaction; None at the end.
    """
    columns = [table.c.task_id for table in tx.tables.of_tasks]
    first = min([await _strip(tx, column, part, cutoff, limit) for column in columns])
    return Range(first, part.end) if first < part.end else None


async def _strip(tx: Transaction, column: Any, part: Range, cutoff: Cutoff, limit: int) -> int:
    """Strip the rows of one table and return the id to continue with."""
    here = (column >= part.first, column < part.end)
    met = [row[0] for row in await tx.rows(sa.select(column).where(*here).order_by(column).limit(limit))]
    upto = Range(part.first, met[-1] + 1 if len(met) == limit else part.end)
    past = tx.tables.history.c
    by_id, by_key = is_awaited(tx.tables, past)
    old = (~cutoff.is_young(past), tx.dialect.one_of(past.id, sorted(set(met))), ~by_id, ~by_key)
    ids = [row.id for row in await tx.rows(sa.select(past.id).where(*within(tx.tables, upto), *old))] if met else []
    if ids:
        await tx.execute(sa.delete(column.table).where(tx.dialect.one_of(column, ids)))
    return upto.end
