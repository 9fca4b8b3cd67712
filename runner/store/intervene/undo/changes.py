"""changes: what stands in the audit of a change, and what taking it back would have to do."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.store.intervene.changes import FIELDS
from runner.store.intervene.eligibility import REQUEUED
from runner.store.observe.legible import legible, moment, text, words
from runner.store.transaction import Transaction

NAMES = ("id", "task_id", "target", "verb", "at", "before", "after")


class Kind(Enum):
    """What has to be done to take a change back."""

    VALUES = "set values back"
    END = "bring a task back that was terminated while it waited"
    REQUEST = "withdraw the request to end a running task"
    AGAIN = "put a task back that was to be run again"
    LETTING_GO = "let a task wait again for what it was let go from"
    PAUSE = "set a pause back"
    WISH = "withdraw a wish that its runner has not heard"


PLAIN = {"unblock": Kind.LETTING_GO, "pause": Kind.PAUSE, "resume": Kind.PAUSE, "wish": Kind.WISH}
"""Verbs that always do the same."""


class Change(NamedTuple):
    """An entry of the audit that is to be taken back.

    Args:
        id: the entry's number.
        task_id: the task that was changed; None when it was something else.
        target: what else was changed.
        verb: what was done.
        at: when.
        before: the values before.
        after: the values after.
        undone_by: the entry that has taken it back already.
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
    def kind(self) -> Kind | None:
        """What has to be done; None when it cannot be taken back."""
        match self.verb:
            case "terminate" if "cancel_requested" in self.before:
                return Kind.REQUEST
            case "terminate" if "state" in self.before:
                return Kind.END
            case "retry_now" | "requeue" if self.before.get("state") in REQUEUED:
                return Kind.AGAIN
            case verb if verb in PLAIN:
                return PLAIN[verb]
        values = self.task_id is not None and bool(self.before) and FIELDS.issuperset(self.before)
        return Kind.VALUES if values and FIELDS.issuperset(self.after) else None

    @property
    def subject(self) -> int:
        """The number that an answer names it by: the task's, or the entry's own where it is not about a task."""
        return self.id if self.task_id is None else self.task_id


def edited(change: Change) -> set[str]:
    """The values that a task was given when it was to be run again, by column."""
    return {name for name in FIELDS.intersection(change.after) if name != "run_at"}


async def changes_of(tx: Transaction, entries: Iterable[int]) -> list[Change]:
    """Read entries of the audit, the latest first; one that there is not is left out."""
    audit = tx.tables.audit
    found = sa.select(*legible(tx, [audit.c[name] for name in NAMES]))
    rows = await tx.execute(found.where(tx.dialect.one_of(audit.c.id, list(entries))).order_by(audit.c.id.desc()))
    changes = [_change(row) for row in rows.mappings()]
    undone = await _undone(tx, [change.task_id for change in changes if change.task_id is not None])
    return [change._replace(undone_by=undone.get(change.id)) for change in changes]


async def in_batch(tx: Transaction, batch: str, limit: int, before: int | None = None) -> list[int]:
    """Find the entries of changes that were made together, the latest first.

    Args:
        tx: an open transaction.
        batch: the word that they have in common.
        limit: the most entries.
        before: the number of an entry behind which to go on; None to begin.
    """
    audit = tx.tables.audit
    mine = audit.c.batch == batch
    if before is not None:
        mine &= audit.c.id < before
    rows = await tx.rows(sa.select(audit.c.id).where(mine).order_by(audit.c.id.desc()).limit(limit))
    return [row.id for row in rows]


async def _undone(tx: Transaction, tasks: Sequence[int]) -> dict[int, int]:
    """Which changes of these tasks were taken back, and by which entries."""
    audit = tx.tables.audit
    theirs = tx.dialect.one_of(audit.c.task_id, tasks) & audit.c.undo_of.is_not(None)
    rows = await tx.rows(sa.select(audit.c.undo_of, audit.c.id).where(theirs))
    return {row.undo_of: row.id for row in rows}


def _change(row: sa.RowMapping) -> Change:
    return Change(
        id=row["id"],
        task_id=row["task_id"],
        target=text(row["target"]),
        verb=words(row["verb"]),
        at=moment(row["at"]),
        before=_values(row["before"]),
        after=_values(row["after"]),
    )


def _values(written: Any) -> Mapping[str, Any]:
    """The values of an entry, as they stand in a row; empty for what cannot be read."""
    try:
        values = json.loads(words(written) or "{}")
        if not isinstance(values, dict):
            return {}
        if isinstance(values.get("run_at"), str):
            values["run_at"] = datetime.fromisoformat(values["run_at"]).astimezone(UTC)
    except (ValueError, OverflowError, RecursionError):
        return {}
    if isinstance(values.get("payload"), dict):  # plain SQL was written down, which keeps it as what it is
        values["payload"] = json.dumps(values["payload"])
    return values
