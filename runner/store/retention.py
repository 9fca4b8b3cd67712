"""retention: delete finished tasks after their retention, in short transactions."""

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.errors import row_fault
from runner.db.halves import write_in_halves
from runner.db.lock_limits import UPKEEP_LOCKS
from runner.db.schema import Tables, is_open, is_state
from runner.db.schema.partitions import OLDEST_SUBMIT, full_name
from runner.db.schema.task import Condition, is_final_state
from runner.db.transaction import Transaction, clock
from runner.db.types import NO_JOIN, db_later, db_now
from runner.errors import DatabaseRefused, StoreError
from runner.model.stuck_row import LOCKED, RowFault, StuckCause
from runner.model.task import Scope, State
from runner.policy.partitions import LEEWAY, Range
from runner.policy.retention import AgeGroup, Retention
from runner.policy.selection import among
from runner.policy.uniqueness import HandlerKey
from runner.settings import Settings
from runner.settings.queue_retention import parse_queue_retention
from runner.store.dependencies.parents import is_awaited
from runner.store.partitions import Forecast, InUse, drop, forecast, strip
from runner.store.unique import delete_keys
from runner.text.sanitize import one_line

CHUNK = 1_000
"""Maximum number of rows of a table per transaction."""

MOST_LOCKED = 20
"""Maximum number of locked tasks that are reported."""

OnFault: TypeAlias = Callable[[int, str, RowFault], object]
"""Takes a task that cannot be deleted, its handler and the reason."""

log = logging.getLogger("runner.maintenance")


def ignore(_task: int, _handler: str, _fault: RowFault) -> None:
    """The default of `on_fault`."""


START: HandlerKey = ("", "")
"""Sorts before every key, since handler names are not empty."""

ONE: sa.ColumnElement[int] = sa.literal_column("1")

HELD_COLUMNS: dict[str, Any] = {"handler": sa.Text, "unique_key": sa.Text, "task_id": sa.BigInteger}


async def forget_expired(tx: Transaction, limit: int) -> int:
    """Delete unique keys whose time has expired.

    Args:
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


async def forget_finished(tx: Transaction, holders: Iterable[tuple[HandlerKey, int]]) -> None:
    """Delete the unique keys of finished tasks that are being deleted, except keys with scope "forever".

    Args:
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
        parameters = tx.dialect.row_parameters("finished", HELD_COLUMNS, rows)
        await _forget(tx, selection.where(still).with_for_update(of=unique, skip_locked=True), parameters)


async def forget_gone(tx: Transaction, after: HandlerKey, limit: int = 1_000) -> HandlerKey | None:
    """Delete the unique keys of tasks that no longer exist because their partition was dropped.

    Args:
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
    # Never waits for locks: the owner of a key may wait for locks of this transaction. Submits wait for its keys.
    keys = [row[:2] for row in await tx.rows(selection.add_columns(tx.dialect.pause_limit()), parameters)]
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
        refused: id ranges that could not be dropped, and the reason of the database. Their rows are deleted, unless a
            foreign key keeps them too.
        in_use: id ranges that another transaction used at each try, and the reason of the database.
        reached: the time up to which the tasks of a group were looked at, for groups of some queues.
    """

    tasks: Mapping[State, int] = field(default_factory=dict)
    minutes: int = 0
    more: bool = False
    keys: int = 0
    ranges: Sequence[Range] = ()
    refused: Mapping[Range, str] = field(default_factory=dict)
    in_use: Mapping[Range, str] = field(default_factory=dict)
    reached: Mapping[AgeGroup, datetime] = field(default_factory=dict)


Reached: TypeAlias = Mapping[AgeGroup, datetime]
"""The time up to which the tasks of a group were looked at.

The history has no index by queue: without this, each look would pass the tasks of all other queues."""

NOTHING_REACHED: Reached = {}

