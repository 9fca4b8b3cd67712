"""search: find the ids that a filter lets through, a bounded stretch at a time."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from runner.people.filters import Filter
from runner.store.observe.filtering import conditions, path
from runner.store.observe.subjects import Condition, Subject, live, past
from runner.store.transaction import Transaction

STRETCH = 20_000
"""Rows that one search walks over at most where no index finds the right ones."""


class Order(StrEnum):
    """Which tasks come first."""

    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True, slots=True)
class Found:
    """A stretch of ids.

    Args:
        ids: in order.
        next: the place to go on from; None when there is nothing more.
        capped: True when the search stopped for having walked far, not for having found enough.
    """

    ids: list[int]
    next: int | None
    capped: bool


@dataclass(frozen=True, slots=True)
class Side:
    """What a search does in one table.

    Args:
        subject: the table.
        served: conditions that an index serves.
        sifted: conditions that are checked row by row.
        few: the served rows are found by something else than their ids.
    """

    subject: Subject
    served: list[Condition]
    sifted: list[Condition]
    few: bool


async def find(
    tx: Transaction,
    wanted: Filter,
    limit: int,
    after: int | None = None,
    order: Order = Order.NEWEST,
    stretch: int = STRETCH,
) -> Found:
    """Find tasks in the order of their ids.

    Args:
        tx: an open transaction; one statement is executed, or two when rows must be sifted.
        wanted: the filter.
        limit: the most ids to return.
        after: the place behind which to look, as `Found.next` named it; None to begin.
        order: newest or oldest first.
        stretch: the most rows to sift in each table.
    """
    sides = _sides(tx, wanted)
    if not sides:
        return Found([], None, False)
    edge = await _edge(tx, sides, after, order, stretch) if any(side.sifted for side in sides) else None
    parts = [_ids(side, [*side.served, *side.sifted], after, edge, order).limit(limit + 1) for side in sides]
    both = sa.union_all(*(sa.select(part.subquery()) for part in parts)).subquery()
    statement = sa.select(both.c.id).order_by(_sorted(both.c.id, order)).limit(limit + 1)
    ids = [row.id for row in await tx.rows(statement)]
    if len(ids) > limit:
        return Found(ids[:limit], ids[limit - 1], False)
    return Found(ids, edge, edge is not None)


def _sides(tx: Transaction, wanted: Filter) -> list[Side]:
    served = path(wanted)
    rest = Filter(tuple(term for term in wanted.terms if term not in served.terms))
    few = any(term.field != "id" for term in served.terms)
    sides = []
    for subject in (live(tx.tables), past(tx.tables)):
        by_index, by_row = (conditions(part, subject, tx.dialect) for part in (served, rest))
        if by_index is not None and by_row is not None:
            sides.append(Side(subject, by_index, by_row, few))
    return sides


async def _edge(tx: Transaction, sides: list[Side], after: int | None, order: Order, stretch: int) -> int | None:
    """Where this search ends: no side looks at more than `stretch` rows. None when all sides end before that."""
    last = [_ids(side, side.served, after, None, order).offset(stretch - 1).limit(1) for side in sides]
    (row,) = await tx.rows(sa.select(*(part.scalar_subquery() for part in last)))
    edges: list[int] = [edge for edge in row if edge is not None]
    if not edges:
        return None
    return max(edges) if order is Order.NEWEST else min(edges)


def _ids(side: Side, served: list[Condition], after: int | None, edge: int | None, order: Order) -> sa.Select[Any]:
    column = side.subject.table.c.id
    newest = order is Order.NEWEST
    bounds = []
    if after is not None:
        bounds.append(column < after if newest else column > after)
    if edge is not None:
        bounds.append(column >= edge if newest else column <= edge)
    # Offered the order of the ids for nothing, a planner without statistics walks over them instead of using the index
    # of the few rows that are served.
    sorted_by = column + 0 if side.few else column
    return sa.select(column).where(*served, *bounds).order_by(_sorted(sorted_by, order))


def _sorted(column: Any, order: Order) -> Any:
    return column.desc() if order is Order.NEWEST else column.asc()
