"""Tasks that run again hold their unique keys again, unless another task holds them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.lock_limits import OPERATION_LOCKS
from runner.db.schema import is_state
from runner.db.transaction import Transaction
from runner.model.task import Scope
from runner.operations.results import Conflict, Result, Skipped
from runner.operations.targets import REQUEUED, LockedTask
from runner.policy.uniqueness import HandlerKey, KeyChange, blocked
from runner.queries.rows import as_text, readable
from runner.store.unique import delete_keys, key_holders, lock_unique_keys, save_keys

ANOTHER = "another task has its unique key"


class Locked(NamedTuple):
    """Unique keys that stay locked until the transaction ends.

    Args:
        keys: the keys by the ids of their finished tasks.
        fresh: the keys that had no row before the lock.
    """

    keys: Mapping[int, HandlerKey]
    fresh: Collection[HandlerKey]


async def key_conflicts(tx: Transaction, ids: Sequence[int]) -> Collection[int]:
    """The finished tasks that cannot run again because another task holds their unique key."""
    keys = await _keys(tx, ids)
    return blocked(keys, await tx.follow(key_holders(tx, set(keys.values())))).keys()


async def lock_keys(tx: Transaction, ids: Sequence[int]) -> Locked:
    """Lock the unique keys of tasks that may run again, before the tasks themselves, in the order of submit."""
    keys = await _keys(tx, ids)
    return Locked(keys, await tx.follow(lock_unique_keys(tx, set(keys.values()))))


async def assign_keys(
    tx: Transaction, locked_keys: Locked, tasks: Iterable[LockedTask], result: Result, *, expired: bool = True
) -> list[LockedTask]:
    """Assign unique keys to the tasks that run again, and skip tasks whose key another task holds.

    Args:
        locked_keys: the keys of the tasks.
        result: receives the skipped tasks and conflicts.
        expired: assign the keys whose time has expired too.

    Returns:
        The tasks that can run again, and the live ones.
    """
    keys, fresh = locked_keys
    holders = await tx.follow(key_holders(tx, set(keys.values())))
    own_keys = {task.id: keys[task.id] for task in tasks if task.state.final and task.id in keys}
    conflicts = blocked(own_keys, holders)
    eligible = []
    for task in tasks:
        if task.id in conflicts:
            result.skipped.append(Skipped(task.id, f"task {conflicts[task.id]} has its unique key"))
        elif task.state.final and task.unique_key is not None and task.id not in keys:
            # It ended after the keys were locked, so its key is not locked.
            result.conflicts.append(Conflict(task.id, task.state, task.version))
        else:
            eligible.append(task)
    assigned = {own_keys[task.id]: task.id for task in eligible if task.id in own_keys}
    reassigned = [KeyChange(*key, id, Scope.UNTIL_FINISHED) for key, id in assigned.items() if holders.get(key) != id]
    if reassigned and not expired:
        kept = await _expired(tx, list(assigned.values()))
        reassigned = [change for change in reassigned if change.task_id not in kept]
    await tx.follow(save_keys(tx, reassigned))
    await tx.follow(delete_keys(tx, set(fresh) - assigned.keys()))
    return eligible


async def _expired(tx: Transaction, ids: Sequence[int]) -> set[int]:
    """The finished tasks whose own unique keys were held for a time that has passed."""
    unique, history = tx.tables.unique, tx.tables.history
    own = (unique.c.handler == history.c.handler) & (unique.c.unique_key == history.c.unique_key)
    own &= (unique.c.task_id == history.c.id) & (unique.c.scope == Scope.FOR_A_TIME.value)
    rows = sa.select(history.c.id).select_from(history.join(unique, own)).where(tx.dialect.one_of(history.c.id, ids))
    return {row.id for row in await tx.rows(rows)}


async def _keys(tx: Transaction, ids: Sequence[int]) -> dict[int, HandlerKey]:
    """The unique keys of the tasks in a state that can run again."""
    history = tx.tables.history
    if not ids:
        return {}
    columns: list[Any] = readable(tx, [history.c.id, history.c.handler, history.c.unique_key])
    requeuable = tx.dialect.one_of(history.c.id, ids) & is_state(history.c.state, *REQUEUED)
    keyed = (requeuable, history.c.unique_key.is_not(None), tx.dialect.lock_limit(OPERATION_LOCKS))
    rows = await tx.execute(sa.select(*columns).where(*keyed))
    return {row["id"]: (as_text(row["handler"]), as_text(row["unique_key"])) for row in rows.mappings()}