LATE_ROWS = timedelta(minutes=1)
"""Time before the end of a look that the next look reads again: the commit of a settle follows its statement."""


Records: TypeAlias = Literal["minute", "ended_runner", "tick", "workflow"]
"""The tables of old records that no task owns. A workflow is old when none of its tasks is left."""


def retention_of(settings: Settings) -> Retention:
    """Return the retention that the settings contain."""
    ages = {
        State.SUCCEEDED: settings.retention_succeeded,
        State.DEAD: settings.retention_dead,
        State.CANCELLED: settings.retention_cancelled,
    }
    queues: dict[State, dict[str, timedelta | None]] = {}
    for each in map(parse_queue_retention, settings.retention_queues):
        for state in each.states:
            queues.setdefault(state, {})[each.queue] = each.age
    return Retention({state: age for state, age in ages.items() if age is not None}, queues)


async def prune(
    tx: Transaction,
    retention: Retention,
    limit: int = 1_000,
    spared: Sequence[Range] = (),
    statistics: timedelta | None = None,
    without: Collection[int] = (),
    reached: Reached = NOTHING_REACHED,
    records: bool = True,
) -> Pruned:
    """Delete finished tasks that are older than the retention of their state, by the database's clock.

    Several runners may prune at the same time; each skips the rows that others have locked.

    Args:
        tx: a writing transaction; it is short for a small `limit`.
        retention: retention of finished tasks. The ticks of schedules are kept for the longest of any state.
        limit: maximum number of tasks, statistics rows, lost runners, keys, ticks and workflows to delete.
        spared: ranges whose succeeded tasks are skipped, because they will be dropped as a whole.
        statistics: retention of the minute statistics and of the lost runners; None keeps them indefinitely.
        without: ids of tasks to leave out.
        reached: the results of earlier transactions.
        records: False to leave the statistics, keys, ticks and workflows to the transaction that finds no more tasks.
    """
    tasks = dict.fromkeys((group.state for group in retention.groups()), 0)
    passed: dict[AgeGroup, datetime] = {}
    for group in retention.groups():
        if room := limit - sum(tasks.values()):
            number, upto = await _prune_group(tx, group, room, spared, without, reached.get(group))
            tasks[group.state] += number
            passed |= {} if upto is None else {group: upto}
    if not records and sum(tasks.values()) >= limit:
        return Pruned(tasks, more=True, reached=passed)
    rows = {
        name: await prune_records(tx, name, age, limit) for name, age in _record_ages(retention, statistics).items()
    }
    keys = await forget_expired(tx, limit)
    more = limit <= max(sum(tasks.values()), keys, *rows.values())
    return Pruned(tasks, rows.get("minute", 0), more, keys, reached=passed)


def _record_ages(retention: Retention, statistics: timedelta | None) -> "dict[Records, timedelta]":
    """The age from which each kind of records is deleted; the others are kept."""
    ages: dict[Records, timedelta] = {} if statistics is None else dict.fromkeys(("minute", "ended_runner"), statistics)
    if retention.states:
        ages |= dict.fromkeys(("tick", "workflow"), max(retention.states.values()))
    return ages


async def _prune_group(
    tx: Transaction,
    group: AgeGroup,
    limit: int,
    spared: Sequence[Range],
    without: Collection[int],
    since: datetime | None,
) -> tuple[int, datetime | None]:
    """Delete the tasks of a group, and return their number and the time up to which its tasks were looked at."""
    if not group.queues:
        return await prune_tasks(tx, group, limit, spared, without=without), None
    end = await clock(tx) - group.age
    old = await prunable_tasks(tx, group, limit, spared, without, since)
    number = await prune_tasks(tx, group, limit, spared, old) if old else 0
    return number, end - LATE_ROWS if len(old) < limit else max(each.finished_at for each in old.values())


def _outside(tx: Transaction, part: Range) -> Condition:
    id = tx.tables.history.c.id
    return (id < part.first) | (id >= part.end)


