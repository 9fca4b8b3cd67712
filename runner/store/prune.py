"""prune: delete what has been finished for long enough, a little at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import sqlalchemy as sa

from runner.columns import db_later, db_now
from runner.policy.ranges import Range
from runner.schema import is_state
from runner.settings import Settings
from runner.store.expire import forget_expired, forget_finished
from runner.store.observe.subjects import Condition, ended
from runner.store.parentage import is_open
from runner.store.transaction import Transaction
from runner.task import State


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted.

    Args:
        tasks: finished tasks, by their state; their attempts, their audit and what they waited for went with them.
        minutes: rows of statistics.
        more: True when there may be more to delete; prune again, in another transaction.
        keys: unique keys whose time was over.
        ranges: of ids that were dropped as a whole; their tasks are among those that are counted.
    """

    tasks: Mapping[State, int] = field(default_factory=dict)
    minutes: int = 0
    more: bool = False
    keys: int = 0
    ranges: Sequence[Range] = ()


def retention_of(settings: Settings) -> dict[State, timedelta]:
    """How long finished tasks are kept; a state that is not named is kept for ever."""
    kept = {
        State.SUCCEEDED: settings.keep_succeeded,
        State.DEAD: settings.keep_dead,
        State.CANCELLED: settings.keep_cancelled,
    }
    return {state: age for state, age in kept.items() if age is not None}


async def prune(
    tx: Transaction, retention: Mapping[State, timedelta], limit: int = 1_000, spared: Sequence[Range] = ()
) -> Pruned:
    """Delete finished tasks that are older than their state's retention, by the database's clock.

    Any number of runners may prune at once: what one has locked the others pass by.

    Args:
        tx: a writing transaction; it is short when `limit` is small.
        retention: how long to keep tasks of a final state; a state that is not named is kept for ever. Statistics are
            kept as long as the longest of these.
        limit: the most tasks, the most rows of statistics, and the most keys, to delete at once.
        spared: ranges whose succeeded tasks are left alone, because they are dropped as a whole.

    Returns:
        What was deleted.
    """
    tasks: dict[State, int] = {}
    for state, age in retention.items():
        passed = [_outside(tx, part) for part in spared] if state is State.SUCCEEDED else []
        tasks[state] = await _prune_tasks(tx, state, age, limit - sum(tasks.values()), passed)
    minutes = await _prune_minutes(tx, max(retention.values()), limit) if retention else 0
    keys = await forget_expired(tx, limit)
    return Pruned(tasks, minutes, limit <= max(sum(tasks.values()), minutes, keys), keys)


def _outside(tx: Transaction, part: Range) -> Condition:
    id = tx.tables.history.c.id
    return (id < part.first) | (id >= part.end)


async def _prune_tasks(tx: Transaction, state: State, age: timedelta, limit: int, passed: Sequence[Condition]) -> int:
    history, attempt, audit, edge = tx.tables.history, tx.tables.attempt, tx.tables.audit, tx.tables.dependency
    old = history.c.finished_at < db_later(db_now(), -age.total_seconds())
    # What somebody still waits for may yet be run again, and succeed.
    waited_for = sa.exists().where(edge.c.parent_id == history.c.id, is_open(edge.c))
    found = (ended(history.c.state, state), old, ~waited_for, *passed)
    # The latest of the old ones first: what lies before them has mostly been deleted, but for other states' tasks.
    columns = (history.c.id, history.c.handler, history.c.unique_key)
    chosen = sa.select(*columns).where(*found).order_by(history.c.finished_at.desc()).limit(limit)
    rows = await tx.rows(chosen.with_for_update(skip_locked=True))
    ids = [row.id for row in rows]
    if ids:
        await forget_finished(tx, [((row.handler, row.unique_key), row.id) for row in rows if row.unique_key])
        for column in (attempt.c.task_id, audit.c.task_id, edge.c.task_id):
            await tx.execute(sa.delete(column.table).where(tx.dialect.one_of(column, ids)))
        gone = tx.dialect.one_of(history.c.id, ids) & is_state(history.c.state, state)
        await tx.execute(sa.delete(history).where(gone))
    return len(ids)


async def _prune_minutes(tx: Transaction, age: timedelta, limit: int) -> int:
    minute = tx.tables.minute
    old = minute.c.minute < db_later(db_now(), -age.total_seconds())
    key = [minute.c[column.name] for column in minute.primary_key]
    chosen = sa.select(*key).where(old).order_by(*key).limit(limit).subquery()
    deleted = sa.delete(minute).where(sa.tuple_(*key).in_(sa.select(chosen)))
    return len(await tx.rows(deleted.returning(minute.c.minute)))
