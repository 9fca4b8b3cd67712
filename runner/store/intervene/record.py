"""record: write down who changed what, in the transaction that changes it."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.storable import to_storable
from runner.store.intervene.answers import By
from runner.store.transaction import Transaction

NAME_LIMIT = 1_000
REASON_LIMIT = 4_000
"""Bytes that are kept."""


class Entry(NamedTuple):
    """One change.

    Args:
        verb: what was done.
        before: the values that were changed, as they were.
        after: the same values as they are now.
        task_id: the task that was changed; None when it was something else.
        target: what else was changed.
        undo_of: the entry that this change takes back.
    """

    verb: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    task_id: int | None = None
    target: str | None = None
    undo_of: int | None = None


async def record(tx: Transaction, by: By, entries: Iterable[Entry]) -> None:
    """Write the entries; they exist if and only if the changes do."""
    rows = [_values(by, entry) for entry in entries]
    if rows:
        await tx.execute(sa.insert(tx.tables.audit), rows)


def _values(by: By, entry: Entry) -> dict[str, Any]:
    return {
        "operator": to_storable(by.operator, NAME_LIMIT),
        "host": to_storable(by.host, NAME_LIMIT),
        "reason": None if by.reason is None else to_storable(by.reason, REASON_LIMIT),
        "verb": entry.verb,
        "task_id": entry.task_id,
        "target": entry.target,
        "before": _written(entry.before),
        "after": _written(entry.after),
        "undo_of": entry.undo_of,
        "batch": by.batch,
    }


def _written(values: Mapping[str, Any]) -> str:
    return json.dumps(values, default=_moment)


def _moment(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
