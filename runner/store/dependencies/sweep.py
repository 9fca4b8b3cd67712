"""sweep: check the open dependencies themselves, so that no dependent stays blocked."""

from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import db_now
from runner.store.dependencies.parents import changed_parents, is_any_open, is_blocked, is_open
from runner.store.dependencies.resolve import Dependency, dependencies_of

WINDOW = 2_000
"""Maximum number of dependencies per page."""

NEWEST = 2**63 - 1
"""The start of a sweep: above every id."""


class StrayDependents(NamedTuple):
    """The result of checking one page of open dependencies.

    Args:
        dependencies: open dependencies whose parents have finished.
        moot: open dependencies of tasks that are not blocked.
        lowest: the lowest checked id, from which to continue; None at the end.
    """

    dependencies: list[Dependency]
    moot: list[Dependency]
    lowest: int | None


async def any_open(tx: Transaction) -> bool:
    """Return True if any dependency is open; a cheap statement for frequent checks."""
    rows = await tx.run(_any_open(tx.tables, tx.driver), {})
    return bool(rows[0][0])


async def find_strays(tx: Transaction, below: int = NEWEST) -> StrayDependents:
    """Check one page of open dependencies, the newest first.

    Args:
        tx: an open transaction; one statement is executed.
        below: the id below which to start.
    """
    rows = await tx.run(_strays(tx.tables, tx.driver), {"below": below})
    lowest, checked = rows[0][:2]
    strays = [(Dependency(*row[2:4]), row[4]) for row in rows if row[2] is not None]
    dependencies = [dependency for dependency, moot in strays if not moot]
    return StrayDependents(
        dependencies, [dependency for dependency, moot in strays if moot], lowest if checked == WINDOW else None
    )


async def close_moot(tx: Transaction, moot: list[Dependency]) -> None:
    """Close dependencies of tasks that are not blocked, because a client finished or unblocked them directly."""
    dependency = tx.tables.dependency
    closable = tx.dialect.one_of(dependency.c.id, [stray.id for stray in moot])
    still, blocked = is_open(dependency.c), is_blocked(tx.tables, dependency.c.task_id)
    closed = (
        sa.update(dependency).where(closable, still, ~blocked).values(satisfied_at=db_now()).returning(dependency.c.id)
    )
    ids = [row.id for row in await tx.rows(closed)]
    if ids:
        # A transaction that blocks the task again also updates the dependency. The statement above may have waited
        # for it without seeing its change; this statement sees it.
        reopened = tx.dialect.one_of(dependency.c.id, ids)
        await tx.execute(sa.update(dependency).where(reopened, blocked).values(satisfied_at=None))


@lru_cache
def _any_open(tables: Tables, driver: sa.Dialect) -> Prepared:
    return Prepared(sa.select(sa.exists().where(is_any_open(tables.dependency.c))), driver)


@lru_cache
def _strays(tables: Tables, driver: sa.Dialect) -> Prepared:
    return Prepared(strays_statement(tables), driver)


def strays_statement(tables: Tables) -> sa.Select[Any]:
    """One row per stray with the bounds of the page; one row without a stray if there is none."""
    dependency = tables.dependency
    below = dependency.c.id < sa.bindparam("below", type_=sa.BigInteger)
    newest = (
        sa.select(*dependencies_of(tables)).where(is_any_open(dependency.c), below).order_by(dependency.c.id.desc())
    )
    window = newest.limit(sa.literal_column(str(WINDOW))).cte("window_")
    bounds = sa.select(sa.func.min(window.c.id).label("lowest"), sa.func.count().label("checked")).subquery("bounds")
    changed = changed_parents(tables, sa.select(window).where(is_blocked(tables, window.c.task_id))).subquery("changed")
    strays = sa.union_all(
        sa.select(changed.c.id, changed.c.task_id, sa.false().label("moot")),
        sa.select(window.c.id, window.c.task_id, sa.true()).where(~is_blocked(tables, window.c.task_id)),
    ).subquery("strays")
    return sa.select(bounds, strays).select_from(bounds.outerjoin(strays, sa.true()))
