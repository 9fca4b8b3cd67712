"""due: find the schedules whose tick has come, with a few index look-ups however many there are."""

from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import NO_JOIN, db_now, seconds_until


class NextTick(NamedTuple):
    """The time of the next work for schedules.

    Args:
        due: True if a schedule is due now.
        wait: seconds until the next tick; None without one.
    """

    due: bool
    wait: float | None


async def next_tick(tx: Transaction) -> NextTick:
    """Look whether a schedule is due; the only cost of schedules on an idle runner.

    Args:
        tx: an open transaction; one statement is executed.
    """
    ((wait, unplanned, requested),) = await tx.run(_prepared(tx.tables, tx.driver), {})
    return NextTick(bool(unplanned or requested or (wait is not None and wait <= 0)), wait)


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect) -> Prepared:
    return Prepared(next_tick_statement(tables), driver)


def next_tick_statement(tables: Tables) -> Any:
    """Return the statement of `next_tick`: three look-ups of one row each."""
    row = tables.schedule.c
    # In the order of their indexes: without it a planner that knows nothing about the table would read all of it.
    first = sa.select(row.next_at).where(row.next_at.is_not(None)).order_by(row.next_at)
    unplanned = sa.select(row.id).where(*_unplanned(tables)).order_by(row.id)
    requested = sa.select(row.run_requested_at).where(row.run_requested_at.is_not(None)).order_by(row.run_requested_at)
    one: sa.ColumnElement[int] = sa.literal_column("1")
    wait, other, request = (part.limit(one).scalar_subquery() for part in (first, unplanned, requested))
    return sa.select(seconds_until(wait), other.is_not(None), request.is_not(None))


def _unplanned(tables: Tables) -> list[sa.ColumnElement[bool]]:
    """The conditions of schedules whose next tick has to be computed; a rule with a delay waits for its last run."""
    row, task = tables.schedule.c, tables.task
    # A look-up for each schedule; as a join it would read all tasks.
    unfinished = sa.select(task.c.id).where(task.c.id == row.last_task_id).offset(NO_JOIN).exists()
    return [row.next_at.is_(None), row.paused_at.is_(None), row.error.is_(None), ~unfinished]


async def due_schedules(tx: Transaction, limit: int) -> list[dict[str, Any]]:
    """Lock the due schedules, except those that another runner has locked.

    Args:
        tx: a writing transaction.
        limit: maximum number of schedules.

    Returns:
        Their rows as they are under the lock: another runner may have handled them in between.
    """
    ids = [row[0] for row in await tx.run(_due_ids(tx.tables, tx.driver), {"limit": limit})]
    if not ids:
        return []
    schedule = tx.tables.schedule
    chosen = tx.dialect.one_of(schedule.c.id, sorted(set(ids)))
    rows = sa.select(schedule, tx.dialect.pause_limit().label("pause_limit")).where(chosen).order_by(schedule.c.id)
    return [dict(row) for row in (await tx.execute(rows.with_for_update(skip_locked=True))).mappings()]


@lru_cache
def _due_ids(tables: Tables, driver: sa.Dialect) -> Prepared:
    return Prepared(due_ids_statement(tables), driver)


def due_ids_statement(tables: Tables) -> Any:
    """Return the statement that finds the due schedules: a part for each reason, each along its own index."""
    row, limit = tables.schedule.c, sa.bindparam("limit", type_=sa.Integer)
    planned = sa.select(row.id).where(row.next_at.is_not(None), row.next_at <= db_now()).order_by(row.next_at)
    unplanned = sa.select(row.id).where(*_unplanned(tables)).order_by(row.id)
    requested = sa.select(row.id).where(row.run_requested_at.is_not(None)).order_by(row.run_requested_at)
    parts = [
        sa.select(part.limit(limit).subquery(name).c.id)
        for name, part in (("planned", planned), ("unplanned", unplanned), ("requested", requested))
    ]
    return sa.union_all(*parts)
