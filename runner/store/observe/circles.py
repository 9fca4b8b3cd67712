"""circles: blocked tasks that wait for each other, so that none of them can ever run.

Submitting refuses them, but two transactions that close a circle between them do not see each other, and a key can be
edited.
"""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from runner.schema import is_state
from runner.store.parentage import is_open, parent_of
from runner.store.transaction import Transaction
from runner.task import State

MOST = 1_000
"""Blocked tasks that are begun at: the oldest."""

MOST_EDGES = 10_000
"""Edges that are followed."""


async def circles(tx: Transaction, most: int = MOST) -> list[tuple[int, ...]]:
    """Find circles among the oldest blocked tasks and what these wait for.

    Args:
        tx: an open transaction.
        most: tasks to begin at.

    Returns:
        The ids on each circle, from its lowest on, each waiting for the next and the last for the first.
    """
    task = tx.tables.task.c
    blocked = sa.select(task.id).where(is_state(task.state, State.BLOCKED)).order_by(task.id).limit(most)
    level, waits, followed = [row.id for row in await tx.rows(blocked)], dict[int, list[int]](), 0
    while level and followed < MOST_EDGES:
        found = await _edges(tx, level, MOST_EDGES - followed)
        waits |= {id: [] for id in level}
        for child, parent in found:
            waits[child].append(parent)
        followed += len(found)
        level = [parent for parent in dict.fromkeys(parent for _, parent in found) if parent not in waits]
    return _circles(waits)


async def _edges(tx: Transaction, level: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Which of some tasks wait for which others, as far as they are blocked."""
    task, edge = tx.tables.task, tx.tables.dependency
    meant = parent_of(tx.tables, edge).label("meant")
    found = sa.select(edge.c.task_id, meant).join(task, task.c.id == edge.c.task_id)
    held = is_state(task.c.state, State.BLOCKED) & is_open(edge.c)
    rows = await tx.rows(found.where(held, tx.dialect.one_of(edge.c.task_id, level)).order_by(edge.c.id).limit(limit))
    return [(row.task_id, row.meant) for row in rows if row.meant is not None]


def _circles(waits: Mapping[int, Sequence[int]]) -> list[tuple[int, ...]]:
    """Go as deep as it gets from each task, and cut a circle off wherever the way meets itself."""
    found: set[tuple[int, ...]] = set()
    done: set[int] = set()
    for start in waits:
        if start in done:
            continue
        way, stack = [start], [(start, iter(waits[start]))]
        while stack:
            parent = next(stack[-1][1], None)
            if parent is None:
                done.add(stack.pop()[0])
                way.pop()
            elif parent in way:
                circle = way[way.index(parent) :]
                lowest = circle.index(min(circle))
                found.add((*circle[lowest:], *circle[:lowest]))
            elif parent in waits and parent not in done:
                stack.append((parent, iter(waits[parent])))
                way.append(parent)
    return sorted(found)
