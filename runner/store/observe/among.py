"""among: sort the newest tasks that a filter lets through, where no index has the order that is asked for."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from runner.store.observe.bookmark import Bookmark
from runner.store.observe.found import Found, Way
from runner.store.observe.keys import Key, compared, least
from runner.store.observe.sides import Side
from runner.store.transaction import Transaction


async def sort_among(
    tx: Transaction, parts: Sequence[Side], key: Key, limit: int, after: Bookmark | None, edge: Bookmark | None
) -> Found:
    """Sort tasks.

    Args:
        tx: an open transaction; one statement is executed.
        parts: of the search.
        key: what is sorted by.
        limit: the most ids to return.
        after: the place behind which to look; None to begin.
        edge: the lowest id that is looked at; None for all. Whoever calls this sees to it that there are not too many.
    """
    rows = [_candidates(side, key, edge) for side in parts]
    all_ = sa.union_all(*(sa.select(part.subquery()) for part in rows)).subquery()
    behind = [compared(all_.c, key, after, beyond=True)] if after is not None else []
    statement = sa.select(*key.carried(all_.c)).where(*behind).order_by(*key.order(all_.c)).limit(limit + 1)
    found = [key.bookmark(row) for row in await tx.rows(statement)]
    more = found[limit - 1] if len(found) > limit else None
    return Found([mark.id for mark in found[:limit]], more, edge is not None, Way.SORTED)


def _candidates(side: Side, key: Key, edge: Bookmark | None) -> sa.Select[Any]:
    row = side.subject.table.c
    low = [row.id >= edge.id] if edge is not None else []
    columns = [*(least(row[name]) for name in key.names), row.id]
    return sa.select(*columns).where(*side.served, *side.sifted, *low)
