"""submit: put tasks into the table, in the caller's transaction."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from runner.bulk import Bulk
from runner.columns import JsonText, db_later, db_now, random_below
from runner.schema import Tables, state_literal
from runner.store.acceptance import check_each
from runner.store.dependencies.edges import Held, tie, waits
from runner.store.dialects import DIALECTS
from runner.store.said import SAID
from runner.store.statement import Prepared
from runner.store.steps import Frame, Step, Steps
from runner.store.transaction import Transaction
from runner.store.unique import concluded, contested
from runner.task import BUCKETS, MOVES, NewTask, Priority, Receipt

COLUMNS: dict[str, Any] = SAID | {
    "handler": sa.Text,
    "unique_key": sa.Text,
    "blocked_by": sa.Integer,
    "parents": sa.Text,
}
"""What a submitted task may say, with the types in which it travels; what a batch does not use is not sent."""

CHUNK = 2_000
"""Tasks per statement: more gains nothing and makes the statement's parameters large."""


async def submit(tx: Transaction, task: NewTask, *, notify: bool = True) -> int:
    """Submit one task; it exists when the caller's transaction commits.

    Args:
        tx: the caller's transaction.
        task: what to do.
        notify: wake runners that listen (PostgreSQL).

    Returns:
        The task's id.

    Raises:
        InvalidTask: when a value cannot be stored; nothing has been written then.
        DuplicateTask: when it is one that is not to be; nothing has been written then.
    """
    (task_id,) = await submit_many(tx, [task], notify=notify)
    return task_id


async def submit_many(tx: Transaction, tasks: Sequence[NewTask], *, notify: bool = True) -> list[int]:
    """Submit many tasks with few statements.

    Args:
        tx: the caller's transaction.
        tasks: any number of them.
        notify: wake runners that listen (PostgreSQL), once per statement.

    Returns:
        The tasks' ids, in the order of `tasks`.

    Raises:
        InvalidTask: when a value cannot be stored; nothing of the batch has been written then.
        DuplicateTask: when a task is one that is not to be; nothing of the batch has been written then.
    """
    return (await hand_in(tx, tasks, notify=notify)).ids


async def hand_in(tx: Transaction, tasks: Sequence[NewTask], *, notify: bool = True) -> Receipt:
    """Do what `submit_many` does, and tell which of the tasks were there already.

    Args:
        tx: the caller's transaction.
        tasks: any number of them.
        notify: wake runners that listen (PostgreSQL), once per statement.
    """
    return await tx.follow(submission(tx, tasks, notify))


def submission(frame: Frame, tasks: Sequence[NewTask], notify: bool) -> Steps[Receipt]:
    """The statements that submit tasks, for any connection to follow: shared by every door.

    Args:
        frame: what the statements are for.
        tasks: any number of them.
        notify: wake runners that listen.

    Returns:
        What became of each task.

    Raises:
        InvalidTask: when a value cannot be stored, or what a task is to wait for is not there; nothing has been
            written then.
        DuplicateTask: when a task is one that is not to be; nothing of the batch has been written then.
    """
    check_each(tasks)
    held = yield from waits(frame, tasks)
    if not _is_contested(tasks):
        receipt = Receipt((yield from _inserted(frame, tasks, held, notify)))
    else:
        outcome = yield from contested(frame, tasks)
        waiting = [held[place] for place in outcome.new] if held else []
        inserted = yield from _inserted(frame, [tasks[place] for place in outcome.new], waiting, notify)
        receipt = yield from concluded(frame, tasks, outcome, inserted, notify)
        held = [None if place in receipt.duplicates else waits for place, waits in enumerate(held)]
    yield from tie(frame, receipt.ids, held)
    return receipt


def takes_one_statement(tasks: Sequence[NewTask]) -> bool:
    """Tell whether submitting these tasks is one statement, which needs no transaction around it."""
    return len(tasks) <= CHUNK and all(task.independent for task in _alike(tasks))


