"""The payloads of live tasks, in the order of their ids."""

from typing import NamedTuple

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.transaction import Transaction
from runner.model.task import State
from runner.queries.rows import as_text

CHUNK = 1_000
"""Tasks per statement."""


MOST_PAYLOADS = 100_000
"""Maximum number of tasks that are read in order; beyond it, the newest are read too."""


class PayloadRow(NamedTuple):
    """The payload of a task.

    Args:
        payload: JSON text.
    """

    id: int
    handler: str
    payload: str


async def oldest_payloads(tx: Transaction, after: int) -> list[PayloadRow]:
    """Read the next tasks that are not running.

    Args:
        tx: an open transaction; one statement along the primary key is executed.
        after: id of the last known task; 0 at first.
    """
    return await _read_payloads(tx, tx.tables.task.c.id > after, tx.tables.task.c.id)


async def newest_payloads(tx: Transaction, after: int) -> list[PayloadRow]:
    """Read the last CHUNK tasks that are not running, of those after an id."""
    return await _read_payloads(tx, tx.tables.task.c.id > after, tx.tables.task.c.id.desc())


async def _read_payloads(
    tx: Transaction, condition: sa.ColumnElement[bool], order: sa.ColumnElement[int] | sa.UnaryExpression[int]
) -> list[PayloadRow]:
    task = tx.tables.task.c
    waits = is_state(task.state, State.WAITING, State.BLOCKED)
    payload = sa.cast(task.payload, sa.Text)
    statement = sa.select(task.id, task.handler, payload).where(condition, waits).order_by(order).limit(CHUNK)
    return [PayloadRow(row[0], as_text(row[1]), as_text(row[2])) for row in await tx.rows(statement)]
