"""entries: read the audit entries to undo."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.operations.edit_values import FIELDS, Changes, check_values
from runner.operations.failed_steps import FAILED_STEPS
from runner.queries.rows import as_int, as_text, from_row, readable

COLUMNS = ("id", "task_id", "target", "verb", "at", "before", "after")


class UndoableChange(NamedTuple):
    """An audit entry to undo.

    Args:
        task_id: the changed task; None if the change was not to a task.
        target: the changed queue, handler or runner.
        before: the values before.
        after: the values after.
        undone_by: the entry that has undone it.
    """

    id: int
    task_id: int | None
    target: str | None
    verb: str
    at: datetime | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    undone_by: int | None = None

    @property
    def subject(self) -> int:
        """The id in results: the task's, or the entry's if the change was not to a task."""
        return self.id if self.task_id is None else self.task_id


def edited_columns(change: UndoableChange) -> set[str]:
    """The columns that were edited together with a requeue."""
    return {name for name in FIELDS.intersection(change.after) if name != "run_at"}


def former_values(change: UndoableChange, names: Iterable[str]) -> dict[str, Any]:
    """The validated values before an edit or a retry, by column; times are exact, as the database had them.

    Raises:
        InvalidEdit: a value is not allowed.
    """
    before = {name: change.before[name] for name in names if name != FAILED_STEPS}
    rescues = {name: as_int(before.pop(name)) for name in ("rescues",) if name in before}
    times = {name: value for name, value in before.items() if isinstance(value, datetime)}
    return check_values(Changes(**before)) | times | rescues


async def changes_of(tx: Transaction, entries: Iterable[int]) -> list[UndoableChange]:
    """Read audit entries, latest first; unknown ids are left out."""
    audit = tx.tables.audit
    statement = sa.select(*readable(tx, [audit.c[name] for name in COLUMNS]))
    rows = await tx.execute(statement.where(tx.dialect.one_of(audit.c.id, list(entries))).order_by(audit.c.id.desc()))
    changes = [
        from_row(UndoableChange, row, before=_values(row["before"]), after=_values(row["after"]))
        for row in rows.mappings()
    ]
    undone = await _undone(tx, [change.task_id for change in changes if change.task_id is not None])
    return [change._replace(undone_by=undone.get(change.id)) for change in changes]


async def entries_of_group(tx: Transaction, change_group: str, limit: int, before: int | None = None) -> list[int]:
    """Find the audit entries of a change group, latest first.

    Args:
        limit: maximum number of entries.
        before: the id of the last entry of the previous call; None to begin.
    """
    audit = tx.tables.audit
    condition = audit.c.change_group == change_group
    if before is not None:
        condition &= audit.c.id < before
    rows = await tx.rows(sa.select(audit.c.id).where(condition).order_by(audit.c.id.desc()).limit(limit))
    return [row.id for row in rows]


async def _undone(tx: Transaction, tasks: Sequence[int]) -> dict[int, int]:
    """The undo entries of these tasks, by the entries that they undo."""
    audit = tx.tables.audit
    is_undo = tx.dialect.one_of(audit.c.task_id, tasks) & audit.c.undo_of.is_not(None)
    rows = await tx.rows(sa.select(audit.c.undo_of, audit.c.id).where(is_undo))
    return {row.undo_of: row.id for row in rows}


def _values(value: Any) -> Mapping[str, Any]:
    """The values of an entry; empty if unreadable."""
    try:
        values = json.loads(as_text(value) or "{}")
        if not isinstance(values, dict):
            return {}
        for name in ("run_at", "expires_at"):
            if isinstance(values.get(name), str):
                values[name] = datetime.fromisoformat(values[name]).astimezone(UTC)
    except (ValueError, OverflowError, RecursionError):
        return {}
    if isinstance(values.get("payload"), dict):  # the trigger that records plain SQL stores the payload as JSON
        values["payload"] = json.dumps(values["payload"])
    return values