def _is_contested(tasks: Sequence[NewTask]) -> bool:
    return any(task.unique is not None for task in _alike(tasks))


def _alike(tasks: Sequence[NewTask]) -> Sequence[NewTask]:
    """The tasks, or one that stands for all of them."""
    return [tasks.like] if isinstance(tasks, Bulk) else tasks


def _inserted(frame: Frame, tasks: Sequence[NewTask], held: Held, notify: bool) -> Steps[list[int]]:
    ids: list[int] = []
    for first in range(0, len(tasks), CHUNK):
        part = slice(first, first + CHUNK)
        rows = yield _insertion(frame, tasks[part], held[part], notify)
        # Numbers are handed out in the order of the rows, but come back in any.
        ids += sorted(row[0] for row in rows)
    return ids


def _insertion(frame: Frame, tasks: Sequence[NewTask], held: Held, notify: bool) -> Step:
    shared, rows = _columns(tasks)
    due = not (shared.keys() | rows.keys()) & {"run_at", "delay"}
    due = due or any(task.run_at is None and task.delay is None for task in tasks)
    if held:
        rows["blocked_by"] = [each.open if each else 0 for each in held]
        rows["parents"] = [each.summary if each else None for each in held]
        due = due and not all(rows["blocked_by"])
    prepared = _prepared(frame.tables, frame.driver, tuple(rows), tuple(shared), notify and due)
    values = {f"shared_{name}": frame.dialect.instant(value) for name, value in shared.items()}
    return Step(prepared, values | frame.dialect.parameters("new", rows))


def _columns(tasks: Sequence[NewTask]) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """What the tasks say: the values that all of them share, and the columns of the others."""
    if isinstance(tasks, Bulk):
        shared = {name: value for name, value in tasks.like._asdict().items() if value is not None}
        del shared["payload"]
        shared.pop("after", None)
        return shared, {"payload": tasks.payloads}
    columns = zip(NewTask._fields, zip(*tasks, strict=True), strict=True)
    said: dict[str, Sequence[Any]] = {name: values for name, values in columns if values.count(None) < len(values)}
    said.pop("after", None)
    if unique := said.pop("unique", None):
        said["unique_key"] = [each and each.key for each in unique]
    return {}, said


@lru_cache(maxsize=128)
def _prepared(
    tables: Tables, driver: sa.Dialect, rows: tuple[str, ...], shared: tuple[str, ...], notify: bool
) -> Prepared:
    dialect = DIALECTS[driver.name]
    new = dialect.rows("new", {name: COLUMNS[name] for name in rows})
    said = dict(new.c) | {name: sa.bindparam(f"shared_{name}", type_=COLUMNS[name]) for name in shared}
    values = {name: _value(name, column) for name, column in said.items() if name != "delay"}
    if "delay" in said:
        start = sa.func.coalesce(said["run_at"], db_now()) if "run_at" in said else db_now()
        values["run_at"] = db_later(start, sa.func.coalesce(said["delay"], 0))
    if "blocked_by" in said:
        free, held = (state_literal(MOVES[verb].target) for verb in ("submit", "block"))
        values["state"] = sa.case((said["blocked_by"] > sa.literal_column("0"), held), else_=free)
    insert = sa.insert(tables.task).from_select(list(values), sa.select(*values.values())).returning(tables.task.c.id)
    return Prepared(dialect.announcing(insert, tables) if notify else insert, driver)


def _value(name: str, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A column of the batch as the table wants it: rows of one batch may leave different things to the default."""
    match name:
        case "payload" | "tags" | "parents":
            return sa.cast(column, JsonText)
        case "queue":
            return sa.func.coalesce(column, sa.literal_column("'default'"))
        case "priority":
            return sa.func.coalesce(column, sa.literal_column(str(Priority.DEFAULT)))
        case "run_at":
            return sa.func.coalesce(column, db_now())
        case "bucket":
            return sa.func.coalesce(column, random_below(BUCKETS))
        case _:
            return column
