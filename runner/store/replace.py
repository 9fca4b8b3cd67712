"""replace: let tasks that still wait take over the values of newer ones."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from runner.columns import JsonText, db_later, db_now
from runner.schema import Tables, is_state
from runner.store.dialects import DIALECTS, by_column, same_id
from runner.store.said import SAID
from runner.store.statement import Prepared
from runner.store.steps import Frame, Step, Steps
from runner.task import NewTask, State

ID_COLUMNS: dict[str, Any] = {"id": sa.BigInteger}

NEWER_COLUMNS: dict[str, Any] = ID_COLUMNS | SAID

MAY_STAY = [name for name in NEWER_COLUMNS if name not in ("id", "payload", "run_at", "delay")]
"""What stays as it is where the newer task does not say it."""

CHUNK = 2_000
"""Tasks per statement."""


def replaced(frame: Frame, newer: Mapping[int, NewTask], notify: bool) -> Steps[set[int]]:
    """Give tasks the payload and the time of newer ones, and what else these say.

    A task that has begun is left as it is, and so is what a task has behind it: its attempts and their errors.

    Args:
        frame: what the statements are for.
        newer: the values, by the ids of the tasks that take them over.
        notify: wake runners that listen.

    Returns:
        The ids of the tasks that still waited.
    """
    changed: set[int] = set()
    ids = sorted(newer)
    for first in range(0, len(ids), CHUNK):
        some = [(id,) for id in ids[first : first + CHUNK]]
        rows = yield Step(
            _locking(frame.tables, frame.driver), frame.dialect.parameters("new", by_column(ID_COLUMNS, some))
        )
        waiting = [_values(row[0], newer[row[0]]) for row in rows]
        if waiting:
            values = frame.dialect.parameters("new", by_column(NEWER_COLUMNS, waiting))
            rows = yield Step(_changing(frame.tables, frame.driver, notify), values)
            changed.update(row[0] for row in rows)
    return changed


def _values(id: int, task: NewTask) -> tuple[Any, ...]:
    return (id, *(getattr(task, name) for name in NEWER_COLUMNS if name != "id"))


@lru_cache
def _locking(tables: Tables, driver: sa.Dialect) -> Prepared:
    """In the order of ids, as whoever intervenes does it, so that no two wait for each other."""
    dialect, row = DIALECTS[driver.name], tables.task.alias("held")
    new = dialect.rows("new", ID_COLUMNS)
    waiting = same_id(row, new) & is_state(row.c.state, State.WAITING, State.BLOCKED)
    # The batch comes in the order of ids, and is locked row by row.
    locked = sa.select(row.c.id).where(waiting).with_for_update(of=row).correlate(new)
    found, held = dialect.for_each(new, locked, tables.task)
    return Prepared(sa.select(held.id).select_from(found), driver)


@lru_cache
def _changing(tables: Tables, driver: sa.Dialect, notify: bool) -> Prepared:
    dialect, task = DIALECTS[driver.name], tables.task
    new, meant = dialect.one_by_one(dialect.rows("new", NEWER_COLUMNS), task, same_id)
    said = {name: new.c[name] for name in MAY_STAY} | {"tags": sa.cast(new.c.tags, JsonText)}
    values = {name: sa.func.coalesce(value, task.c[name]) for name, value in said.items()} | {
        "payload": sa.cast(new.c.payload, JsonText),
        "run_at": db_later(sa.func.coalesce(new.c.run_at, db_now()), sa.func.coalesce(new.c.delay, 0)),
        "checkpoint": sa.null(),  # it was made of other arguments
        "progress": sa.null(),
        "version": task.c.version + sa.literal_column("1"),
    }
    update = sa.update(task).where(meant).values(values).returning(task.c.id)
    return Prepared(dialect.announcing(update, tables) if notify else update, driver)
