"""ended: bring tasks back that were terminated while they waited, as they were."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.schema import is_state, state_literal
from runner.store import move
from runner.store.intervene.answers import By, Result
from runner.store.intervene.keys import Locked, keep_apart
from runner.store.intervene.locking import Held
from runner.store.intervene.record import Entry, record
from runner.store.intervene.undo.changes import Change
from runner.store.intervene.undo.letting_go import wait_again
from runner.store.statistics import count_unclaimed
from runner.store.transaction import Transaction
from runner.task import FINAL, MOVES, State


class Restored(NamedTuple):
    """What is to come back.

    Args:
        keys: the unique keys of these tasks, and of those that may not come back, locked.
        pairs: changes that can be taken back, and their tasks, held.
    """

    keys: Locked
    pairs: Sequence[tuple[Change, Held]]


async def restore(tx: Transaction, wanted: Restored, by: By) -> Result:
    """Move cancelled tasks back to the live table: with their times, attempts and errors, and blocked if they were.

    One whose unique key another task has by now is left alone.

    Args:
        tx: a writing transaction.
        wanted: what is to come back.
        by: who does it.
    """
    answer = Result()
    changes = {task.id: change for change, task in wanted.pairs}
    held = await keep_apart(tx, wanted.keys, [task for _, task in wanted.pairs], answer)
    ids = [task.id for task in held]
    if ids:
        await move.restore(tx, [_lost(changes[id]) for id in ids])
        await count_unclaimed(tx, ids, times=-1)
        blocked = [id for id in ids if changes[id].before["state"] == State.BLOCKED]
        await _reopen(tx, blocked)
        await wait_again(tx, blocked)
    await record(tx, by, [_entry(changes[task.id], task) for task in held])
    answer.changed = ids
    return answer


async def consequences(tx: Transaction, ends: Iterable[Change]) -> dict[int, int]:
    """Find tasks that have been cancelled, or let go, because of these ends: one for each that there are any for.

    A runner that judges an edge at this very moment goes by the end that it has seen, as it does for one run again.
    """
    edge = tx.tables.dependency
    since = {change.subject: change.at for change in ends}
    theirs = tx.dialect.one_of(edge.c.parent_id, list(since)) & (edge.c.parent_state == State.CANCELLED.value)
    # An edge that only waits is closed by such an end of its own task, never by that of its parent.
    because = theirs & (edge.c.on_failure != "wait") & edge.c.satisfied_at.is_not(None) & edge.c.satisfied_by.is_(None)
    rows = await tx.rows(sa.select(edge.c.parent_id, edge.c.task_id, edge.c.satisfied_at).where(because))
    told = [(row.parent_id, row.task_id, since[row.parent_id], row.satisfied_at) for row in rows]
    return {parent: child for parent, child, ended, closed in told if ended is None or closed >= ended}


async def _reopen(tx: Transaction, ids: Sequence[int]) -> None:
    """Open the edges of tasks again that were closed only because nothing waited any more."""
    if not ids:
        return
    edge = tx.tables.dependency
    ran = (edge.c.on_failure == "run") & is_state(edge.c.parent_state, *FINAL)
    done = sa.func.coalesce(edge.c.parent_state == state_literal(State.SUCCEEDED), sa.false()) | sa.func.coalesce(
        ran, sa.false()
    )
    moot = tx.dialect.one_of(edge.c.task_id, ids) & edge.c.satisfied_by.is_(None) & ~done
    await tx.execute(sa.update(edge).where(moot).values(satisfied_at=None))


def _lost(change: Change) -> tuple[int, Any, Any]:
    """What the history did not keep of a task: its id, error and progress."""
    return change.subject, change.before.get("error"), change.before.get("progress")


def _entry(change: Change, task: Held) -> Entry:
    state = change.before["state"]
    verb = "reblock" if state == State.BLOCKED else "restore"
    return Entry(verb, {"state": task.state}, {"state": MOVES[verb].target}, task.id, undo_of=change.id)
