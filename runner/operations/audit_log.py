"""record: write audit entries in the transaction of the change."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.operations.results import Actor
from runner.operations.written_rows import write_rows

ONE: Any = sa.literal_column("1")


class AuditEntry(NamedTuple):
    """One change.

    Args:
        before: the values before the change.
        after: the values after the change.
        task_id: the changed task; None if the change was not to a task.
        target: the changed queue, handler or runner.
        undo_of: the entry that this change undoes.
    """

    verb: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    task_id: int | None = None
    target: str | None = None
    undo_of: int | None = None


async def record(tx: Transaction, by: Actor, entries: Iterable[AuditEntry]) -> None:
    """Write audit entries, in the transaction of their changes.

    Raises:
        DatabaseRefused: the database left out an entry; the transaction must not commit.
    """
    author = by.stored
    rows = [_values(author, entry) for entry in entries]
    if rows:
        insert = sa.insert(tx.tables.audit).returning(ONE)  # logins that may not read the audit log return no column
        await write_rows(tx, insert, len(rows), rows)


def _values(by: Actor, entry: AuditEntry) -> dict[str, Any]:
    return {
        "operator": by.operator,
        "host": by.host,
        "reason": by.reason,
        "verb": entry.verb,
        "task_id": entry.task_id,
        "target": entry.target,
        "before": _encode(entry.before),
        "after": _encode(entry.after),
        "undo_of": entry.undo_of,
        "change_group": by.change_group,
    }


def _encode(values: Mapping[str, Any]) -> str:
    return json.dumps(values, default=_moment)


def _moment(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


async def reveal(tx: Transaction, task_id: int, by: Actor) -> None:
    """Record that secrets of a task are shown to an operator; the task does not change.

    Args:
        tx: a writing transaction; commit it before the secrets are shown.
    """
    from runner.queries.audit import REVEAL  # few operators reveal a secret

    await record(tx, by, [AuditEntry(REVEAL, {}, {}, task_id)])