class OldTask(NamedTuple):
    """A task that has exceeded its retention."""

    handler: str
    finished_at: datetime


async def prunable_tasks(
    tx: Transaction,
    group: AgeGroup,
    limit: int,
    spared: Sequence[Range] = (),
    without: Collection[int] = (),
    since: datetime | None = None,
) -> dict[int, OldTask]:
    """Return the tasks that `prune_tasks` deletes, by id, locked ones too.

    Args:
        since: the earliest end of a task; None for any.
    """
    rows = await tx.rows(await _prunable(tx, group, limit, spared, None, without, since))
    return {row.id: OldTask(row.handler, row.finished_at) for row in rows}


async def prune_tasks(
    tx: Transaction,
    group: AgeGroup,
    limit: int,
    spared: Sequence[Range] = (),
    only: Collection[int] | None = None,
    without: Collection[int] = (),
) -> int:
    """Delete finished tasks of a group that are older than its age, and return their number.

    Args:
        limit: maximum number of tasks.
        spared: as for `prune`.
        only: ids of the only tasks to delete; None for all.
        without: ids of tasks to leave out.
    """
    history = tx.tables.history
    by_id, by_key = is_awaited(tx.tables, history.c)
    selection = await _prunable(tx, group, limit, spared, only, without)
    selection = selection.where(tx.dialect.lock_limit(UPKEEP_LOCKS))
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
        condition = tx.dialect.one_of(history.c.id, ids) & is_state(history.c.state, group.state)
        await tx.execute(sa.delete(history).where(condition))
    return len(ids)


async def _prunable(
    tx: Transaction,
    group: AgeGroup,
    limit: int,
    spared: Sequence[Range],
    only: Collection[int] | None,
    without: Collection[int],
    since: datetime | None = None,
) -> sa.Select[Any]:
    history = tx.tables.history
    old = history.c.finished_at < db_later(db_now(), -group.age.total_seconds())
    # A parent with open dependents may be retried and succeed.
    by_id, by_key = is_awaited(tx.tables, history.c)
    passed = [_outside(tx, part) for part in spared] if group.state is State.SUCCEEDED else []
    chosen = among(history.c.id, only, without)
    conditions = [is_final_state(history.c.state, group.state), old, ~by_id, ~by_key, *passed, *chosen]
    if group.queues:
        queue = history.c.queue
        conditions.append(queue.not_in(group.queues) if group.others else queue.in_(group.queues))
    if since is not None:
        conditions.append(history.c.finished_at >= since)
    if (start := await oldest_submit(tx)) is not None:
        conditions.append(history.c.finished_at < start)
    # Newest first: older rows have mostly been deleted, except those of other states. A group of some queues goes on
    # where it ended: rows of other queues stay.
    end = history.c.finished_at
    columns = (history.c.id, history.c.handler, history.c.unique_key, end)
    return sa.select(*columns).where(*conditions).order_by(end if group.queues else end.desc()).limit(limit)


async def prune_records(
    tx: Transaction, name: Records, age: timedelta, limit: int, only: Sequence[tuple[Any, ...]] | None = None
) -> int:
    """Delete old minute statistics, ended runners or ticks, and return their number; locked rows remain.

    Args:
        limit: maximum number of rows.
        only: the primary keys of the only rows to delete; None for all.
    """
    table = getattr(tx.tables, name)
    key, selection = _old_records(tx, name, age, limit)
    if only is None:
        rows = selection.where(tx.dialect.lock_limit(UPKEEP_LOCKS)).with_for_update(skip_locked=True, of=table)
        chosen = sa.tuple_(*key).in_(sa.select(rows.subquery()))
    else:
        chosen = sa.tuple_(*key).in_(list(only))
    return len(await tx.rows(sa.delete(table).where(chosen).returning(key[0])))


