"""audit: who changed what, when, and why."""

from collections.abc import Sequence
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
        batch: what all changes have in common that were made together; None for one that was made alone.
        login: as whom the database knew who wrote this down; None where it knows no logins.
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
    batch: str | None = None
    login: str | None = None


REVEAL = "reveal"
"""The verb of an entry that tells of a look at secrets: it changed nothing, and cannot be taken back."""

STRETCH = 100_000
"""Entries that are looked through at most for those of an operator."""


async def audit(
    tx: Transaction,
    task_id: int | None = None,
    after: int | None = None,
    limit: int = 50,
    *,
    operator: str | None = None,
    since: datetime | None = None,
    batch: str | None = None,
    target: str | None = None,
) -> list[Audited]:
    """List what operators did, the latest first.

    Args:
        tx: an open transaction.
        task_id: only what was done to this task.
        after: the id of an entry behind which to go on; None to begin.
        limit: the most entries.
        operator: only what this person did; looked for among STRETCH entries, unless a task is named.
        since: only what was done from then on, aware; the same holds.
        batch: only what was done together, by the word that this has in common.
        target: only what was done to this, e.g. "queue mail"; the same holds as for an operator.
    """
    table = tx.tables.audit
    only = [table.c.task_id == task_id] if task_id is not None else []
    if batch is not None:
        only.append(table.c.batch == batch)
    if after is not None:
        only.append(table.c.id < after)
    if any(one is not None for one in (operator, since, target)) and task_id is None:
        edge = sa.select(table.c.id).where(*only).order_by(table.c.id.desc()).offset(STRETCH - 1).limit(1)
        only.append(table.c.id >= sa.func.coalesce(edge.scalar_subquery(), 0))
    if operator is not None:
        only.append(table.c.operator == operator)
    if target is not None:
        only.append(table.c.target == target)
    if since is not None:
        only.append(table.c.at >= since)
    statement = sa.select(*legible(tx, table.c)).where(*only).order_by(table.c.id.desc()).limit(limit)
    return [audited_row(row) for row in (await tx.execute(statement)).mappings().all()]


async def audited(tx: Transaction, entry: int) -> Audited | None:
    """Read one entry; None when there is no such number."""
    table = tx.tables.audit
    row = (await tx.execute(sa.select(*legible(tx, table.c)).where(table.c.id == entry))).mappings().one_or_none()
    return audited_row(row) if row else None


def undoable(entries: Sequence[Audited]) -> Audited | None:
    """The latest change that was not taken back, and takes nothing back itself; None when there is none.

    Args:
        entries: the latest first.
    """
    taken_back = {entry.undo_of for entry in entries}
    changes = (entry for entry in entries if entry.undo_of is None and entry.verb != REVEAL)
    return next((entry for entry in changes if entry.id not in taken_back), None)


def audited_row(row: sa.RowMapping) -> Audited:
    """An entry from a row whose columns are legible."""
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
        batch=text(row["batch"]),
        login=text(row["login"]),
    )
