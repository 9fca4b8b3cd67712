"""unique: decide who holds a unique key, under a lock on the key until the transaction ends."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, same_id
from runner.db.schema import Tables, is_state
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.types import NO_JOIN, JsonText, db_later, db_now
from runner.errors import DuplicateTask
from runner.model.task import NewTask, OnDuplicate, Scope, State, SubmitResult
from runner.policy.uniqueness import Contest, HandlerKey, KeyChange, contest, contest_rows, key_of
from runner.store.steps import has_begun
from runner.store.validation import SUBMIT_COLUMNS

ID_COLUMNS: dict[str, Any] = {"id": sa.BigInteger}

NEWER_COLUMNS: dict[str, Any] = ID_COLUMNS | SUBMIT_COLUMNS | {"longest": sa.Float}

COMPUTED = ("id", "payload", "run_at", "delay", "expires", "expires_at", "hosts_for", "longest")

DEFAULTS_TO_OLD = [name for name in NEWER_COLUMNS if name not in COMPUTED]
"""Columns that keep their value if the newer task does not set them."""

REPLACED_CHUNK = 2_000
"""Tasks per statement."""


def replace_tasks(frame: Frame, newer: Mapping[int, NewTask], notify: bool) -> Steps[set[int]]:
    """Replace payload, time and the given options of tasks with those of newer ones.

    Tasks that have started stay unchanged, as do the attempts and errors of the replaced ones.

    Args:
        notify: wake listening runners.

    Returns:
        The ids of the replaced tasks.
    """
    changed: set[int] = set()
    ids = sorted(newer)
    for first in range(0, len(ids), REPLACED_CHUNK):
        some = frame.dialect.parameters("new", {"id": ids[first : first + REPLACED_CHUNK]})
        rows = yield Step(_lock_waiting(frame.tables, frame.driver, shared=False), some)
        waiting = [_values(row[0], newer[row[0]]) for row in rows]
        if waiting:
            values = frame.dialect.row_parameters("new", NEWER_COLUMNS, waiting)
            rows = yield Step(_replace_statement(frame.tables, frame.driver, notify), values)
            changed.update(row[0] for row in rows)
    announcement = _announcement(frame.tables, frame.driver) if notify and changed else None
    if announcement is not None:
        yield Step(announcement, {})
    return changed


def _values(id: int, task: NewTask) -> tuple[Any, ...]:
    return (id, *(getattr(task, name) for name in SUBMIT_COLUMNS), task.unique_key and task.unique_key.longest)


@lru_cache
def _announcement(tables: Tables, driver: sa.Dialect) -> Prepared | None:
    update = DIALECTS[driver.name].announcement(tables.task)
    return None if update is None else Prepared(update, driver)


@lru_cache
def _lock_waiting(tables: Tables, driver: sa.Dialect, *, shared: bool) -> Prepared:
    """Lock tasks that have not started in the order of ids, as operations do, to avoid deadlocks."""
    dialect, row = DIALECTS[driver.name], tables.task.alias("target")
    new = dialect.rows("new", ID_COLUMNS)
    waiting = same_id(row, new) & _is_unstarted(row, tables)
    # The batch comes in the order of ids, and is locked row by row.
    locked = sa.select(row.c.id).where(waiting).with_for_update(read=shared).correlate(new)
    joined, held_row = dialect.for_each(new, locked, tables.task)
    return Prepared(sa.select(held_row.id).select_from(joined), driver)


@lru_cache
def _replace_statement(tables: Tables, driver: sa.Dialect, notify: bool) -> Prepared:
    dialect, task = DIALECTS[driver.name], tables.task
    new, match = dialect.one_by_one(dialect.rows("new", NEWER_COLUMNS), task, same_id)
    options: dict[str, Any] = {name: new.c[name] for name in DEFAULTS_TO_OLD}
    options |= {name: sa.cast(new.c[name], JsonText) for name in ("tags", "headers")}
    asked = db_later(sa.func.coalesce(new.c.run_at, db_now()), sa.func.coalesce(new.c.delay, 0))
    latest = db_later(task.c.submitted_at, new.c.longest)
    run_at = sa.case((latest < asked, latest), else_=asked)
    # At least one more: after its last attempt, no claim would ever take it.
    next_attempt, limit = task.c.attempt + sa.literal_column("1"), new.c.max_attempts
    max_attempts = sa.case((limit < next_attempt, next_attempt), else_=sa.func.coalesce(limit, task.c.max_attempts))
    values = {name: sa.func.coalesce(value, task.c[name]) for name, value in options.items()} | {
        "payload": sa.cast(new.c.payload, JsonText),
        "max_attempts": max_attempts,
        "run_at": run_at,
        "expires_at": sa.func.coalesce(new.c.expires_at, db_later(run_at, new.c.expires), task.c.expires_at),
        "hosts_until": sa.func.coalesce(db_later(run_at, new.c.hosts_for), task.c.hosts_until),
        "version": task.c.version + sa.literal_column("1"),
    }
    update = sa.update(task).where(match).values(values).returning(task.c.id)
    return Prepared(dialect.announcing(update, tables) if notify else update, driver)


KEY_COLUMNS: dict[str, Any] = {"handler": sa.Text, "unique_key": sa.Text}

CHANGE_COLUMNS: dict[str, Any] = KEY_COLUMNS | {
    "task_id": sa.BigInteger,
    "scope": sa.Text,
    "seconds": sa.Float,
    "duplicates": sa.Integer,
}
"""The values of a KeyChange."""

CHUNK = 2_000
"""Keys per statement."""


def check_keys(frame: Frame, tasks: Sequence[NewTask]) -> Steps[Contest]:
    """Lock the unique keys of a batch and find its duplicates.

    Returns:
        The decision for each task; it remains valid until the transaction ends.

    Raises:
        DuplicateTask: a task is a duplicate and its policy raises; nothing was written.
    """
    keys = set(filter(None, map(key_of, tasks)))
    # Deleting the new keys after a refusal would need a right that would let producers delete the keys of others.
    reverts = len(tasks) > 1 and any(
        task.unique_key and task.unique_key.on_duplicate is OnDuplicate.ERROR for task in tasks
    )
    if reverts:
        yield Step(_savepoint("SAVEPOINT task_keys", frame.driver), {})
    fresh = yield from lock_unique_keys(frame, keys)
    holders = (yield from _locked_holders(frame, keys - fresh)) if keys - fresh else {}
    try:
        outcome = contest(tasks, holders)
    except DuplicateTask:
        if reverts:
            yield Step(_savepoint("ROLLBACK TO SAVEPOINT task_keys", frame.driver), {})
        raise
    finally:
        if reverts:
            yield Step(_savepoint("RELEASE SAVEPOINT task_keys", frame.driver), {})
    return outcome


def record_keys(
    frame: Frame, tasks: Sequence[NewTask], outcome: Contest, inserted: Sequence[int], notify: bool
) -> Steps[SubmitResult]:
    """Store the new tasks as holders of their keys, count the duplicates, and replace tasks.

    Args:
        outcome: result of `check_keys`.
        notify: wake listening runners.
    """
    ids, changes, replacements = contest_rows(tasks, outcome, inserted)
    yield from save_keys(frame, changes.values())
    if len(outcome.new) == len(tasks):
        return SubmitResult(ids)
    changed = yield from replace_tasks(frame, replacements, notify)
    duplicates = frozenset(outcome.existing) | frozenset(outcome.same_submit)
    return SubmitResult(ids, duplicates, frozenset(place for place in duplicates if ids[place] in changed))


def lock_unique_keys(frame: Frame, keys: Iterable[HandlerKey]) -> Steps[set[HandlerKey]]:
    """Lock keys in sorted order to avoid deadlocks.

    This is a separate statement: it may wait for another transaction, and only the next statement sees the changes of
    that transaction.

    Returns:
        The keys that were not stored before.
    """
    rows = yield from _each(frame, _lock_statement, KEY_COLUMNS, keys)
    return set(map(tuple, rows))


def key_holders(frame: Frame, keys: Iterable[HandlerKey]) -> Steps[dict[HandlerKey, int]]:
    """Return the holders of locked keys.

    Returns:
        The holders' task ids by key; free keys are missing.
    """
    rows = yield from _each(frame, _holder_statement, KEY_COLUMNS, keys)
    return {(handler, key): id for handler, key, id, _ in rows if id is not None}


def _locked_holders(frame: Frame, keys: Iterable[HandlerKey]) -> Steps[dict[HandlerKey, int]]:
    """Return the holders of locked keys, and prevent holders of a key until start from starting.

    Without the lock, such a task could start before this transaction commits, and miss the changes that made the
    application submit the duplicate.
    """
    rows = yield from _each(frame, _holder_statement, KEY_COLUMNS, keys)
    unstarted = {id for *_, id, scope in rows if scope == Scope.UNTIL_STARTED and id is not None}
    started = unstarted - (yield from _lock_unstarted(frame, unstarted)) if unstarted else unstarted
    return {(handler, key): id for handler, key, id, _ in rows if id is not None and id not in started}


def _lock_unstarted(frame: Frame, ids: Iterable[int]) -> Steps[set[int]]:
    """Lock the tasks among these that have not started, and return their ids."""
    ordered, locked = sorted(ids), set[int]()
    for first in range(0, len(ordered), REPLACED_CHUNK):
        some = frame.dialect.parameters("new", {"id": ordered[first : first + REPLACED_CHUNK]})
        rows = yield Step(_lock_waiting(frame.tables, frame.driver, shared=True), some)
        locked.update(row[0] for row in rows)
    return locked


def save_keys(frame: Frame, changes: Iterable[KeyChange]) -> Steps[None]:
    """Store the new state of locked keys."""
    yield from _each(frame, _save_statement, CHANGE_COLUMNS, changes)


def delete_keys(frame: Frame, keys: Iterable[HandlerKey]) -> Steps[None]:
    """Delete locked keys without a holder."""
    yield from _each(frame, _delete_statement, KEY_COLUMNS, keys)


def _is_unstarted(task: sa.FromClause, tables: Tables) -> sa.ColumnElement[bool]:
    """The condition that a task has no runner, and that its next attempt does not continue an earlier one."""
    return is_state(task.c.state, State.WAITING, State.BLOCKED) & ~has_begun(task.c.id, tables)


def is_key_held(unique: sa.FromClause, tables: Tables) -> sa.ColumnElement[bool]:
    """The condition that a row of task_unique still reserves its key.

    An unfinished task is in the live table. The scope of the holder counts, not that of the next task.
    """
    task = tables.task
    live = sa.select(task.c.id).where(task.c.id == unique.c.task_id).offset(NO_JOIN)
    lives = live.correlate(unique).exists()
    unstarted = live.where(_is_unstarted(task, tables)).correlate(unique).exists()
    return (
        (unique.c.scope == _literal(Scope.FOREVER))
        | (unique.c.expires_at > db_now())
        | ((unique.c.scope == _literal(Scope.UNTIL_FINISHED)) & lives)
        | ((unique.c.scope == _literal(Scope.UNTIL_STARTED)) & unstarted)
    )


def _literal(scope: Scope) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{scope.value}'", sa.Text)


def _each(frame: Frame, prepare: Any, columns: Mapping[str, Any], rows: Iterable[tuple[Any, ...]]) -> Steps[list[Any]]:
    """Execute a statement for all rows in the order of their keys, in chunks."""
    ordered, results = sorted(rows, key=itemgetter(0, 1)), []
    for first in range(0, len(ordered), CHUNK):
        part = frame.dialect.row_parameters("new", columns, ordered[first : first + CHUNK])
        results += yield Step(prepare(frame.tables, frame.driver), part)
    return results


@lru_cache
def _lock_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    dialect, unique = DIALECTS[driver.name], tables.unique
    new = dialect.rows("new", KEY_COLUMNS)
    # The condition is needed: otherwise SQLite parses ON as that of a join.
    asked = sa.select(new.c.handler, new.c.unique_key).where(sa.literal_column("1") == sa.literal_column("1"))
    insert = dialect.insert(unique).from_select(list(KEY_COLUMNS), asked)
    # An existing row is locked by the attempted update, although the condition prevents the change.
    lock = insert.on_conflict_do_update(
        index_elements=[unique.c.handler, unique.c.unique_key],
        set_={"scope": unique.c.scope},
        where=sa.literal_column("1") == sa.literal_column("0"),
    )
    return Prepared(lock.returning(unique.c.handler, unique.c.unique_key), driver)


@lru_cache
def _holder_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    unique, new = tables.unique.alias("entry"), DIALECTS[driver.name].rows("new", KEY_COLUMNS)
    holder_id = sa.select(unique.c.task_id).where(_same(unique, new), is_key_held(unique, tables))
    holder = holder_id.correlate(new).scalar_subquery()
    scope = sa.select(unique.c.scope).where(_same(unique, new)).correlate(new).scalar_subquery()
    return Prepared(sa.select(new.c.handler, new.c.unique_key, holder.label("holder"), scope.label("scope")), driver)


@lru_cache
def _save_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    dialect, unique = DIALECTS[driver.name], tables.unique
    new, match = dialect.one_by_one(dialect.rows("new", CHANGE_COLUMNS), unique, _same)
    has_new_holder = new.c.task_id.is_not(None)
    other = has_new_holder & (new.c.task_id != unique.c.task_id)
    # The same holder comes back from the history. Its run may miss the changes of a submit after its start.
    keeps = (new.c.task_id == unique.c.task_id) & (unique.c.scope == _literal(Scope.UNTIL_STARTED))
    repeated = new.c.duplicates > sa.literal_column("0")
    values = {
        "task_id": sa.func.coalesce(new.c.task_id, unique.c.task_id),
        "scope": sa.case((keeps, unique.c.scope), else_=sa.func.coalesce(new.c.scope, unique.c.scope)),
        "expires_at": sa.case((has_new_holder, db_later(db_now(), new.c.seconds)), else_=unique.c.expires_at),
        "duplicates": sa.case((other, new.c.duplicates), else_=unique.c.duplicates + new.c.duplicates),
        "duplicate_at": sa.case((repeated, db_now()), (other, sa.null()), else_=unique.c.duplicate_at),
    }
    return Prepared(sa.update(unique).where(match).values(values), driver)


@lru_cache
def _savepoint(statement: str, driver: sa.Dialect) -> Prepared:
    return Prepared(sa.text(statement), driver)


def _same(unique: Any, new: Any) -> sa.ColumnElement[bool]:
    same: sa.ColumnElement[bool] = (unique.c.handler == new.c.handler) & (unique.c.unique_key == new.c.unique_key)
    return same


@lru_cache
def _delete_statement(tables: Tables, driver: sa.Dialect) -> Prepared:
    unique, new = tables.unique, DIALECTS[driver.name].rows("new", KEY_COLUMNS)
    same_key = sa.tuple_(unique.c.handler, unique.c.unique_key).in_(sa.select(new.c.handler, new.c.unique_key))
    return Prepared(sa.delete(unique).where(same_key), driver)
