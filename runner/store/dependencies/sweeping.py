"""sweeping: look at the open edges themselves, so that no task that waits is forgotten."""

from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import db_now
from runner.schema import Tables
from runner.store.dependencies.resolving import Edge, edges_of
from runner.store.parentage import is_any_open, is_blocked, is_open, news
from runner.store.statement import Prepared
from runner.store.transaction import Transaction

WINDOW = 2_000
"""Edges that one look goes over."""

NEWEST = 2**63 - 1
"""The place before the first look: above every edge."""


class Strays(NamedTuple):
    """What one look over the open edges has found.

    Args:
        edges: whose parents have ended, though nobody has resolved them.
        moot: whose tasks are not blocked, so that they hold nothing back.
        lowest: the number of the oldest edge that was looked at: go on below it; None when there is none below.
    """

    edges: list[Edge]
    moot: list[Edge]
    lowest: int | None


async def any_open(tx: Transaction) -> bool:
    """Tell whether any task waits for another one: asked often, and in most installations answered with no."""
    rows = await tx.run(_any_open(tx.tables, tx.driver), {})
    return bool(rows[0][0])


async def strays(tx: Transaction, below: int = NEWEST) -> Strays:
    """Look over a window of the open edges, the newest first.

    Args:
        tx: an open transaction; one statement is executed.
        below: the number under which to begin.
    """
    rows = await tx.run(_strays(tx.tables, tx.driver), {"below": below})
    lowest, looked = rows[0][:2]
    found = [(Edge(*row[2:4]), row[4]) for row in rows if row[2] is not None]
    edges = [edge for edge, moot in found if not moot]
    return Strays(edges, [edge for edge, moot in found if moot], lowest if looked == WINDOW else None)


async def forget(tx: Transaction, moot: list[Edge]) -> None:
    """Close edges whose tasks are not blocked: somebody ended them, or let them go, without a look at the edges."""
    edge = tx.tables.dependency
    theirs = tx.dialect.one_of(edge.c.id, [found.id for found in moot])
    still, blocked = is_open(edge.c), is_blocked(tx.tables, edge.c.task_id)
    closed = sa.update(edge).where(theirs, still, ~blocked).values(satisfied_at=db_now()).returning(edge.c.id)
    ids = [row.id for row in await tx.rows(closed)]
    if ids:
        # Whoever blocked the task again at this moment has touched the edge; the statement above may have waited for
        # that without seeing it, and this one sees it.
        mine = tx.dialect.one_of(edge.c.id, ids)
        await tx.execute(sa.update(edge).where(mine, blocked).values(satisfied_at=None))


@lru_cache
def _any_open(tables: Tables, driver: sa.Dialect) -> Prepared:
    return Prepared(sa.select(sa.exists().where(is_any_open(tables.dependency.c))), driver)


@lru_cache
def _strays(tables: Tables, driver: sa.Dialect) -> Prepared:
    return Prepared(strays_statement(tables), driver)


def strays_statement(tables: Tables) -> sa.Select[Any]:
    """One row for each stray, beside what the window was; one row without a stray when there is none."""
    edge = tables.dependency
    below = edge.c.id < sa.bindparam("below", type_=sa.BigInteger)
    newest = sa.select(*edges_of(tables)).where(is_any_open(edge.c), below).order_by(edge.c.id.desc())
    window = newest.limit(sa.literal_column(str(WINDOW))).cte("window_")
    bounds = sa.select(sa.func.min(window.c.id).label("lowest"), sa.func.count().label("looked")).subquery("bounds")
    told = news(tables, sa.select(window).where(is_blocked(tables, window.c.task_id))).subquery("told")
    found = sa.union_all(
        sa.select(told.c.id, told.c.task_id, sa.false().label("moot")),
        sa.select(window.c.id, window.c.task_id, sa.true()).where(~is_blocked(tables, window.c.task_id)),
    ).subquery("found")
    return sa.select(bounds, found).select_from(bounds.outerjoin(found, sa.true()))