async def old_records(tx: Transaction, name: Records, age: timedelta, limit: int) -> list[tuple[Any, ...]]:
    """Return the primary keys of the rows that `prune_records` deletes."""
    return [tuple(row) for row in await tx.rows(_old_records(tx, name, age, limit)[1])]


def _old_records(
    tx: Transaction, name: Records, age: timedelta, limit: int
) -> tuple[list[sa.ColumnElement[Any]], sa.Select[Any]]:
    """The columns of the primary key, and the selection of the old rows."""
    table, tick, schedule = getattr(tx.tables, name), tx.tables.tick, tx.tables.schedule
    key: list[Any] = [table.c[column.name] for column in table.primary_key]
    time = {"minute": "minute", "ended_runner": "ended_at", "tick": "at", "workflow": "submitted_at"}[name]
    selection = sa.select(*key).where(table.c[time] < db_later(db_now(), -age.total_seconds())).limit(limit)
    if name == "tick":  # the last one of each schedule must not happen again
        last = sa.exists().where(schedule.c.id == tick.c.schedule, schedule.c.last_tick <= tick.c.tick)
        return key, selection.where(~last).order_by(tick.c.at)
    if name == "workflow":
        for tasks in (tx.tables.task, tx.tables.history):
            selection = selection.where(~sa.exists().where(tasks.c.workflow == table.c.id))
    by_key = name in ("minute", "workflow")
    return key, selection.order_by(*key) if by_key else selection.order_by(table.c[time])


async def count_minutes(tx: Transaction, age: timedelta, limit: int) -> int:
    """Count the rows of minute statistics that are older than their retention, up to a limit."""
    minute = tx.tables.minute.c.minute
    old = sa.select(minute).where(minute < db_later(db_now(), -age.total_seconds())).limit(limit).subquery()
    return int(await tx.scalar(sa.select(sa.func.count()).select_from(old)))


CONTINUE = Pruned(more=True)


async def enforce(
    database: Database,
    retention: Retention,
    leeway: float = LEEWAY,
    statistics: timedelta | None = None,
    on_fault: OnFault = ignore,
    without: Callable[[], Collection[int]] = frozenset,
    reached: Reached = NOTHING_REACHED,
) -> AsyncGenerator[Pruned]:
    """Delete finished tasks that are older than their retention: whole ranges first, then row by row.

    Args:
        leeway: fraction of the retention by which succeeded tasks may be kept longer, so that their range can be
            dropped as a whole.
        statistics: retention of the minute statistics; None keeps them indefinitely.
        on_fault: called with each task that cannot be deleted, its handler and the reason.
        without: returns the ids of tasks to leave out.
        reached: the results of an earlier call.

    Yields:
        The result of each transaction. The caller may stop at any time; the next call continues.
    """
    spared, kept = list[Range](), list[Range]()
    if State.SUCCEEDED in retention.states and database.dialect.partitions:
        ranges = await database.read(_forecast, retention, leeway)
        spared = [*ranges.drop, *ranges.spare]
        async for pruned in _drop_ranges(database, ranges):
            kept += pruned.refused
            spared = [part for part in spared if part not in pruned.refused]
            yield pruned
    refused, pruned, first = set[int](), CONTINUE, reached

    def refuse(id: int, handler: str, fault: RowFault) -> None:
        refused.add(id)
        spared.extend(part for part in kept if part.first <= id < part.end and part not in spared)
        on_fault(id, handler, fault)

    while pruned.more:
        try:
            out = refused.union(without())
            records = pruned is CONTINUE  # with the first and the last tasks alone: they take as long
            pruned = await database.write(prune, retention, CHUNK, spared, statistics, out, reached, records)
        except StoreError as error:
            if row_fault(error) is None:
                raise
            out = refused.union(without())
            pruned = await _prune_in_parts(database, retention, spared, statistics, refuse, out, reached)
        reached = {**reached, **pruned.reached}
        yield pruned
    for group in retention.groups() if database.dialect.row_locks else ():
        out, since = refused.union(without()), first.get(group)
        rest = await database.read(prunable_tasks, group, MOST_LOCKED, spared, out, since)
        for id, task in rest.items():
            on_fault(id, task.handler, LOCKED)


