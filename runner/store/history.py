"""history: move tasks between the live table and the history."""

import json
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state, state_literal
from runner.db.schema.partitions import ROW_TIMEOUT, submit_watch
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.transaction import Transaction
from runner.db.types import JsonText, RowAddress, ctid, db_now, next_version
from runner.errors import DatabaseRefused
from runner.model.task import MOVES, State
from runner.store.dependencies.followers import block_followers
from runner.store.dependencies.parents import is_any_open
from runner.store.minute_statistics import NO_RUNNER, count_successes
from runner.store.retention import SubmitWatch, unreferenced

ENDING_COLUMNS: dict[str, Any] = {
    "id": sa.BigInteger,
    "fence": sa.BigInteger,
    "duration": sa.BigInteger,
    "result": sa.Text,
    "error": sa.Text,
}
"""The values of a FinishedTask, with the duration in microseconds: a fraction takes longer to write and to read."""

UNASSIGNED: dict[str, Any] = dict.fromkeys(("runner_id", "deadline_at", "claimed_at", "started_at"), sa.null())
"""The columns to reset when a task no longer has a runner."""


class FinishedTask(NamedTuple):
    """The final result of one task.

    Args:
        fence: fence that the row must still have.
        duration: duration of the last attempt in seconds; None without one.
        result: JSON text; None without a result.
        error: the last error; None keeps the stored one.
    """

    id: int
    fence: int
    duration: float | None = None
    result: str | None = None
    error: str | None = None


SKIPPED_COPIES = " of the deleted rows not stored in the history: probably a trigger returns NULL"
"""The text of the error of a statement that would lose tasks."""

RUNNER = sa.bindparam("holder", type_=sa.BigInteger)
PART = sa.bindparam("part", type_=sa.SmallInteger)


def require_all(expected: int, changed: int) -> None:
    """Refuse a statement that changed fewer rows than it had locked: the others would be lost, or be in two tables.

    Raises:
        DatabaseRefused: a row is missing; the transaction must not commit.
    """
    if changed < expected:
        why = f"{changed} of {expected} locked rows changed: probably a trigger returns NULL or raises IGNORE"
        raise DatabaseRefused(why=why)


async def finish(
    tx: Transaction, verb: str, holder: int, endings: list[FinishedTask], *, fails: bool = True
) -> set[int]:
    """Move locked tasks to the history, which `holder` has under the given fences.

    Args:
        tx: an open transaction; on PostgreSQL one statement is executed, on SQLite three.
        verb: a verb of MOVES with a final target state.
        holder: id of the runner that has the tasks, or NO_RUNNER.
        endings: one item per task.
        fails: False for tasks that have failed before, so that later tasks of their order keys stay as they are.

    Returns:
        The ids of the moved tasks.

    Raises:
        DatabaseRefused: a trigger skips a row; the transaction must not commit.
    """
    parameters = tx.dialect.parameters("ending", _columns(endings)) | {"holder": holder}
    rows = await tx.follow(_steps(_prepared(tx.tables, tx.driver, verb), parameters))
    require_all(len(endings), len(rows))
    if fails and MOVES[verb].target is not State.SUCCEEDED:
        await block_followers(tx, [(id, key) for id, key in rows if key is not None])
    return {row[0] for row in rows}


class Success(Enum):
    """The statements that end succeeded tasks and count them in the minute statistics, one per database and member.

    On PostgreSQL, each is one statement, and all but COMPLETE fail if they wait for a lock longer than ROW_TIMEOUT. On
    SQLite, each is five, or four for DELETE.
    """

    MOVE = "move tasks to the history"
    MOVE_AT_ADDRESS = "move tasks to the history that are at their addresses, on PostgreSQL"
    DELETE = "delete tasks that nothing refers to; on PostgreSQL, if they are at their addresses"
    COMPLETE = "move a task that its transaction has locked, to the history"

    @property
    def by_address(self) -> bool:
        """True if the rows of PostgreSQL are found by their addresses at the claim: those that have moved are left."""
        return self in (Success.MOVE_AT_ADDRESS, Success.DELETE)

    @property
    def reports_open(self) -> bool:
        """True if the statement of PostgreSQL returns one more row, a null, if any dependency is open at its start."""
        return self in (Success.MOVE_AT_ADDRESS, Success.MOVE)


