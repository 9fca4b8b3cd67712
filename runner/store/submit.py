"""submit: insert tasks in the caller's transaction."""

from collections.abc import Coroutine, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, state_literal
from runner.db.statement import Frame, Prepared, SingleInsert, Step, Steps, require_inserted
from runner.db.transaction import Transaction
from runner.db.types import Instant, JsonText, db_later, db_now, random_below
from runner.model.task import BUCKETS, MOVES, NewTask, NewWorkflow, Priority, SubmitResult
from runner.model.task_batch import TaskBatch
from runner.model.text_limits import require_payload
from runner.store.dependencies.cycles import refuse_cycles
from runner.store.dependencies.submit import DependencyRows, dependency_rows, insert_dependencies
from runner.store.unique import check_keys, record_keys
from runner.store.validation import SUBMIT_COLUMNS, check
from runner.store.workflow import continued_task, hold_dependents, insert_workflow

COLUMNS: dict[str, Any] = SUBMIT_COLUMNS | {
    "handler": sa.Text,
    "unique_key": sa.Text,
    "order_key": sa.Text,
    "order_on_failure": sa.Text,
    "workflow": sa.BigInteger,
    "blocked_by": sa.Integer,
    "parents": sa.Text,
}
"""Columns of a submitted task with their types; unused columns of a batch are omitted."""

NO_COLUMNS = ("after", "route")
"""Fields of a task that its row does not have: its dependencies are rows, and its route has chosen the database."""

TIMES = {name for name, kind in COLUMNS.items() if kind is Instant}

CHUNK = 2_000
"""Tasks per statement. More is not faster and makes the parameters large."""


def takes_one_statement(tasks: Sequence[NewTask]) -> bool:
    """Return True if a single statement submits these tasks: it reads no other tasks, and needs no transaction."""
    alike = [tasks.like] if isinstance(tasks, TaskBatch) else tasks
    return len(tasks) <= CHUNK and not any(
        task.unique_key or task.after or task.order_key or isinstance(task.workflow, NewWorkflow) for task in alike
    )


def _needs(dialect: Dialect, tasks: Sequence[NewTask], *_: object, **__: object) -> Needs:
    if not takes_one_statement(tasks):
        return Needs.TRANSACTION
    # PostgreSQL inserts all tasks or none. Elsewhere the ids are compared before the commit; see `inserting_all`.
    return Needs.PREPARED if len(tasks) == 1 or dialect.is_server else Needs.PREPARED_TRANSACTION


@needs(lambda dialect, task, **_: _needs(dialect, [task]))
async def submit(tx: Transaction, task: NewTask, *, notify: bool = True) -> int:
    """Submit one task; it exists when the caller's transaction commits.

    Args:
        notify: wake listening runners (PostgreSQL).

    Returns:
        The task id.

    Raises:
        InvalidTask: a value cannot be stored; nothing was written.
        DuplicateTask: the task is a duplicate and its policy raises; nothing was written.
    """
    (task_id,) = await submit_many(tx, [task], notify=notify)
    return task_id


@needs(_needs)
async def submit_many(tx: Transaction, tasks: Sequence[NewTask], *, notify: bool = True) -> list[int]:
    """Submit many tasks with few statements.

    Args:
        notify: wake listening runners (PostgreSQL), once per statement.

    Returns:
        The task ids in the order of `tasks`.

    Raises:
        InvalidTask: a value cannot be stored; nothing of the batch was written.
        DuplicateTask: a task is a duplicate and its policy raises; nothing of the batch was written.
    """
    return (await submit_with_result(tx, tasks, notify=notify)).ids


@needs(_needs)
def submit_with_result(
    tx: Transaction, tasks: Sequence[NewTask], *, notify: bool = True
) -> Coroutine[Any, Any, SubmitResult]:
    """Submit tasks like `submit_many` and report the duplicates.

    Args:
        notify: wake listening runners (PostgreSQL), once per statement.
    """
    return tx.follow(submit_steps(tx, tasks, notify))


