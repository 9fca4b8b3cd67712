"""unique: who has the unique key of a task, and how many duplicates there were."""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.people import cells
from runner.store.observe.legible import legible, moment, text, whole
from runner.store.transaction import Transaction
from runner.store.unique import is_held
from runner.task import Scope


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key, as one of the tasks that were submitted with it sees it.

    Args:
        key: the key.
        holder: the task that has it now; None when nobody has.
        scope: with which it was taken; None when it is free.
        until: when it is free again, where that is known.
        duplicates: how many other tasks were not made because of this one.
        duplicate_at: when that happened last.
    """

    key: str
    holder: int | None = None
    scope: str | None = None
    until: datetime | None = None
    duplicates: int = 0
    duplicate_at: datetime | None = None

    def told(self, id: int, at: datetime) -> str:
        """Say in words what the key means to a task.

        Args:
            id: the task's.
            at: the database's time.
        """
        scopes = {Scope.FOR_A_TIME.value: f"for another {cells.age(self.until - at)}" if self.until else "for a time"}
        match self.holder:
            case None:
                held = "free again"
            case holder if holder == id:
                held = f"held {scopes.get(self.scope or '', self.scope)}"
            case holder:
                held = f"held by task {holder} now"
        if not self.duplicates:
            return held
        last = cells.distance(self.duplicate_at, at)
        return f"{held}; {self.duplicates:,} duplicate{'s' if self.duplicates > 1 else ''}, the last {last}"


async def unique_key(tx: Transaction, id: int, handler: str, key: str) -> UniqueKey:
    """Tell who has a task's unique key.

    Args:
        tx: an open transaction.
        id: the task's.
        handler: its handler.
        key: its unique key.
    """
    unique = tx.tables.unique
    names = ("task_id", "scope", "expires_at", "duplicates", "duplicate_at")
    columns = [*legible(tx, [unique.c[name] for name in names]), is_held(unique, tx.tables.task).label("held")]
    mine = (unique.c.handler == handler) & (unique.c.unique_key == key)
    row = (await tx.execute(sa.select(*columns).where(mine))).mappings().one_or_none()
    if row is None:
        return UniqueKey(key)
    counted = (whole(row["duplicates"]), moment(row["duplicate_at"])) if row["task_id"] == id else ()
    if not row["held"]:
        return UniqueKey(key, None, None, None, *counted)
    return UniqueKey(key, whole(row["task_id"]), text(row["scope"]), moment(row["expires_at"]), *counted)
