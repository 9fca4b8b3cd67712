"""The holder of a task's unique key, and the number of duplicates."""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.model.task import Scope
from runner.queries.rows import as_int, moment, readable, text
from runner.store.unique import is_key_held
from runner.text import formatting


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key, as seen from one of its tasks.

    Args:
        key: the key.
        holder: the task that holds it; None if it is free.
        scope: the scope of the holder; None if the key is free.
        until: when the key becomes free, if known.
        duplicates: the submits that returned this task instead of a new one.
        duplicate_at: the time of the last duplicate.
    """

    key: str
    holder: int | None = None
    scope: str | None = None
    until: datetime | None = None
    duplicates: int = 0
    duplicate_at: datetime | None = None

    def describe(self, id: int, at: datetime) -> str:
        """Describe the key's meaning for a task.

        Args:
            id: the task's id.
            at: the database's time.
        """
        scopes = {
            Scope.FOR_A_TIME.value: f"for another {formatting.age(self.until - at)}" if self.until else "for a time"
        }
        match self.holder:
            case None:
                state = "free again"
            case holder if holder == id:
                state = f"held {scopes.get(self.scope or '', self.scope)}"
            case holder:
                state = f"held by task {holder} now"
        if not self.duplicates:
            return state
        last = formatting.distance(self.duplicate_at, at)
        return f"{state}; {self.duplicates:,} duplicate{'s' if self.duplicates > 1 else ''}, the last {last}"


async def unique_key(tx: Transaction, id: int, handler: str, key: str) -> UniqueKey:
    """Find the holder of a task's unique key.

    Args:
        tx: an open transaction.
        id: the task's id.
        handler: the handler's name.
        key: the task's unique key.
    """
    unique = tx.tables.unique
    names = ("task_id", "scope", "expires_at", "duplicates", "duplicate_at")
    columns = [*readable(tx, [unique.c[name] for name in names]), is_key_held(unique, tx.tables.task).label("held")]
    same_key = (unique.c.handler == handler) & (unique.c.unique_key == key)
    row = (await tx.execute(sa.select(*columns).where(same_key))).mappings().one_or_none()
    if row is None:
        return UniqueKey(key)
    duplicates = (as_int(row["duplicates"]), moment(row["duplicate_at"])) if row["task_id"] == id else ()
    if not row["held"]:
        return UniqueKey(key, None, None, None, *duplicates)
    return UniqueKey(key, as_int(row["task_id"]), text(row["scope"]), moment(row["expires_at"]), *duplicates)
