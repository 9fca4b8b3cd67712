"""The values of a task's status, by one prepared statement."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.model.step import error_of
from runner.model.task import State
from runner.queries.rows import as_int, as_text, moment, number, readable, text
from runner.queries.task.steps import waits_for
from runner.text.progress import TaskProgress


@needs(Needs.PREPARED)
async def status_values(tx: Transaction, id: int) -> dict[str, Any] | None:
    """Read the status of a task.

    Returns:
        The values by field of TaskStatus; None if the task does not exist.
    """
    rows = await tx.run(_status(tx.tables, tx.driver), {"id": id})
    return _read(rows[0]) if rows else None


@lru_cache
def _status(tables: Tables, driver: sa.Dialect) -> Prepared:
    """One statement, so that a task that moves between the tables is seen in one of them."""
    dialect, progress = DIALECTS[driver.name], tables.progress
    reported = readable(dialect, [progress.c[name] for name in ("done", "total", "unit", "rate", "at")])
    parts = []
    for table in (tables.history, tables.task):
        live = table is tables.task
        finished_at = sa.null() if live else dialect.readable_time(table.c.finished_at)
        names = ("id", "handler", "state", "attempt", "error", "run_at", "submitted_at", "claimed_at")
        columns = [*readable(dialect, [table.c[name] for name in names]), finished_at.label("finished_at")]
        columns.append((table.c.cancel_requested if live else sa.false()).label("cancel_requested"))
        columns += [(waits_for(table, tables) if live else sa.null()).label("waits_for"), *reported]
        joined = table.outerjoin(progress, progress.c.task_id == table.c.id)
        parts.append(
            sa.select(*columns).select_from(joined).where(table.c.id == sa.bindparam("id", type_=sa.BigInteger))
        )
    return Prepared(sa.union_all(*parts), driver)


def _read(row: Sequence[Any]) -> dict[str, Any]:
    id, handler, state, attempt, error, run_at, submitted_at, claimed_at, finished_at, requested, *rest = row
    waits, done, total, unit, rate, at = rest
    progress, error = None, error_of(text(error))
    if done is not None:
        progress = TaskProgress(number(done) or 0.0, number(total), text(unit), number(rate), moment(at))
    return {
        "id": id,
        "handler": as_text(handler),
        "state": State(as_text(state)),
        "attempt": as_int(attempt),
        "error": error,
        "run_at": moment(run_at),
        "submitted_at": moment(submitted_at),
        "claimed_at": moment(claimed_at),
        "finished_at": moment(finished_at),
        "cancel_requested": bool(requested),
        "waits_for": None if error else text(waits),
        "progress": progress,
    }
