"""move: take tasks out of the live table into the history, and back."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import JsonText, db_now
from runner.schema import Tables, is_state, state_literal
from runner.store.dialects import DIALECTS, Dialect, by_column
from runner.store.statement import Prepared
from runner.store.steps import Frame, Step, Steps
from runner.store.transaction import Transaction
from runner.task import MOVES, State

ENDING_COLUMNS: dict[str, Any] = {
    "id": sa.BigInteger,
    "fence": sa.BigInteger,
    "duration": sa.Float,
    "result": sa.Text,
    "error": sa.Text,
}

NOBODY = 0
"""Stands for the holder of a task that is in no runner's hands."""

IN_NO_HANDS: dict[str, Any] = {"runner_id": None, "deadline_at": None, "claimed_at": None}
"""What a row says of its runner when it is in no runner's hands."""


class Ending(NamedTuple):
    """How one task ends.

    Args:
        id: the task's.
        fence: that the row must still have.
        duration: seconds that the last attempt took; None when it was not tried.
        result: JSON text; None for nothing.
        error: the last error; None keeps the one that stands in the row.
    """

    id: int
    fence: int
    duration: float | None = None
    result: str | None = None
    error: str | None = None


async def finish(tx: Transaction, verb: str, holder: int, endings: list[Ending]) -> set[int]:
    """Move tasks to the history, each if `holder` still has it under the given fence.

    Args:
        tx: an open transaction; on PostgreSQL one statement is executed, on SQLite two.
        verb: of MOVES, one that leads to a final state.
        holder: the runner that has the tasks in hand, or NOBODY.
        endings: one for each task.

    Returns:
        The ids of the tasks that were moved. On PostgreSQL a row that someone changes at this very moment may be
        missing though its fence still holds; ask again with the row locked.
    """
    return await tx.follow(finishing(tx, verb, holder, endings))


def finishing(frame: Frame, verb: str, holder: int, endings: list[Ending]) -> Steps[set[int]]:
    """The statements of `finish`, for any connection to follow."""
    parameters = frame.dialect.parameters("ending", by_column(ENDING_COLUMNS, endings)) | {"holder": holder}
    moved: list[Any] = []
    for prepared in _prepared(frame.tables, frame.driver, verb):
        moved = yield Step(prepared, parameters)
    return {row[0] for row in moved}


async def make_way(tx: Transaction, ids: list[int]) -> None:
    """Delete from the history what has the ids of live tasks: rows that somebody copied back by hand.

    Args:
        tx: the transaction that then finishes these tasks.
        ids: of live tasks.
    """
    history = tx.tables.history
    await tx.execute(sa.delete(history).where(tx.dialect.one_of(history.c.id, ids)))


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect, verb: str) -> list[Prepared]:
    statements = finish_statements(tables, DIALECTS[driver.name], MOVES[verb].target)
    return [Prepared(statement, driver) for statement in statements]


def finish_statements(tables: Tables, dialect: Dialect, target: State) -> list[sa.UpdateBase]:
    """Copy to the history and delete: one statement where a delete can feed an insert, else two."""
    ending = dialect.rows("ending", ENDING_COLUMNS)
    return _in_one(tables, dialect, ending, target) if dialect.isolates_rows else _in_two(tables, ending, target)


def _in_two(tables: Tables, ending: sa.FromClause, target: State) -> list[sa.UpdateBase]:
    task = tables.task
    held = ending.join(task, _held(task, ending))
    given = {name: ending.c[name] for name in GIVEN}
    copy = sa.insert(tables.history).from_select(*_copied(tables, task.c, given, target, held))
    gone = sa.select(task.c.id).select_from(held).scalar_subquery()
    return [copy, sa.delete(task).where(task.c.id.in_(gone)).returning(task.c.id)]


def _in_one(tables: Tables, dialect: Dialect, ending: sa.FromClause, target: State) -> list[sa.UpdateBase]:
    task = tables.task
    found, meant = dialect.one_by_one(ending, task, _held)
    carried = [*(task.c[name] for name in shared(tables)), task.c.error]
    given = [found.c[name].label(f"given_{name}") for name in GIVEN]
    gone = sa.delete(task).where(meant).returning(*carried, *given).cte("gone")
    renamed = {name: gone.c[f"given_{name}"] for name in GIVEN}
    copy = sa.insert(tables.history).from_select(*_copied(tables, gone.c, renamed, target, gone))
    return [copy.returning(tables.history.c.id)]