def success_steps(
    frame: Frame,
    success: Success,
    holder: int,
    endings: Sequence[tuple[Any, ...]],
    *,
    part: int = 0,
    addresses: Sequence[str | None] = (),
    watch: SubmitWatch | None = None,
) -> Steps[set[int | None]]:
    """End succeeded tasks if their fences still match, and count them; leave out all others.

    Returns their ids, with None among them if the statement of PostgreSQL saw an open dependency; see `reports_open`.

    Args:
        endings: one FinishedTask per task, or the tuple of its values.
        part: number of the row of the statistics that the transaction writes, see runner.store.minute_statistics.
        addresses: on PostgreSQL, the addresses of all rows at their claims, for statements by address.
        watch: the state of a runner that deletes tasks; it changes.
    """
    statements = _prepared_success(frame.tables, frame.driver, success)
    if not frame.dialect.writing_ctes:
        return (yield from _succeed_in_file(statements, holder, endings, part))
    parameters = _success_parameters(frame, holder, endings, part, addresses if success.by_address else ())
    if success is not Success.DELETE or watch is None:
        return {row[0] for row in (yield from _steps(statements, parameters))}
    *rows, (watch.last_dependency,) = yield from _steps(
        statements, parameters | {"last_dependency": watch.last_dependency}
    )
    return {row[0] for row in rows}


def _success_parameters(
    frame: Frame, holder: int, endings: Sequence[tuple[Any, ...]], part: int, addresses: Sequence[str | None]
) -> dict[str, Any]:
    values = _columns(endings) | ({"address": addresses} if addresses else {})
    return frame.dialect.parameters("ending", values) | {"holder": holder, "part": part}


def _succeed_in_file(
    statements: list[Prepared], holder: int, endings: Sequence[tuple[Any, ...]], part: int
) -> Steps[set[int | None]]:
    """Find the tasks that the runner still has, and pass their ids to the statements that move and count them."""
    lookup, *moves = statements
    fences, results = json.dumps({id: fence for id, fence, *_ in endings}), _results(endings)
    [(ids,)] = yield Step(lookup, {"fences": fences, "holder": holder})
    accepted = set[int | None](json.loads(ids))
    if len(accepted) < len(endings):
        results = _results([ending for ending in endings if ending[0] in accepted])
    if accepted:
        parameters = {"ids": ids, "results": results, "holder": holder, "part": part}
        [(changed,)] = yield from _steps(moves, parameters)
        require_all(len(accepted), changed)
    return accepted


def _results(endings: Sequence[tuple[Any, ...]]) -> str:
    """The results by task id: the duration alone costs SQLite a fifth of a list."""
    return json.dumps(
        {
            id: _micros(took) if result is None and error is None else (_micros(took), result, error)
            for id, _, took, result, error in endings
        }
    )


