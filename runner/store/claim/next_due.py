"""A claim that also returns when the next task beside its own is due."""

from collections.abc import Mapping
from functools import lru_cache
from math import inf
from typing import Any

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, is_state
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.db.types import db_now, seconds_until
from runner.model.task import Claimed, State
from runner.policy.claim_order import ClaimOrder
from runner.policy.lanes import Lane
from runner.policy.positions import LanePosition
from runner.store.claim.plain import (
    OF_ROW,
    Claimant,
    HandlerDefaults,
    claim_parameters,
    claim_with_lanes,
    claimed_tasks,
)
from runner.store.claim.survey import before_all_lanes, walk_of_lanes

MAX_LANES = 8
"""Maximum number of lanes to read. With more of them, others count as due: a survey reads them in their order."""


@needs(Needs.PREPARED)
async def claim_with_next_due(
    tx: Transaction,
    who: Claimant,
    lanes: Mapping[Lane, LanePosition],
    defaults: Mapping[str, HandlerDefaults],
    limit: int,
    starts: bool = True,
) -> tuple[list[Claimed], float]:
    """Claim due tasks as `claim` does, on a database where a select can contain the claim.

    Returns:
        The claimed tasks, and the seconds until another task is due, infinite without one. Tasks that are due in the
        lanes of the claim do not count: it takes them if they are fewer than the limit.
    """
    only = next(iter(lanes)) if len(lanes) == 1 else None
    prepared = _prepared(tx.tables, tx.driver, who.order, who.selection.names, one_lane=only is not None)
    *rows, (wait, *_) = await tx.run(prepared, claim_parameters(tx.dialect, who, lanes, defaults, limit, starts=starts))
    return claimed_tasks((row[1:] for row in rows), who.order, lanes, only), inf if wait is None else wait


@needs(Needs.PREPARED)
async def prepare_next_due(tx: Transaction, who: Claimant) -> None:
    """Compile the statements of `claim_with_next_due`, and execute nothing."""
    for one_lane in (True, False):
        _prepared(tx.tables, tx.driver, who.order, who.selection.names, one_lane=one_lane)


@lru_cache
def _prepared(
    tables: Tables, driver: sa.Dialect, order: ClaimOrder, selection: tuple[str, ...], *, one_lane: bool
) -> Prepared:
    """A row per claimed task behind a null, and a last row with the seconds and nulls."""
    dialect, names = DIALECTS[driver.name], OF_ROW if one_lane else Claimed._fields
    claim, lane = claim_with_lanes(tables, dialect, "lane" if one_lane else "lanes", order, selection, named=True)
    claimed = claim.cte("claimed")
    tasks = sa.select(sa.cast(sa.null(), sa.Float), *(claimed.c[name] for name in names))
    last = sa.select(_wait(tables, dialect, lane), *(sa.null() for _ in names))
    return Prepared(sa.union_all(tasks, last), driver)


def _wait(tables: Tables, dialect: Dialect, lane: sa.CTE) -> sa.ScalarSelect[Any]:
    """The seconds until the first task outside of the claim is due; null without one, 0 if there are many lanes."""
    head = walk_of_lanes(tables, dialect, before_all_lanes())
    task = tables.task.alias("later").c
    same = [task[name] == head.c[name] for name in Lane._fields]
    later = (
        sa.select(task.run_at)
        .where(is_state(task.state, State.WAITING), *same, task.run_at > db_now())
        .order_by(task.run_at)
        .limit(sa.literal_column("1"))
    )
    is_claimed = sa.exists().where(*(lane.c[name] == head.c[name] for name in Lane._fields))
    at = sa.case((is_claimed, later.correlate(head).scalar_subquery()), else_=head.c.run_at).label("at")
    some = sa.select(at).select_from(head).limit(sa.literal_column(str(MAX_LANES + 1))).subquery("some")
    is_few = sa.func.count() <= sa.literal_column(str(MAX_LANES))
    wait = sa.case((is_few, seconds_until(sa.func.min(some.c.at))), else_=sa.literal_column("0"))
    return sa.select(wait).select_from(some).scalar_subquery()
