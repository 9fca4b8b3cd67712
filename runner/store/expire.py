"""expire: forget unique keys that keep nobody from anything any more."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from runner.columns import db_now
from runner.policy.uniqueness import Key
from runner.store.dialects import by_column
from runner.store.transaction import Transaction
from runner.store.unique import forgotten
from runner.task import Scope

FIRST_KEY: Key = ("", "")
"""Comes before all others: handlers have names."""

HELD_COLUMNS: dict[str, Any] = {"handler": sa.Text, "unique_key": sa.Text, "task_id": sa.BigInteger}


async def forget_expired(tx: Transaction, limit: int) -> int:
    """Forget keys that were held for a length of time which is over.

    Args:
        tx: a writing transaction.
        limit: the most keys.

    Returns:
        How many there were; what others have locked is left for the next time.
    """
    unique = tx.tables.unique
    over = unique.c.expires_at <= db_now()
    chosen = sa.select(unique.c.handler, unique.c.unique_key).where(over).order_by(unique.c.expires_at).limit(limit)
    return await _forget(tx, chosen.with_for_update(skip_locked=True))


async def forget_finished(tx: Transaction, holders: Iterable[tuple[Key, int]]) -> None:
    """Forget the keys of finished tasks that are being deleted; those that are held forever stay.

    Args:
        tx: a writing transaction.
        holders: the keys and the ids of the tasks that had them.
    """
    rows = [(*key, id) for key, id in holders]
    if rows:
        unique, gone = tx.tables.unique, tx.dialect.rows("gone", HELD_COLUMNS)
        mine = (unique.c.handler == gone.c.handler) & (unique.c.unique_key == gone.c.unique_key)
        chosen = sa.select(unique.c.handler, unique.c.unique_key).select_from(unique.join(gone, mine))
        still = (unique.c.task_id == gone.c.task_id) & (unique.c.scope == Scope.UNTIL_FINISHED.value)
        parameters = tx.dialect.parameters("gone", by_column(HELD_COLUMNS, rows))
        await _forget(tx, chosen.where(still).with_for_update(of=unique, skip_locked=True), parameters)


async def forget_gone(tx: Transaction, after: Key, limit: int = 1_000) -> Key | None:
    """Forget the keys of tasks that are neither live nor in the history, because they went with many others at once.

    Args:
        tx: a writing transaction.
        after: the key behind which to look; FIRST_KEY to begin.
        limit: the most keys to look at.

    Returns:
        The key to go on from, in another transaction; None when there are no more.
    """
    unique = tx.tables.unique
    place = sa.tuple_(unique.c.handler, unique.c.unique_key)
    chosen = sa.select(unique.c.handler, unique.c.unique_key, unique.c.task_id).where(place > sa.tuple_(*after))
    rows = await tx.rows(chosen.order_by(unique.c.handler, unique.c.unique_key).limit(limit))
    ids = sorted({row.task_id for row in rows})
    # One statement: between two of them a task may move from the one table to the other.
    parts = [
        sa.select(table.c.id).where(tx.dialect.one_of(table.c.id, ids)) for table in (tx.tables.task, tx.tables.history)
    ]
    there = {row.id for row in await tx.rows(sa.union_all(*parts))}
    await forget_finished(tx, [((handler, key), id) for handler, key, id in rows if id not in there])
    return (rows[-1].handler, rows[-1].unique_key) if len(rows) == limit else None


async def _forget(tx: Transaction, chosen: sa.Select[Any], parameters: dict[str, Any] | None = None) -> int:
    # Never waits: whoever holds a key may wait for what this transaction has locked.
    keys = [(handler, key) for handler, key in await tx.rows(chosen, parameters)]
    await tx.follow(forgotten(tx, keys))
    return len(keys)
