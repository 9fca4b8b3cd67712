"""retention: delete finished tasks after their retention, in short transactions."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.dialects import by_column
from runner.db.schema import Tables, is_open, is_state
from runner.db.schema.partitions import OLDEST_SUBMIT, full_name
from runner.db.schema.task import Condition, is_final_state
from runner.db.transaction import Transaction, clock
from runner.db.types import NO_JOIN, db_later, db_now
from runner.model.task import Scope, State
from runner.policy.partitions import LEEWAY, Range
from runner.policy.uniqueness import Key
from runner.settings import Settings
from runner.store.dependencies.parents import is_awaited
from runner.store.partitions import Forecast, drop, forecast, strip
from runner.store.unique import delete_keys

START: Key = ("", "")
"""Sorts before every key, since handler names are not empty."""

ONE: sa.ColumnElement[int] = sa.literal_column("1")

HELD_COLUMNS: dict[str, Any] = {"handler": sa.Text, "unique_key": sa.Text, "task_id": sa.BigInteger}


async def forget_expired(tx: Transaction, limit: int) -> int:
    """Delete unique keys whose time has expired.

    Args:
        tx: a writing transaction.
        limit: maximum number of keys.

    Returns:
        The number of deleted keys. Locked keys remain for the next call.
    """
    unique = tx.tables.unique
    is_expired = unique.c.expires_at <= db_now()
    selection = (
        sa.select(unique.c.handler, unique.c.unique_key).where(is_expired).order_by(unique.c.expires_at).limit(limit)
    )
    return await _forget(tx, selection.with_for_update(skip_locked=True))


async def forget_finished(tx: Transaction, holders: Iterable[tuple[Key, int]]) -> None:
    """Delete the unique keys of finished tasks that are being deleted, except keys with scope "forever".

    Args:
        tx: a writing transaction.
        holders: keys and ids of the tasks.
    """
    rows = [(*key, id) for key, id in holders]
    if rows:
        unique, finished = tx.tables.unique, tx.dialect.rows("finished", HELD_COLUMNS)
        same_key = (unique.c.handler == finished.c.handler) & (unique.c.unique_key == finished.c.unique_key)
        selection = sa.select(unique.c.handler, unique.c.unique_key).select_from(unique.join(finished, same_key))
        still = (unique.c.task_id == finished.c.task_id) & unique.c.scope.in_(
            (Scope.UNTIL_STARTED.value, Scope.UNTIL_FINISHED.value)
        )
        parameters = tx.dialect.parameters("finished", by_column(HELD_COLUMNS, rows))
        await _forget(tx, selection.where(still).with_for_update(of=unique, skip_locked=True), parameters)


async def forget_gone(tx: Transaction, after: Key, limit: int = 1_000) -> Key | None:
    """Delete the unique keys of tasks that no longer exist because their partition was dropped.

    Args:
        tx: a writing transaction.
        after: the key after which to start; START at first.
        limit: maximum number of keys to check.

    Returns:
        The key to continue from in another transaction; None at the end.
    """
    unique = tx.tables.unique
    row_key = sa.tuple_(unique.c.handler, unique.c.unique_key)
    selection = sa.select(unique.c.handler, unique.c.unique_key, unique.c.task_id).where(row_key > sa.tuple_(*after))
    rows = await tx.rows(selection.order_by(unique.c.handler, unique.c.unique_key).limit(limit))
    ids = sorted({row.task_id for row in rows})
    # One statement: between two of them a task may move from the one table to the other.
    parts = [
        sa.select(table.c.id).where(tx.dialect.one_of(table.c.id, ids)) for table in (tx.tables.task, tx.tables.history)
    ]
    there = {row.id for row in await tx.rows(sa.union_all(*parts))}
    await forget_finished(tx, [((handler, key), id) for handler, key, id in rows if id not in there])
    return (rows[-1].handler, rows[-1].unique_key) if len(rows) == limit else None


async def _forget(tx: Transaction, selection: sa.Select[Any], parameters: dict[str, Any] | None = None) -> int:
    # Never waits for locks: the owner of a key may wait for locks of this transaction.
    keys = [(handler, key) for handler, key in await tx.rows(selection, parameters)]
    await tx.follow(delete_keys(tx, keys))
    return len(keys)


def unreferenced(tables: Tables) -> list[Condition]:
    """The conditions of live tasks that no other row refers to, so that a success may leave no row in the history.

    They were never edited, and have no unique key and no order key. While a dependency is open, every task counts as
    its parent: this costs one look-up per statement. The same holds on PostgreSQL while a submit with parents is open,
    see `submit_watch`. An undo may open a dependency again that an operator has closed, or terminated with its task.
    A schedule may plan a run by the end of the last.
    """
    task: Any = tables.task.c
    is_scheduled = sa.func.coalesce(task.submitted_by, sa.literal_column("''")).like(sa.literal_column("'schedule %'"))
    any_open, own = sa.exists().where(is_open(tables.dependency.c)), tables.dependency.c.parent_id == task.id
    is_parent = sa.select(ONE).where(own).offset(NO_JOIN).exists()
    without_keys = (task.unique_key.is_(None), task.order_key.is_(None))
    return [task.version == ONE, *without_keys, ~is_scheduled, ~any_open, ~is_parent]


@dataclass(slots=True)
class SubmitWatch:
    """The state of a runner that deletes successes on PostgreSQL, see runner.db.schema.partitions.

    Args:
        last_dependency: the last id of a dependency when no submit with parents was open; None if one was.
    """

    last_dependency: int | None = None


LATE_COMMIT = timedelta(minutes=10)
"""Time by which the commit of a settle may follow its statement."""


async def oldest_submit(tx: Transaction) -> datetime | None:
    """Return a time before the start of every open submit with parents; None without one, and on SQLite."""
    if not tx.dialect.row_locks:
        return None
    start: datetime | None = await tx.scalar(sa.text(OLDEST_SUBMIT), {"name": full_name(tx.tables.task)})
    return start and start - LATE_COMMIT


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of one pruning transaction.

    Args:
        tasks: number of deleted tasks by state; their attempts, audit entries and dependencies are deleted too.
        minutes: number of deleted statistics rows.
        more: True if there may be more to delete in another transaction.
        keys: number of expired unique keys.
        ranges: id ranges that were dropped as a whole; `tasks` includes their tasks.
    """

    tasks: Mapping[State, int] = field(default_factory=dict)
    minutes: int = 0
    more: bool = False
    keys: int = 0
    ranges: Sequence[Range] = ()