@needs(_needs)
def submit_steps(frame: Frame, tasks: Sequence[NewTask], notify: bool) -> Steps[SubmitResult]:
    """The statements that submit tasks, for any kind of connection.

    Args:
        notify: wake listening runners.

    Returns:
        The ids and the duplicates.

    Raises:
        InvalidTask: a value cannot be stored, a parent does not exist, or a task would depend on itself; no task was
            written.
        DuplicateTask: a task is a duplicate and its policy raises; nothing of the batch was written.
    """
    tasks = _checked(tasks)
    alike = [tasks.like] if isinstance(tasks, TaskBatch) else tasks
    parent = workflow = None
    if any(isinstance(task.workflow, NewWorkflow) for task in alike):
        parent = continued_task(alike)
        tasks, workflow = yield from insert_workflow(frame, tasks)
    dependencies: DependencyRows = []
    if any(task.after is not None or task.order_key is not None for task in alike):
        dependencies = yield from dependency_rows(frame, tasks)
    outcome = (yield from check_keys(frame, tasks)) if any(task.unique_key is not None for task in alike) else None
    if dependencies or parent is not None:
        yield from refuse_cycles(frame, alike, dependencies, outcome, parent)
    if outcome is None:
        result = SubmitResult((yield from _insert_steps(frame, tasks, dependencies, notify)))
    else:
        waiting = [dependencies[position] for position in outcome.new] if dependencies else []
        inserted = yield from _insert_steps(frame, [tasks[position] for position in outcome.new], waiting, notify)
        result = yield from record_keys(frame, tasks, outcome, inserted, notify)
        dependencies = [None if position in result.duplicates else waits for position, waits in enumerate(dependencies)]
    if dependencies:
        yield from insert_dependencies(frame, result.ids, dependencies)
    if parent is not None:
        yield from hold_dependents(frame, parent, tasks, result.ids)
    return result if workflow is None else result._replace(workflow=workflow)


def _checked(tasks: Sequence[NewTask]) -> Sequence[NewTask]:
    """Check the values of tasks, and return them; one by one if each has a predecessor of its own."""
    if not isinstance(tasks, TaskBatch):
        for task in tasks:
            check(task)
        return tasks
    check(tasks.like)
    for payload in tasks.payloads:
        require_payload(payload)
    return tasks if tasks.like.order_key is None else list(tasks)


def single_insert(frame: Frame, task: NewTask, notify: bool) -> SingleInsert | None:
    """Prepare the statement that submits tasks like this one, which differ only in their payload.

    Args:
        frame: tables and dialect, and the driver `by_position` of the dialect.
        task: the task; its payload does not count.
        notify: wake listening runners.

    Returns:
        The statement; None if the submit of such a task reads other tasks.

    Raises:
        InvalidTask: a value cannot be stored.
    """
    if not takes_one_statement([task]):
        return None
    check(task)
    step = _insert_step(frame, [task], [], notify, returns_id=not frame.dialect.last_row_id)
    before, after = step.prepared.around("shared_payload", step.parameters)
    return SingleInsert(task, step.prepared.sql, before, after)


def _insert_steps(
    frame: Frame, tasks: Sequence[NewTask], dependencies: DependencyRows, notify: bool
) -> Steps[list[int]]:
    ids: list[int] = []
    for first in range(0, len(tasks), CHUNK):
        part = slice(first, first + CHUNK)
        rows = yield _insert_step(frame, tasks[part], dependencies[part], notify)
        # Ids are assigned in the order of the rows, but RETURNING has no order.
        ids += require_inserted(sorted(chain.from_iterable(rows)), len(tasks[part]))
    return ids


def _insert_step(
    frame: Frame, tasks: Sequence[NewTask], dependencies: DependencyRows, notify: bool, *, returns_id: bool = True
) -> Step:
    shared, rows = _columns(tasks)
    due = not (shared.keys() | rows.keys()) & {"run_at", "delay"}
    due = due or any(task.run_at is None and task.delay is None for task in tasks)
    if dependencies:
        rows["blocked_by"] = [row.open if row else 0 for row in dependencies]
        rows["parents"] = [row.summary if row else None for row in dependencies]
        due = due and not all(rows["blocked_by"])
    if len(tasks) == 1:  # a value costs less than a batch of one
        shared, rows = shared | {name: values[0] for name, values in rows.items()}, {}
    prepared = _prepared(frame.tables, frame.driver, tuple(rows), tuple(shared), notify and due, returns_id)
    for name in TIMES & shared.keys():
        shared[name] = frame.dialect.instant(shared[name])
    values = {f"shared_{name}": value for name, value in shared.items()}
    if rows:
        values |= frame.dialect.parameters("new", rows) | {"expected": len(tasks)}
    return Step(prepared, values)


