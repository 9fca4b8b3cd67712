"""audit: who changed what, when, and why."""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.store.observe.legible import legible, moment, text, words
from runner.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Audited:
    """Something that an operator did.

    Args:
        id: the entry's number.
        task_id: the task that it was done to; None when it was done to something else.
        target: what else it was done to, e.g. "queue mail".
        undo_of: the entry that this one took back.
        at: when.
        operator: who.
        host: from where.
        verb: what.
        reason: why.
        before: the values before, JSON text.
        after: the values after, JSON text.
    """

    id: int
    task_id: int | None
    target: str | None
    undo_of: int | None
    at: datetime | None
    operator: str
    host: str
    verb: str
    reason: str | None
    before: str | None
    after: str | None


async def audit(
    tx: Transaction, task_id: int | None = None, after: int | None = None, limit: int = 50
) -> list[Audited]:
    """List what operators did, the latest first.

    Args:
        tx: an open transaction.
        task_id: only what was done to this task.
        after: the id of an entry behind which to go on; None to begin.
        limit: the most entries.
    """
    table = tx.tables.audit
    statement = sa.select(*legible(tx, table.c)).order_by(table.c.id.desc()).limit(limit)
    if task_id is not None:
        statement = statement.where(table.c.task_id == task_id)
    if after is not None:
        statement = statement.where(table.c.id < after)
    return [_audited(row) for row in (await tx.execute(statement)).mappings().all()]


def _audited(row: sa.RowMapping) -> Audited:
    return Audited(
        id=row["id"],
        task_id=row["task_id"],
        target=text(row["target"]),
        undo_of=row["undo_of"],
        at=moment(row["at"]),
        operator=words(row["operator"]),
        host=words(row["host"]),
        verb=words(row["verb"]),
        reason=text(row["reason"]),
        before=text(row["before"]),
        after=text(row["after"]),
    )