def retention_of(settings: Settings) -> dict[State, timedelta]:
    """Return the retention by state; states without one are kept indefinitely."""
    ages = {
        State.SUCCEEDED: settings.retention_succeeded,
        State.DEAD: settings.retention_dead,
        State.CANCELLED: settings.retention_cancelled,
    }
    return {state: age for state, age in ages.items() if age is not None}


async def prune(
    tx: Transaction,
    retention: Mapping[State, timedelta],
    limit: int = 1_000,
    spared: Sequence[Range] = (),
    statistics: timedelta | None = None,
) -> Pruned:
    """Delete finished tasks that are older than the retention of their state, by the database's clock.

    Several runners may prune at the same time; each skips the rows that others have locked.

    Args:
        tx: a writing transaction; it is short for a small `limit`.
        retention: retention by final state; states without one are kept indefinitely. The ticks of schedules are kept
            for the longest of these.
        limit: maximum number of tasks, of statistics rows, of lost runners, of keys and of ticks to delete.
        spared: ranges whose succeeded tasks are skipped, because they will be dropped as a whole.
        statistics: retention of the minute statistics and of the lost runners; None keeps them indefinitely.
    """
    tasks: dict[State, int] = {}
    for state, age in retention.items():
        passed = [_outside(tx, part) for part in spared] if state is State.SUCCEEDED else []
        tasks[state] = await _prune_tasks(tx, state, age, limit - sum(tasks.values()), passed)
    minutes = 0 if statistics is None else await _prune_minutes(tx, statistics, limit)
    runners = 0 if statistics is None else await _prune_lost_runners(tx, statistics, limit)
    keys = await forget_expired(tx, limit)
    ticks = await _prune_ticks(tx, max(retention.values()), limit) if retention else 0
    return Pruned(tasks, minutes, limit <= max(sum(tasks.values()), minutes, runners, keys, ticks), keys)


def _outside(tx: Transaction, part: Range) -> Condition:
    id = tx.tables.history.c.id
    return (id < part.first) | (id >= part.end)


async def _prune_tasks(tx: Transaction, state: State, age: timedelta, limit: int, passed: Sequence[Condition]) -> int:
    history = tx.tables.history
    old = history.c.finished_at < db_later(db_now(), -age.total_seconds())
    # A parent with open dependents may be retried and succeed.
    by_id, by_key = is_awaited(tx.tables, history.c)
    conditions = [is_final_state(history.c.state, state), old, ~by_id, ~by_key, *passed]
    if (start := await oldest_submit(tx)) is not None:
        conditions.append(history.c.finished_at < start)
    # Newest first: older rows have mostly been deleted, except those of other states.
    columns = (history.c.id, history.c.handler, history.c.unique_key, history.c.finished_at)
    selection = sa.select(*columns).where(*conditions).order_by(history.c.finished_at.desc()).limit(limit)
    rows = await tx.rows(selection.with_for_update(skip_locked=True))
    if rows and tx.dialect.row_locks:
        # A submit that began since then may have found one of these tasks alive: it is open, or has left a dependency.
        start, ids = await oldest_submit(tx), [row.id for row in rows]
        awaited = sa.select(history.c.id).where(tx.dialect.one_of(history.c.id, ids), by_id | by_key)
        kept = {row.id for row in await tx.rows(awaited)}
        rows = [row for row in rows if row.id not in kept and (start is None or row.finished_at < start)]
    ids = [row.id for row in rows]
    if ids:
        await forget_finished(tx, [((row.handler, row.unique_key), row.id) for row in rows if row.unique_key])
        for column in (table.c.task_id for table in tx.tables.of_tasks):
            await tx.execute(sa.delete(column.table).where(tx.dialect.one_of(column, ids)))
        condition = tx.dialect.one_of(history.c.id, ids) & is_state(history.c.state, state)
        await tx.execute(sa.delete(history).where(condition))
    return len(ids)