def _columns(tasks: Sequence[NewTask]) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """Return the values that all tasks share, and the columns of the others, by name."""
    if isinstance(tasks, TaskBatch):
        shared = {name: value for name, value in tasks.like._asdict().items() if value is not None}
        for name in ("payload", *NO_COLUMNS):
            shared.pop(name, None)
        return shared, {"payload": tasks.payloads}
    columns: dict[str, Sequence[Any]] = {}
    for name, values in zip(NewTask._fields, zip(*tasks, strict=True), strict=True):
        if values.count(None) == len(values) or name in NO_COLUMNS:
            continue
        columns[name] = [key and key.text for key in values] if name in ("unique_key", "order_key") else values
        if name == "order_key" and any(key is not None and key.on_failure != "wait" for key in values):
            columns["order_on_failure"] = [key and key.on_failure for key in values]
    return {}, columns


@lru_cache(maxsize=128)
def _prepared(
    tables: Tables, driver: sa.Dialect, rows: tuple[str, ...], shared: tuple[str, ...], notify: bool, returns_id: bool
) -> Prepared:
    dialect = DIALECTS[driver.name]
    values_by_name: dict[str, Any] = {name: sa.bindparam(f"shared_{name}", type_=COLUMNS[name]) for name in shared}
    if rows:
        values_by_name = dict(dialect.rows("new", {name: COLUMNS[name] for name in rows}).c) | values_by_name
    lengths = ("delay", "expires", "hosts_for")
    values = {name: _value(name, column) for name, column in values_by_name.items() if name not in lengths}
    if "delay" in values_by_name:
        start = sa.func.coalesce(values_by_name["run_at"], db_now()) if "run_at" in values_by_name else db_now()
        values["run_at"] = db_later(start, sa.func.coalesce(values_by_name["delay"], 0))
    if "expires" in values_by_name:
        end = db_later(values.get("run_at", db_now()), values_by_name["expires"])
        values["expires_at"] = sa.func.coalesce(values["expires_at"], end) if "expires_at" in values else end
    if "hosts_for" in values_by_name:
        values["hosts_until"] = db_later(values.get("run_at", db_now()), values_by_name["hosts_for"])
    if "blocked_by" in values_by_name:
        ready, blocked = (state_literal(MOVES[verb].target) for verb in ("submit", "block"))
        values["state"] = sa.case((values_by_name["blocked_by"] > sa.literal_column("0"), blocked), else_=ready)
    insert = sa.insert(tables.task).from_select(list(values), sa.select(*values.values()))
    if not returns_id:
        return Prepared(insert, driver)
    insert = insert.returning(tables.task.c.id)
    if rows:
        return Prepared(dialect.inserting_all(insert, tables, notify=notify), driver)
    return Prepared(dialect.announcing(insert, tables) if notify else insert, driver)


def _value(name: str, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return the SQL value of a column.

    All rows of a batch have the columns that any of them sets, and NULL where a row does not set one. A column default
    applies only to an absent column, so NULL becomes the default here for columns that have one.
    """
    match name:
        case "payload" | "tags" | "headers" | "parents":
            return sa.cast(column, JsonText)
        case "queue" | "hosts":
            return sa.func.coalesce(column, sa.literal_column("'default'" if name == "queue" else "''"))
        case "priority":
            return sa.func.coalesce(column, sa.literal_column(str(Priority.DEFAULT)))
        case "run_at":
            return sa.func.coalesce(column, db_now())
        case "bucket":
            return sa.func.coalesce(column, random_below(BUCKETS))
        case _:
            return column
