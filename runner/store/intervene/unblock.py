"""unblock: let tasks go that wait for others, whatever becomes of these."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from runner.columns import db_now
from runner.storable import to_storable
from runner.store.dependencies.resolving import let_go
from runner.store.intervene.answers import By, Refused, Result, Target
from runner.store.intervene.locking import change, hold
from runner.store.intervene.record import NAME_LIMIT, Entry, record
from runner.store.observe.legible import words
from runner.store.parentage import is_open
from runner.store.transaction import Transaction
from runner.task import MOVES, State


async def unblock(
    tx: Transaction, targets: Iterable[Target], by: By, edge: int | None = None, *, notify: bool = True
) -> Result:
    """Take what blocked tasks wait for as if it had ended well.

    Args:
        tx: a writing transaction.
        targets: the tasks, as the operator saw them.
        by: who does it; the name is kept in the edge too.
        edge: the number of the only edge to let go, which must be one of theirs; None for all.
        notify: wake runners that listen (PostgreSQL).

    Returns:
        What was done; a task of which an edge is still open is changed, and stays blocked.
    """
    held, answer = await hold(tx, "unblock", targets)
    closed = await _close(tx, [task.id for task in held], by, edge)
    changed = [task.id for task in held if edge is None or task.id in closed]
    answer.refused += [Refused(task.id, f"no open edge {edge} is its own") for task in held if task.id not in changed]
    freed = set(await let_go(tx, {id: len(closed[id]) for id in changed}, notify=notify))
    await change(tx, [id for id in changed if id not in freed])
    await record(tx, by, [_entry(id, closed[id], freed=id in freed) for id in changed])
    answer.changed = changed
    return answer


async def _close(tx: Transaction, ids: Sequence[int], by: By, number: int | None) -> dict[int, list[str]]:
    """Close open edges, and tell by task what it waited for."""
    edge = tx.tables.dependency
    theirs = tx.dialect.one_of(edge.c.task_id, ids) & is_open(edge.c)
    chosen = theirs if number is None else theirs & (edge.c.id == number)
    done = (
        sa.update(edge).where(chosen).values(satisfied_at=db_now(), satisfied_by=to_storable(by.operator, NAME_LIMIT))
    )
    columns = (edge.c.task_id, edge.c.parent_id, edge.c.parent_handler, edge.c.parent_key)
    closed: dict[int, list[str]] = defaultdict(list)
    for task_id, parent_id, handler, key in await tx.rows(done.returning(*columns)):
        closed[task_id].append(f"task {parent_id}" if key is None else f"{words(handler)} {words(key)}")
    return closed


def _entry(id: int, parents: Sequence[str], *, freed: bool) -> Entry:
    after = MOVES["unblock"].target if freed else State.BLOCKED
    shown = sorted(parents)[:MOST_NAMED] + ([f"and {len(parents) - MOST_NAMED} more"] * (len(parents) > MOST_NAMED))
    return Entry("unblock", {"state": State.BLOCKED, "waited_for": shown}, {"state": after, "waited_for": []}, id)


MOST_NAMED = 20
"""Parents that an entry names."""
