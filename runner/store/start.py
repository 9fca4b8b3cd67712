"""start: mark prefetched tasks as started, so that a crash of their runner counts as an attempt."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, by_column
from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now

START_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "fence": sa.BigInteger, "ago": sa.Float}


class Start(NamedTuple):
    """The start of a task.

    Args:
        id: task id.
        fence: fence of the claim.
        ago: seconds since the start, negative.
    """

    id: int
    fence: int
    ago: float


async def mark_started(tx: Transaction, holder: int, starts: Sequence[Start]) -> None:
    """Mark prefetched tasks as started, each if its fence still matches.

    Args:
        tx: an open transaction; one statement is executed.
        holder: id of the runner.
        starts: at most one per task.
    """
    parameters = tx.dialect.parameters("start", by_column(START_COLUMNS, starts))
    await tx.run(_prepared(tx.tables, tx.driver), parameters | {"holder": holder})


@lru_cache
def _prepared(tables: Tables, driver: sa.Dialect) -> Prepared:
    task, dialect = tables.task, DIALECTS[driver.name]
    start, match = dialect.one_by_one(dialect.rows("start", START_COLUMNS), task, _held)
    started_at = db_later(db_now(), start.c.ago)
    return Prepared(sa.update(task).where(match).values(started_at=started_at).returning(task.c.id), driver)


def _held(task: Any, start: Any) -> sa.ColumnElement[bool]:
    """The condition that the fence matches; it compares no state, as in runner.store.history."""
    holder = sa.bindparam("holder", type_=sa.BigInteger)
    condition: sa.ColumnElement[bool] = (
        (task.c.id == start.c.id) & (task.c.fence == start.c.fence) & (task.c.runner_id == holder)
    )
    return condition