async def _prune_minutes(tx: Transaction, age: timedelta, limit: int) -> int:
    minute = tx.tables.minute
    old = minute.c.minute < db_later(db_now(), -age.total_seconds())
    key = [minute.c[column.name] for column in minute.primary_key]
    selection = sa.select(*key).where(old).order_by(*key).limit(limit).subquery()
    deleted = sa.delete(minute).where(sa.tuple_(*key).in_(sa.select(selection)))
    return len(await tx.rows(deleted.returning(minute.c.minute)))


async def _prune_lost_runners(tx: Transaction, age: timedelta, limit: int) -> int:
    lost = tx.tables.lost_runner
    old = lost.c.lost_at < db_later(db_now(), -age.total_seconds())
    selection = sa.select(lost.c.runner_id).where(old).order_by(lost.c.lost_at).limit(limit).subquery()
    deleted = sa.delete(lost).where(lost.c.runner_id.in_(sa.select(selection)))
    return len(await tx.rows(deleted.returning(lost.c.runner_id)))


async def count_minutes(tx: Transaction, age: timedelta, limit: int) -> int:
    """Count the rows of minute statistics that are older than their retention, up to a limit."""
    minute = tx.tables.minute.c.minute
    old = sa.select(minute).where(minute < db_later(db_now(), -age.total_seconds())).limit(limit).subquery()
    return int(await tx.scalar(sa.select(sa.func.count()).select_from(old)))


async def _prune_ticks(tx: Transaction, age: timedelta, limit: int) -> int:
    """Delete ticks of schedules, except the last one of each, which must not happen again."""
    tick, schedule = tx.tables.tick, tx.tables.schedule
    old = tick.c.at < db_later(db_now(), -age.total_seconds())
    is_last = sa.exists().where(schedule.c.id == tick.c.schedule, schedule.c.last_tick <= tick.c.tick)
    key = [tick.c[column.name] for column in tick.primary_key]
    selection = sa.select(*key).where(old, ~is_last).order_by(tick.c.at).limit(limit).subquery()
    deleted = sa.delete(tick).where(sa.tuple_(*key).in_(sa.select(selection)))
    return len(await tx.rows(deleted.returning(tick.c.schedule)))


CONTINUE = Pruned(more=True)


async def enforce(
    database: Database,
    retention: Mapping[State, timedelta],
    leeway: float = LEEWAY,
    statistics: timedelta | None = None,
) -> AsyncGenerator[Pruned]:
    """Delete finished tasks that are older than the retention of their state: whole ranges first, then row by row.

    Args:
        database: the database.
        retention: retention by final state; states without one are kept indefinitely.
        leeway: fraction of the retention by which succeeded tasks may be kept longer, so that their range can be
            dropped as a whole.
        statistics: retention of the minute statistics; None keeps them indefinitely.

    Yields:
        The result of each transaction. The caller may stop at any time; the next call continues.
    """
    spared: list[Range] = []
    if State.SUCCEEDED in retention and database.dialect.partitions:
        ranges = await database.read(_forecast, retention[State.SUCCEEDED], leeway)
        spared = [*ranges.drop, *ranges.spare]
        async for pruned in _drop_ranges(database, ranges):
            yield pruned
    pruned = CONTINUE
    while pruned.more:
        pruned = await database.write(prune, retention, spared=spared, statistics=statistics)
        yield pruned


async def _forecast(tx: Transaction, age: timedelta, leeway: float) -> Forecast:
    """Forecast the ranges; tasks that may have ended during an open submit with parents are too young."""
    if (start := await oldest_submit(tx)) is not None:
        age = max(age, await clock(tx) - start)
    return await forecast(tx, age, leeway)


async def _drop_ranges(database: Database, ranges: Forecast) -> AsyncGenerator[Pruned]:
    """Drop ranges, each after the rows of other tables that belong to its tasks, and delete their unique keys."""
    count = 0
    for part in ranges.drop:
        unstripped: Range | None = part
        while unstripped:
            unstripped = await database.write(strip, unstripped, ranges.before)
            yield CONTINUE
        if dropped := await database.write(drop, part, ranges.before):
            count += 1
            yield Pruned({State.SUCCEEDED: dropped.tasks}, more=True, ranges=[part])
    last = START if count else None
    while last:
        last = await database.write(forget_gone, last)
        yield CONTINUE
