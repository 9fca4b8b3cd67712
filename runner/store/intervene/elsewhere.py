"""elsewhere: what is done to queues, handlers and runners, as SQL that a person can paste; see script."""

from collections.abc import Awaitable, Callable
from functools import partial

import sqlalchemy as sa

from runner.errors import NoScript
from runner.store.intervene.answers import By
from runner.store.intervene.pause import pause_of, registry_of
from runner.store.intervene.place import Place
from runner.store.intervene.script import Guard, pasteable, rehearsed, transaction
from runner.store.intervene.wish import wish
from runner.store.survey import is_paused
from runner.store.transaction import Transaction

ONE: sa.ColumnElement[int] = sa.literal_column("1")


async def place_script(tx: Transaction, place: Place, doing: Callable[[Transaction], Awaitable[object]]) -> str:
    """Write what a pause, or its end, would do, if nobody pauses or resumes the place before.

    Args:
        tx: a writing transaction; all that is done in it is taken back.
        place: the queue or the handler.
        doing: pauses or resumes it.

    Raises:
        NoScript: it would change nothing, or cannot be pasted.
    """
    guard = await _same_pause(tx, place)
    _, statements = await rehearsed(tx, doing)
    if not statements:
        raise NoScript(why=f"{place} is not paused")
    return pasteable(transaction(tx, guard, statements))


async def _same_pause(tx: Transaction, place: Place) -> Guard:
    registry, before = registry_of(tx, place), await pause_of(tx, place)
    mine, otherwise = registry.c.name == place.name, f"{place} has been paused or resumed since"
    if before:
        same = sa.select(registry.c.name).where(mine, registry.c.paused_at == before["paused_at"])
        return Guard(same, f"{place}, if its pause is still the one that was seen", otherwise)
    none = sa.select(ONE).where(~sa.exists().where(mine, is_paused(registry)))
    return Guard(none, f"{place}, if it is still not paused", otherwise)


async def wish_script(tx: Transaction, runner_id: int, wanted: str, by: By) -> str:
    """Write what asking a runner for something would do, if nobody asks it for something else before.

    Args:
        tx: a writing transaction; all that is done in it is taken back.
        runner_id: the runner's number.
        wanted: as runner.policy.wish says.
        by: who asks.

    Raises:
        NoScript: there is no such runner, or it cannot be pasted.
    """
    runner = tx.tables.runner
    present = await tx.scalar(sa.select(runner.c.wish).where(runner.c.id == runner_id))
    found, statements = await rehearsed(tx, partial(wish, runner_id=runner_id, wanted=wanted, by=by))
    if not found:
        raise NoScript(why=f"there is no runner {runner_id}")
    same = sa.select(runner.c.id).where(runner.c.id == runner_id, runner.c.wish.is_not_distinct_from(present))
    holds = f"runner {runner_id}, if its wish is still the one that was seen"
    guard = Guard(same, holds, f"runner {runner_id} is gone, or was asked for something else since")
    return pasteable(transaction(tx, guard, statements))