def _columns(endings: Sequence[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    """The values of ENDING_COLUMNS."""
    values = tuple(zip(*endings, strict=True)) or ((),) * len(ENDING_COLUMNS)
    columns = dict(zip(ENDING_COLUMNS, values, strict=True))
    return columns | {"duration": [_micros(took) for took in columns["duration"]]}


def _micros(took: float | None) -> int | None:
    return None if took is None else int(took * 1e6 + 0.5)


def _steps(statements: list[Prepared], parameters: dict[str, Any]) -> Steps[list[Any]]:
    moved: list[Any] = []
    for prepared in statements:
        moved = yield Step(prepared, parameters)
    return moved


async def reused_ids(tx: Transaction, ids: Sequence[int]) -> set[int]:
    """Find the live tasks whose ids the history has for earlier tasks; both rows stay as they are.

    An id is used again if the sequence of ids was set back, as by a data-only restore; see
    runner.db.migrations.sequences. On PostgreSQL the primary keys do not find it: each partition has its own.

    Args:
        tx: the transaction that would finish these tasks.
    """
    return {id for (id,) in await tx.run(_reused(tx.tables, tx.driver), tx.dialect.parameters("reused", {"id": ids}))}


@lru_cache
def _reused(tables: Tables, driver: sa.Dialect) -> Prepared:
    id = tables.history.c.id
    return Prepared(sa.select(id).where(DIALECTS[driver.name].in_batch(id, "reused")), driver)


async def refuse_reused(tx: Transaction, ids: Sequence[int]) -> None:
    """Refuse to move live tasks to the history whose ids it has for earlier ones.

    Raises:
        DatabaseRefused: there is such a task; the message names one.
    """
    for id in sorted(await reused_ids(tx, ids)) if ids else ():
        raise reused_id(id)


def reused_id(id: int) -> DatabaseRefused:
    """Return the error of a task that cannot move to the history because of an earlier task with its id."""
    why = f"the history has an earlier task with the id {id}; probably a restore has set back the sequence of ids"
    remedy = "run `runner migrate`, then give the earlier row of task_history another id, such as its negative"
    return DatabaseRefused(why=f"{why}: {remedy}")


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect, verb: str) -> list[Prepared]:
    statements = finish_statements(tables, DIALECTS[driver.name], MOVES[verb].target)
    return [Prepared(statement, driver) for statement in statements]


@needs(Needs.PREPARED)
async def prepare_successes(tx: Transaction, deletes: bool) -> None:
    """Compile the statements for the success of tasks just claimed, and execute nothing.

    Args:
        deletes: True if successes that nothing refers to are deleted.
    """
    usual = Success.MOVE_AT_ADDRESS if tx.dialect.row_addresses else Success.MOVE
    _prepared_success(tx.tables, tx.driver, Success.DELETE if deletes else usual)


@lru_cache
def _prepared_success(tables: Tables, driver: sa.Dialect, success: Success) -> list[Prepared]:
    dialect = DIALECTS[driver.name]
    statements = _success_in_one if dialect.writing_ctes else _success_in_file
    return [Prepared(statement, driver) for statement in statements(tables, dialect, success)]


def finish_statements(tables: Tables, dialect: Dialect, target: State) -> list[Any]:
    """Copy to the history and delete: one statement where a delete can feed an insert, otherwise two."""
    ending, task = dialect.rows("ending", ENDING_COLUMNS), tables.task
    if dialect.writing_ctes:
        return [_copy_in_one(tables, _deleted(tables, dialect, ending, _has_claim), target)]
    return _in_two(tables, ending, ending.join(task, _has_claim(task, ending)), target)


RUN_COLUMNS = ("queue", "handler", "attempt", "fence", "submitted_at")


def _success_in_file(tables: Tables, dialect: Dialect, success: Success) -> list[Any]:
    """The statements of SQLite for successes: find the held tasks, count them, copy them, delete them, count the rows.

    If a trigger skips a row of the copy, none is deleted.

    Each batch is a JSON object by task id, or a list of ids, because a list of lists takes SQLite four times as long.
    """
    task, ids = tables.task, _json_rows("ids")
    is_moved = task.c.id.in_(sa.select(ids.c.value))
    fences = _json_rows("fences")
    ending = sa.select(sa.cast(fences.c.key, sa.Integer).label("id"), fences.c.value.label("fence")).subquery("ending")
    lookup = sa.select(sa.func.json_group_array(task.c.id)).select_from(ending.join(task, _has_claim(task, ending)))
    run = sa.select(*(task.c[name] for name in RUN_COLUMNS)).where(is_moved).subquery("run")
    counted, deleted = count_successes(tables, dialect, run, RUNNER, PART), sa.delete(task).where(is_moved)
    changes = sa.select(sa.func.changes())
    if success is Success.DELETE:
        return [lookup.where(*unreferenced(tables)), counted, deleted, changes]
    result = _json_rows("results")
    is_list = result.c.type == sa.literal_column("'array'")
    parts = {
        name: sa.case((is_list, sa.func.json_extract(result.c.value, sa.literal_column(f"'$[{index}]'"))), else_=other)
        for index, (name, other) in enumerate({"duration": result.c.value, "result": None, "error": None}.items())
    }
    joined = result.join(task, task.c.id == sa.cast(result.c.key, sa.Integer))
    copy = sa.insert(tables.history).from_select(*_copied(tables, task.c, parts, State.SUCCEEDED, joined))
    number = sa.func.json_array_length(sa.bindparam("ids", type_=sa.Text))
    return [lookup, counted, copy, deleted.where(changes.scalar_subquery() == number), changes]


def _json_rows(name: str) -> Any:
    each = sa.func.json_each(sa.bindparam(name, type_=sa.Text))
    return each.table_valued("key", "value", "type", name=f"{name}_row")


def _in_two(tables: Tables, ending: sa.FromClause, joined: sa.FromClause, target: State) -> list[sa.UpdateBase]:
    task = tables.task
    values = {name: ending.c[name] for name in RESULT_COLUMNS}
    copy = sa.insert(tables.history).from_select(*_copied(tables, task.c, values, target, joined))
    is_copied = sa.exists().where(tables.history.c.id == task.c.id)
    moved = task.c.id.in_(sa.select(task.c.id).select_from(joined)) & is_copied
    return [copy, sa.delete(task).where(moved).returning(*_moved(task, target))]


def _success_in_one(tables: Tables, dialect: Dialect, success: Success) -> list[Any]:
    """Delete the tasks, count them, and copy them to the history unless nothing refers to them."""
    columns = ENDING_COLUMNS | {"address": sa.Text} if success.by_address else ENDING_COLUMNS
    condition = _has_claim_at_address if success.by_address else _has_claim
    watch, more = None, [_is_new(tables)]
    if success is Success.DELETE:
        watch, more = submit_watch(tables.task, tables.dependency), []  # it sets the same limit
    elif success is not Success.COMPLETE:
        more = [dialect.lock_limit(ROW_TIMEOUT), *more]
    deletion = _deleted(tables, dialect, dialect.rows("ending", columns), condition, watch, more)
    counted = count_successes(tables, dialect, deletion, RUNNER, PART).cte("counted")
    if watch is None:
        moved = _copy_in_one(tables, deletion, State.SUCCEEDED)
        if success.reports_open:
            any_open = sa.exists().where(is_any_open(tables.dependency.c))
            moved = sa.union_all(*moved.selects, sa.select(sa.null()).where(any_open))
        return [moved.add_cte(counted)]
    return [sa.union_all(sa.select(deletion.c.id), sa.select(watch.c.last_dependency)).add_cte(counted)]


def _copy_in_one(tables: Tables, deletion: sa.CTE, target: State) -> sa.CompoundSelect[Any]:
    """Copy deleted tasks to the history. The statement fails if a trigger skips one of the copies."""
    new = {name: deletion.c[f"new_{name}"] for name in RESULT_COLUMNS}
    copy = sa.insert(tables.history).from_select(*_copied(tables, deletion.c, new, target, deletion))
    copied = copy.returning(*_moved(tables.history, target)).cte("copied")
    deletions = sa.select(sa.func.count().label("number")).select_from(deletion).subquery("deletions")
    copies = sa.select(sa.func.count().label("number")).select_from(copied).subquery("copies")
    # Without a function of its own, only a cast raises an error with a text; the number keeps it from the planner.
    text = sa.cast(deletions.c.number - copies.c.number, sa.Text) + sa.literal_column(f"'{SKIPPED_COPIES}'")
    failure = [sa.cast(text, sa.BigInteger), *(sa.null() for _ in copied.c[1:])]
    is_short = sa.select(*failure).where(deletions.c.number > copies.c.number)
    return sa.union_all(sa.select(*copied.c), is_short)


def _is_new(tables: Tables) -> sa.ColumnElement[bool]:
    """The condition that no dead or cancelled task has the id of a task; the key of its partition covers the others.

    Most ids are above all of theirs: one look for a whole batch.
    """
    others, id = tables.history.alias("others"), tables.task.c.id
    # By the state, which leaves one partition: a runner has rights on the table as a whole only.
    has_failed = is_state(others.c.state, State.DEAD, State.CANCELLED)
    highest = sa.select(sa.func.max(others.c.id)).where(has_failed).scalar_subquery()
    return (id > sa.func.coalesce(highest, sa.literal_column("0"))) | ~sa.exists().where(others.c.id == id, has_failed)


def _deleted(
    tables: Tables, dialect: Dialect, ending: sa.FromClause, condition: Any, watch: Any = None, more: Sequence[Any] = ()
) -> sa.CTE:
    task = tables.task
    ending_row, match = dialect.one_by_one(ending, task, condition, compared=("fence",))
    # Servers without the fix of November 2025 do not compare a row again that another transaction has changed.
    deletion = sa.delete(task).where(match, _same_fence(task, ending_row), *more)
    if watch is not None:
        deletion = deletion.where(sa.select(watch.c.alone).scalar_subquery(), *unreferenced(tables))
        return deletion.returning(task.c.id, *(task.c[name] for name in RUN_COLUMNS)).cte("deletion")
    result_values = [ending_row.c[name].label(f"new_{name}") for name in RESULT_COLUMNS]
    return deletion.returning(*(task.c[name] for name in shared(tables)), task.c.error, *result_values).cte("deletion")


def _moved(table: sa.Table, target: State) -> list[sa.ColumnElement[Any]]:
    """The id of a moved task, and its order key if it failed."""
    return [table.c.id] if target is State.SUCCEEDED else [table.c.id, table.c.order_key]


RESULT_COLUMNS = ("error", "duration", "result")
"""The columns that the final result sets."""


def shared(tables: Tables) -> list[str]:
    """Return the columns that a task keeps when it moves between the live table and the history."""
    changed = ("state", "error")
    return [column.name for column in tables.history.c if column.name in tables.task.c and column.name not in changed]


def _copied(
    tables: Tables, row: Any, result_values: dict[str, Any], target: State, source: sa.FromClause
) -> tuple[list[str], sa.Select[Any]]:
    values: dict[str, Any] = {name: row[name] for name in shared(tables)} | {
        "state": state_literal(target),
        "error": sa.func.coalesce(result_values["error"], row["error"]),
        "duration": sa.cast(result_values["duration"], sa.Float).op("/")(sa.literal_column("1000000")),
        "result": sa.cast(result_values["result"], JsonText),
        "finished_at": db_now(),
        "version": next_version(row["version"]),
    }
    return list(values), sa.select(*values.values()).select_from(source)


def _has_claim(task: sa.FromClause, ending: sa.FromClause) -> sa.ColumnElement[bool]:
    """The condition that the fence matches.

    It compares the holder instead of the state: with a literal state the planner could use the index of running tasks,
    which consists of dead entries of finished tasks.
    """
    holder = sa.func.coalesce(task.c.runner_id, sa.literal_column(str(NO_RUNNER)))
    return (task.c.id == ending.c.id) & _same_fence(task, ending) & (holder == RUNNER)


def _same_fence(task: sa.FromClause, ending: sa.FromClause) -> sa.ColumnElement[bool]:
    return task.c.fence == ending.c.fence


def _has_claim_at_address(task: sa.FromClause, ending: sa.FromClause) -> sa.ColumnElement[bool]:
    """The condition that the row is still at its address, and that the fence matches.

    The address spares a walk along the primary key, which has an entry for each version of the row.
    """
    # IS true hides the id from a planner that would prefer the primary key of a small table.
    return (ctid(task) == sa.cast(ending.c.address, RowAddress)) & _has_claim(task, ending).is_(sa.true())
