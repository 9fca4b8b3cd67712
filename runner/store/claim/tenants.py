"""claim_tenants: claim from a lane tenant by tenant, so that a tenant at its limit costs one step, not its tasks.

A claim walks the index `tenant` from tenant to tenant, one look-up each, and begins after the last tenant that had a
turn. It visits as many tenants as it has room for, and the full ones between them: its cost grows neither with the
number of tenants nor with their tasks. Tasks without a tenant have a turn at the start of each round.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect, row_address
from runner.db.schema import Tables, is_state
from runner.db.statement import Prepared, Step
from runner.db.transaction import Transaction
from runner.db.types import ctid, db_now, is_listed
from runner.model.task import State
from runner.policy.claim_facts import ClaimScope
from runner.policy.claim_policy import CLAIM_POLICY
from runner.policy.lanes import Lane
from runner.store.claim.plain import LIMIT, due_tasks

MOST_VISITS = 2_000
"""Maximum number of tenants that one claim visits."""

SPARE_VISITS = 64
"""Visits beyond the room, for tenants whose tasks are not due."""

BEYOND = 100
"""Tasks to read beyond the room when looking for tasks without a tenant."""


class Visit(NamedTuple):
    """A tenant with waiting tasks in a lane, and whether the first of them is due."""

    tenant: str
    due: bool


class TenantRound(NamedTuple):
    """The tenants that a claim visited.

    Args:
        visits: the tenants in the order of their turns.
        complete: True if these are all tenants of the lane.
    """

    visits: Sequence[Visit]
    complete: bool


class TenantWalk(NamedTuple):
    """A walk from the tenant after `after` to the last one of a lane.

    Args:
        lane: the lane.
        most: maximum number of tenants to visit.
        visits: the visited tenants; None before the walk.
    """

    lane: Lane
    after: str
    most: int
    visits: Sequence[Visit] | None = None

    def step(self, tx: Transaction) -> Step:
        """The statement of the walk; `with_rows` takes its rows."""
        parameters = self.lane._asdict() | {"after": self.after, "visits": self.most}
        return Step(_visiting(tx.tables, tx.driver), parameters)

    def with_rows(self, rows: Sequence[Any]) -> "TenantWalk":
        """The walk with the rows of its statement."""
        return self._replace(visits=[Visit(tenant, bool(due)) for tenant, due in rows])

    def reaches(self, most: int) -> bool:
        """True if a walk of `most` visits would find no more tenants."""
        return self.visits is not None and (len(self.visits) < self.most or self.most >= most)


async def visit(tx: Transaction, lane: Lane, after: str, most: int, walk: TenantWalk | None = None) -> TenantRound:
    """Walk from tenant to tenant, from the one after `after` to the last one, and on from the first one.

    Args:
        tx: an open transaction; at most two statements are executed.
        after: the last tenant that had a turn; empty to begin with the first one.
        most: maximum number of tenants to visit.
        walk: a walk that this transaction has made; used if it is from `after` and goes far enough.
    """
    if walk is None or walk.after != after or not walk.reaches(most):
        walk = await _walked(tx, TenantWalk(lane, after, most))
    visits = list(walk.visits or ())[:most]
    if after and len(visits) < most:
        wrapped = await _walked(tx, TenantWalk(lane, "", most - len(visits)))
        visits += [each for each in wrapped.visits or () if each.tenant <= after]
    return TenantRound(visits, len(visits) < most)


async def tenants_of(tx: Transaction, only: str) -> TenantRound:
    """Return the tenants of the only tasks of a claim, in place of a visit.

    Args:
        tx: an open transaction; one statement is executed.
        only: the ids of the tasks; see runner.policy.selection.
    """
    rows = await tx.run(_tenants_of(tx.tables, tx.driver), {"ids": only})
    return TenantRound([Visit(row[0], True) for row in rows], True)


@lru_cache
def _tenants_of(tables: Tables, driver: sa.Dialect) -> Prepared:
    task = tables.task.c
    named = is_listed(task.id, sa.bindparam("ids", type_=sa.Text)) & task.tenant.is_not(None)
    return Prepared(sa.select(task.tenant).where(named).distinct(), driver)


async def _walked(tx: Transaction, walk: TenantWalk) -> TenantWalk:
    return walk.with_rows(await tx.run(*walk.step(tx)))


def shares(tenants: Sequence[str], room: Callable[[str], int], limit: int) -> dict[str, int]:
    """Divide a number of tasks among tenants, one task each in turn.

    Args:
        room: returns the number of tasks that a tenant may start.
    """
    open_tenants = ((tenant, free) for tenant in tenants if (free := room(tenant)) > 0)
    rooms = dict(islice(open_tenants, limit))
    result = dict.fromkeys(rooms, 0)
    while limit > 0 and rooms:
        for tenant in list(rooms)[:limit]:
            result[tenant] += 1
            limit -= 1
            if result[tenant] == rooms[tenant]:
                del rooms[tenant]
    return {tenant: number for tenant, number in result.items() if number}


def share_parameters(tx: Transaction, parts: Mapping[str, int]) -> dict[str, Any]:
    """The parameters of a claim from tenants: the shares, and the largest of them."""
    largest = {"largest": max(parts.values())}
    return tx.dialect.parameters("share", {"tenant": list(parts), "tasks": list(parts.values())}) | largest


@lru_cache
def _visiting(tables: Tables, driver: sa.Dialect) -> Prepared:
    """The walk from tenant to tenant: one search of the index for each."""
    dialect = DIALECTS[driver.name]
    start = sa.select(sa.bindparam("after", type_=sa.Text).label("tenant")).subquery("start")
    walk = _next_tenant(tables, dialect, start).cte("walk", recursive=True)
    walk = walk.union_all(_next_tenant(tables, dialect, walk))
    visits = sa.bindparam("visits", type_=sa.Integer)
    return Prepared(sa.select(walk.c.tenant, walk.c.run_at <= db_now()).limit(visits), driver)


def _next_tenant(tables: Tables, dialect: Dialect, last: sa.FromClause) -> sa.Select[Any]:
    row = tables.task.alias("beyond")
    task = row.c
    lane = [task[name] == sa.bindparam(name, type_=task[name].type) for name in Lane._fields]
    # As an expression: SQLite would not use the index for a comparison of two columns.
    beyond = task.tenant > sa.func.coalesce(last.c.tenant, "")
    order = (task.tenant, task.run_at, task.id)
    one = sa.select(*order).where(is_state(task.state, State.WAITING), *lane, task.tenant.is_not(None), beyond)
    one = one.order_by(*(task[name] for name in Lane._fields), *order).limit(sa.literal_column("1")).correlate(last)
    source, match = dialect.first_of_each(last, one, tables.task)
    return sa.select(match.tenant, match.run_at).select_from(source)


def of_tenants(scope: ClaimScope, lane: sa.CTE, dialect: Dialect) -> sa.Select[Any]:
    """The first tasks of each tenant, as many as its share."""
    share = dialect.rows("share", {"tenant": sa.Text, "tasks": sa.Integer})
    row = scope.tables.task.alias("due")
    task = row.c
    # A range and an order by the tenant: the index `ready` has neither, so that no plan uses it.
    same = (task.tenant >= share.c.tenant, task.tenant <= share.c.tenant, task.tenant.is_not(None))
    within = CLAIM_POLICY.order.within_lane(task)
    due = due_tasks(scope, row, lane).where(*same).order_by(None).order_by(task.tenant, *within)
    source = lane.join(share, sa.true())
    if dialect.row_locks:
        first = due.with_only_columns(ctid(row)).limit(share.c.tasks).with_for_update(skip_locked=True)
        locked = first.correlate(lane, share).lateral("locked")
        return sa.select(locked.c.ctid).select_from(source.join(locked, sa.true()))
    # SQLite limits all tenants alike: to as many tasks as the largest share has, and not to those of the whole claim.
    largest = sa.bindparam("largest", type_=sa.Integer)
    joined, match = dialect.for_each(source, due.correlate(lane, share).limit(largest), scope.tables.task)
    turn = sa.func.row_number().over(partition_by=share.c.tenant, order_by=CLAIM_POLICY.order.within_lane(match))
    ranked = sa.select(match.id, share.c.tasks, turn.label("turn")).select_from(joined).subquery("ranked")
    return sa.select(ranked.c.id).where(ranked.c.turn <= ranked.c.tasks)


def without_tenant(scope: ClaimScope, lane: sa.CTE, dialect: Dialect) -> sa.Select[Any]:
    """The tasks without a tenant among the first ones of the lane."""
    row = scope.tables.task.alias("due")
    address = row_address(row, dialect)
    bound = LIMIT + sa.literal_column(str(BEYOND))
    first = due_tasks(scope, row, lane).with_only_columns(address.label("address"), row.c.tenant)
    if not dialect.laterals:
        joined, match = dialect.for_each(lane, due_tasks(scope, row, lane).limit(bound), scope.tables.task)
        none = sa.select(match.id).select_from(joined).where(match.tenant.is_(None))
        return none.order_by(*CLAIM_POLICY.order.within_lane(match)).limit(LIMIT)
    each = first.limit(bound).lateral("first")
    addresses = sa.select(each.c.address).select_from(lane.join(each, sa.true())).where(each.c.tenant.is_(None))
    target = scope.tables.task.alias("target")
    among = ctid(target) == sa.func.any(sa.func.array(addresses.limit(LIMIT).scalar_subquery()))
    return sa.select(ctid(target)).where(among).with_for_update(skip_locked=True, of=target)
