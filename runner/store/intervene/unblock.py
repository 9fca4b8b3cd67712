"""unblock: let tasks go that wait for others, whatever becomes of these."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from runner.columns import db_now
from runner.storable import to_storable
from runner.store.dependencies.resolving import let_go
from runner.store.intervene.answers import By, Refused, Result, Target
from runner.store.intervene.locking import Held, change, hold
from runner.store.intervene.record import NAME_LIMIT, Entry, record
from runner.store.observe.legible import words
from runner.store.parentage import is_open
from runner.store.transaction import Transaction
from runner.task import MOVES, State


class Closed(NamedTuple):
    """An edge that was let go: what was waited for, and its number."""

    parent: str
    id: int


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
    await record(tx, by, [_entry(task, closed[task.id], freed=task.id in freed) for task in held if task.id in changed])
    answer.changed = changed
    return answer


async def _close(tx: Transaction, ids: Sequence[int], by: By, number: int | None) -> dict[int, list[Closed]]:
    """Close open edges, and tell by task which these were."""
    edge = tx.tables.dependency
    theirs = tx.dialect.one_of(edge.c.task_id, ids) & is_open(edge.c)
    chosen = theirs if number is None else theirs & (edge.c.id == number)
    done = (
        sa.update(edge).where(chosen).values(satisfied_at=db_now(), satisfied_by=to_storable(by.operator, NAME_LIMIT))
    )
    columns = (edge.c.task_id, edge.c.id, edge.c.parent_id, edge.c.parent_handler, edge.c.parent_key)
    closed: dict[int, list[Closed]] = defaultdict(list)
    for task_id, id, parent_id, handler, key in await tx.rows(done.returning(*columns)):
        parent = f"task {parent_id}" if key is None else f"{words(handler)} {words(key)}"
        closed[task_id].append(Closed(parent, id))
    return closed


def _entry(task: Held, closed: Sequence[Closed], *, freed: bool) -> Entry:
    parents = sorted(edge.parent for edge in closed)
    named = parents[:MOST_NAMED] + ([f"and {len(parents) - MOST_NAMED} more"] * (len(parents) > MOST_NAMED))
    edges = sorted(edge.id for edge in closed)
    before = {"state": State.BLOCKED, "waited_for": named, "edges": edges, "fence": task.fence}
    after = {"state": MOVES["unblock"].target if freed else State.BLOCKED, "waited_for": [], "fence": task.fence}
    return Entry("unblock", before, after, task.id)


MOST_NAMED = 20
"""Parents that an entry names."""
