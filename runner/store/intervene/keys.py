"""keys: tasks that are run again take their unique keys again, unless others have them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.policy.uniqueness import Change, Key, losers
from runner.schema import is_state
from runner.store.intervene.answers import MovedOn, Refused, Result
from runner.store.intervene.eligibility import REQUEUED
from runner.store.intervene.locking import Held
from runner.store.observe.legible import legible, words
from runner.store.transaction import Transaction
from runner.store.unique import forgotten, held, kept, locked
from runner.task import Scope

ANOTHER = "another task has its unique key"


class Locked(NamedTuple):
    """Keys that stay locked until the transaction ends.

    Args:
        keys: by the ids of the finished tasks that had them.
        fresh: those that nothing was known of.
    """

    keys: Mapping[int, Key]
    fresh: Collection[Key]


async def keyless(tx: Transaction, ids: Sequence[int]) -> Collection[int]:
    """Tell which finished tasks cannot be run again because others have their keys.

    Args:
        tx: an open transaction.
        ids: of finished tasks.
    """
    keys = await _keys(tx, ids)
    return losers(keys, await tx.follow(held(tx, set(keys.values())))).keys()


async def lock_keys(tx: Transaction, ids: Sequence[int]) -> Locked:
    """Lock the keys of tasks that could be run again, before the tasks themselves: as a submit does it.

    Args:
        tx: a writing transaction.
        ids: of any tasks.
    """
    keys = await _keys(tx, ids)
    return Locked(keys, await tx.follow(locked(tx, set(keys.values()))))


async def keep_apart(tx: Transaction, known: Locked, tasks: Iterable[Held], answer: Result) -> list[Held]:
    """Give the tasks that are run again their keys, and leave out those whose keys others have.

    Args:
        tx: a writing transaction.
        known: their keys.
        tasks: that are held.
        answer: is told what was left out.

    Returns:
        The tasks that can be run again, and those that never ended.
    """
    keys, fresh = known
    holders = await tx.follow(held(tx, set(keys.values())))
    back = {task.id: keys[task.id] for task in tasks if task.state.final and task.id in keys}
    lost = losers(back, holders)
    able = []
    for task in tasks:
        if task.id in lost:
            answer.refused.append(Refused(task.id, f"task {lost[task.id]} has its unique key"))
        elif task.state.final and task.unique_key is not None and task.id not in keys:
            # It ended between the two looks, so that its key was not locked.
            answer.moved_on.append(MovedOn(task.id, task.state, task.version))
        else:
            able.append(task)
    taken = {back[task.id]: task.id for task in able if task.id in back}
    retaken = {key: Change(id, Scope.UNTIL_FINISHED) for key, id in taken.items() if holders.get(key) != id}
    await tx.follow(kept(tx, retaken))
    await tx.follow(forgotten(tx, set(fresh) - taken.keys()))
    return able


async def _keys(tx: Transaction, ids: Sequence[int]) -> dict[int, Key]:
    """The keys of those tasks whose state allows to run them again."""
    history = tx.tables.history
    if not ids:
        return {}
    columns: list[Any] = legible(tx, [history.c.id, history.c.handler, history.c.unique_key])
    mine = tx.dialect.one_of(history.c.id, ids) & is_state(history.c.state, *REQUEUED)
    rows = await tx.execute(sa.select(*columns).where(mine, history.c.unique_key.is_not(None)))
    return {row["id"]: (words(row["handler"]), words(row["unique_key"])) for row in rows.mappings()}
