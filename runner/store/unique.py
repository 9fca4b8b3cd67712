"""unique: who holds a unique key, decided under a lock on the key that lasts until the transaction ends."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from runner.columns import NO_JOIN, db_later, db_now
from runner.errors import DuplicateTask
from runner.policy.uniqueness import Change, Contest, Key, changes, contest, key_of, replacements
from runner.schema import Tables
from runner.store.dialects import DIALECTS, by_column
from runner.store.replace import replaced
from runner.store.statement import Prepared
from runner.store.steps import Frame, Step, Steps
from runner.task import NewTask, Receipt, Scope

KEY_COLUMNS: dict[str, Any] = {"handler": sa.Text, "unique_key": sa.Text}

CHANGE_COLUMNS: dict[str, Any] = KEY_COLUMNS | {
    "task_id": sa.BigInteger,
    "scope": sa.Text,
    "seconds": sa.Float,
    "duplicates": sa.Integer,
}
"""A key, and the values of a Change."""

CHUNK = 2_000
"""Keys per statement."""


def contested(frame: Frame, tasks: Sequence[NewTask]) -> Steps[Contest]:
    """Lock the keys of a batch and find out which of its tasks are duplicates.

    Args:
        frame: what the statements are for.
        tasks: the batch.

    Returns:
        What becomes of each task, as it stays true until the transaction ends.

    Raises:
        DuplicateTask: a task is one that is not to be; nothing is left written.
    """
    keys = {key for task in tasks if (key := key_of(task))}
    fresh = yield from locked(frame, keys)
    holders = yield from held(frame, keys - fresh)
    try:
        return contest(tasks, holders)
    except DuplicateTask:
        yield from forgotten(frame, fresh)
        raise


def concluded(
    frame: Frame, tasks: Sequence[NewTask], outcome: Contest, inserted: Sequence[int], notify: bool
) -> Steps[Receipt]:
    """Enter the new tasks as the holders of their keys, count the duplicates, and let tasks be replaced.

    Args:
        frame: what the statements are for.
        tasks: the batch.
        outcome: of its contest.
        inserted: the ids of the new ones.
        notify: wake runners that listen.
    """
    ids = outcome.ids(inserted)
    yield from kept(frame, changes(tasks, outcome, ids))
    changed = yield from replaced(frame, replacements(tasks, outcome, ids), notify)
    duplicates = frozenset(outcome.held) | frozenset(outcome.twins)
    return Receipt(ids, duplicates, frozenset(place for place in duplicates if ids[place] in changed))


def locked(frame: Frame, keys: Iterable[Key]) -> Steps[set[Key]]:
    """Lock keys, in their order, so that no two transactions wait for each other.

    This is a statement of its own: it may wait for another transaction, and only the next statement sees what that
    one has done.

    Returns:
        The keys that nobody had asked for before.
    """
    rows = yield from _each(frame, _locking, KEY_COLUMNS, keys)
    return {(handler, key) for handler, key in rows}


def held(frame: Frame, keys: Iterable[Key]) -> Steps[dict[Key, int]]:
    """Find out who holds keys that are locked.

    Returns:
        The holders' ids; a key that nobody holds is missing.
    """
    rows = yield from _each(frame, _looking, KEY_COLUMNS, keys)
    return {(handler, key): id for handler, key, id in rows if id is not None}


def kept(frame: Frame, changed: Mapping[Key, Change]) -> Steps[None]:
    """Write down what has become of keys that are locked."""
    yield from _each(frame, _keeping, CHANGE_COLUMNS, [(*key, *change) for key, change in changed.items()])


def forgotten(frame: Frame, keys: Iterable[Key]) -> Steps[None]:
    """Delete what is known of keys that are locked and that nobody holds."""
    yield from _each(frame, _forgetting, KEY_COLUMNS, keys)


def is_held(unique: sa.FromClause, task: sa.Table) -> sa.ColumnElement[bool]:
    """The condition that a row of task_unique still keeps others from its key.

    Until it is finished a task stands in the live table. What a key was taken with counts, not what the next one
    comes with.
    """
    live = sa.select(task.c.id).where(task.c.id == unique.c.task_id).offset(NO_JOIN)
    lives = live.correlate(unique).exists()
    return (
        (unique.c.scope == _literal(Scope.FOREVER))
        | (unique.c.expires_at > db_now())
        | ((unique.c.scope == _literal(Scope.UNTIL_FINISHED)) & lives)
    )


def _literal(scope: Scope) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{scope.value}'", sa.Text)


def _each(frame: Frame, prepare: Any, columns: Mapping[str, Any], rows: Iterable[tuple[Any, ...]]) -> Steps[list[Any]]:
    """Execute a statement for all rows in the order of their keys, so many at a time."""
    ordered, found = sorted(rows, key=lambda row: row[:2]), []
    for first in range(0, len(ordered), CHUNK):
        values = by_column(columns, ordered[first : first + CHUNK])
        found += yield Step(prepare(frame.tables, frame.driver), frame.dialect.parameters("new", values))
    return found


@lru_cache
def _locking(tables: Tables, driver: sa.Dialect) -> Prepared:
    dialect, unique = DIALECTS[driver.name], tables.unique
    new = dialect.rows("new", KEY_COLUMNS)
    # With a condition, or SQLite would take ON for that of a join.
    asked = sa.select(new.c.handler, new.c.unique_key).where(sa.literal_column("1") == sa.literal_column("1"))
    insert = dialect.insert(unique).from_select(list(KEY_COLUMNS), asked)
    # A row that is there is locked by the attempt to change it, even though the condition then lets it be as it is.
    lock = insert.on_conflict_do_update(
        index_elements=[unique.c.handler, unique.c.unique_key],
        set_={"scope": unique.c.scope},
        where=sa.literal_column("1") == sa.literal_column("0"),
    )
    return Prepared(lock.returning(unique.c.handler, unique.c.unique_key), driver)


@lru_cache
def _looking(tables: Tables, driver: sa.Dialect) -> Prepared:
    unique, new = tables.unique.alias("known"), DIALECTS[driver.name].rows("new", KEY_COLUMNS)
    mine = sa.select(unique.c.task_id).where(_same(unique, new), is_held(unique, tables.task))
    holder = mine.correlate(new).scalar_subquery()
    return Prepared(sa.select(new.c.handler, new.c.unique_key, holder.label("holder")), driver)


@lru_cache
def _keeping(tables: Tables, driver: sa.Dialect) -> Prepared:
    dialect, unique = DIALECTS[driver.name], tables.unique
    new, meant = dialect.one_by_one(dialect.rows("new", CHANGE_COLUMNS), unique, _same)
    taken = new.c.task_id.is_not(None)
    other = taken & (new.c.task_id != unique.c.task_id)
    repeated = new.c.duplicates > sa.literal_column("0")
    values = {
        "task_id": sa.func.coalesce(new.c.task_id, unique.c.task_id),
        "scope": sa.func.coalesce(new.c.scope, unique.c.scope),
        "expires_at": sa.case((taken, db_later(db_now(), new.c.seconds)), else_=unique.c.expires_at),
        "duplicates": sa.case((other, new.c.duplicates), else_=unique.c.duplicates + new.c.duplicates),
        "duplicate_at": sa.case((repeated, db_now()), (other, sa.null()), else_=unique.c.duplicate_at),
    }
    return Prepared(sa.update(unique).where(meant).values(values), driver)


def _same(unique: Any, new: Any) -> sa.ColumnElement[bool]:
    same: sa.ColumnElement[bool] = (unique.c.handler == new.c.handler) & (unique.c.unique_key == new.c.unique_key)
    return same


@lru_cache
def _forgetting(tables: Tables, driver: sa.Dialect) -> Prepared:
    unique, new = tables.unique, DIALECTS[driver.name].rows("new", KEY_COLUMNS)
    mine = sa.tuple_(unique.c.handler, unique.c.unique_key).in_(sa.select(new.c.handler, new.c.unique_key))
    return Prepared(sa.delete(unique).where(mine), driver)