GIVEN = ("error", "duration", "result")
"""What an ending adds to the row."""


def shared(tables: Tables) -> list[str]:
    """The columns that a task keeps when it moves between the live table and the history."""
    changed = ("state", "error")
    return [column.name for column in tables.history.c if column.name in tables.task.c and column.name not in changed]


def _copied(
    tables: Tables, row: Any, given: dict[str, Any], target: State, source: sa.FromClause
) -> tuple[list[str], sa.Select[Any]]:
    values: dict[str, Any] = {name: row[name] for name in shared(tables)} | {
        "state": state_literal(target),
        "error": sa.func.coalesce(given["error"], row["error"]),
        "duration": given["duration"],
        "result": sa.cast(given["result"], JsonText),
        "finished_at": db_now(),
        "version": row["version"] + sa.literal_column("1"),
    }
    return list(values), sa.select(*values.values()).select_from(source)


def _held(task: sa.FromClause, ending: sa.FromClause) -> sa.ColumnElement[bool]:
    """The condition that the fence holds.

    It names the holder and not the state: a literal state would let the planner use the index of running tasks, which
    is all dead entries of tasks that have ended.
    """
    holder = sa.func.coalesce(task.c.runner_id, sa.literal_column(str(NOBODY)))
    given = sa.bindparam("holder", type_=sa.BigInteger)
    return (task.c.id == ending.c.id) & (task.c.fence == ending.c.fence) & (holder == given)


async def requeue(tx: Transaction, ids: list[int]) -> set[int]:
    """Move tasks from the history back to the live table, due at once and with all their attempts.

    Args:
        tx: an open transaction.
        ids: of tasks whose state allows it (see MOVES); others stay where they are. Whoever calls this has made sure
            that no other tasks hold their unique keys.

    Returns:
        The ids of the tasks that were moved.
    """
    task, history = tx.tables.task, tx.tables.history
    move = MOVES["requeue"]
    old = {name: history.c[name] for name in shared(tx.tables)} | {"error": history.c.error}
    cleared = {"runner_id": sa.null(), "claimed_at": sa.null(), "attempt": sa.literal_column("0")}
    new = {"state": state_literal(move.target), "run_at": db_now(), "rescues": sa.literal_column("0")}
    values: dict[str, Any] = old | cleared | new | {"version": history.c.version + 1}
    chosen = history.c.id.in_(ids) & is_state(history.c.state, *(state for state in move.sources if state))
    copy = sa.insert(task).from_select(list(values), sa.select(*values.values()).where(chosen)).returning(task.c.id)
    moved = {row[0] for row in await tx.rows(copy)}
    await tx.execute(sa.delete(history).where(history.c.id.in_(moved)))
    return moved


BACK_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "error": sa.Text, "progress": sa.Float}


async def restore(tx: Transaction, back: Sequence[tuple[Any, ...]]) -> None:
    """Move cancelled tasks from the history back to the live table, with all that they had before they ended.

    Args:
        tx: an open transaction that holds them; whoever calls this has made sure that no other tasks hold their unique
            keys.
        back: of each what the history did not keep, as BACK_COLUMNS has it.
    """
    task, history, lost = tx.tables.task, tx.tables.history, tx.dialect.rows("back", BACK_COLUMNS)
    target = MOVES["restore"]
    values: dict[str, Any] = {name: history.c[name] for name in shared(tx.tables)} | {
        "state": state_literal(target.target),
        "error": lost.c.error,
        "progress": lost.c.progress,
        "version": history.c.version + 1,
    }
    chosen = (history.c.id == lost.c.id) & is_state(history.c.state, *(state for state in target.sources if state))
    rows = sa.select(*values.values()).select_from(history.join(lost, chosen))
    parameters = tx.dialect.parameters("back", by_column(BACK_COLUMNS, back))
    moved = await tx.rows(sa.insert(task).from_select(list(values), rows).returning(task.c.id), parameters)
    await tx.execute(sa.delete(history).where(tx.dialect.one_of(history.c.id, [row.id for row in moved])))