async def _prune_in_parts(
    database: Database,
    retention: Retention,
    spared: Sequence[Range],
    statistics: timedelta | None,
    on_fault: OnFault,
    without: Collection[int],
    reached: Reached,
) -> Pruned:
    """Prune in parts, because the database refuses to delete one of the rows."""
    tasks, more, spared_before = dict[State, int](), False, len(spared)
    for group in retention.groups():
        found = await database.read(prunable_tasks, group, CHUNK, spared, without, reached.get(group))
        deleted = 0

        async def write(part: Sequence[int], group: AgeGroup = group) -> None:
            nonlocal deleted
            deleted += await database.write(prune_tasks, group, CHUNK, spared, part)

        def refuse(id: int, fault: RowFault, found: Mapping[int, OldTask] = found) -> None:
            on_fault(id, found[id].handler, fault)

        await write_in_halves(list(found), write, refuse)
        tasks[group.state] = tasks.get(group.state, 0) + deleted
        more = more or (len(found) == CHUNK and (deleted > 0 or len(spared) > spared_before))
    ages = _record_ages(retention, statistics)
    rows = {name: await _prune_records_in_parts(database, name, age) for name, age in ages.items()}
    try:
        keys = await database.write(forget_expired, CHUNK)
    except StoreError as error:
        _log_refused("unique keys", row_fault(error) or _raised(error))
        keys = 0
    return Pruned(tasks, rows.get("minute", 0), more, keys)


async def _prune_records_in_parts(database: Database, name: Records, age: timedelta) -> int:
    deleted = 0

    async def write(part: Sequence[tuple[Any, ...]]) -> None:
        nonlocal deleted
        deleted += await database.write(prune_records, name, age, CHUNK, part)

    rows = await database.read(old_records, name, age, CHUNK)
    await write_in_halves(rows, write, lambda key, fault: _log_refused(f"row {key} of {name}", fault))
    return deleted


def _raised(error: StoreError) -> NoReturn:
    raise error


def _log_refused(rows: str, fault: RowFault) -> None:
    log.warning("could not prune %s: %s", one_line(rows), one_line(fault.fact))


async def _forecast(tx: Transaction, retention: Retention, leeway: float) -> Forecast:
    """Forecast the ranges; tasks that may have ended during an open submit with parents are too young."""
    start = await oldest_submit(tx)
    return await forecast(tx, retention, leeway, timedelta() if start is None else await clock(tx) - start)


async def _drop_ranges(database: Database, ranges: Forecast) -> AsyncGenerator[Pruned]:
    """Drop ranges, each after the rows of other tables that belong to its tasks, and delete their unique keys."""
    count = 0
    for part in ranges.drop:
        unstripped: Range | None = part
        try:
            while unstripped:
                unstripped = await database.write(strip, unstripped, ranges.cutoff)
                yield CONTINUE
            dropped = await database.write(drop, part, ranges.cutoff)
        except StoreError as error:
            fault = row_fault(error)
            if fault is None and not isinstance(error, DatabaseRefused):
                raise
            reason = {part: fault.fact if fault else str(error.fields["why"])}
            is_locked = fault is not None and fault.cause is StuckCause.LOCKED
            yield Pruned({}, more=True, in_use=reason) if is_locked else Pruned({}, more=True, refused=reason)
            continue
        if isinstance(dropped, InUse):
            yield Pruned({}, more=True, in_use={part: dropped.fact})
        elif dropped:
            count += 1
            yield Pruned({State.SUCCEEDED: dropped.tasks}, more=True, ranges=[part])
    last = START if count else None
    while last:
        last = await database.write(forget_gone, last)
        yield CONTINUE
