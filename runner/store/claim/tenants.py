"""tenants: the claims from a lane tenant by tenant, so that a tenant at its limit costs one step, not its tasks.

A claim walks the index `tenant` from tenant to tenant, one look-up each, and begins after the last tenant that had a
turn. It visits as many tenants as it has room for, and the full ones between them: its cost grows neither with the
number of tenants nor with their tasks. Only while surveys are slow, it looks up known tenants without a task too. Tasks
without a tenant have a turn at the start of each round, as far as the claim finds one among the next tasks of the lane.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect, row_address
from runner.db.needs import Needs, needs
from runner.db.schema import Tables, waits_with_tenant
from runner.db.statement import Prepared, Step
from runner.db.transaction import Transaction
from runner.db.types import PositionTime, ctid, db_now, from_position, is_listed, to_position
from runner.policy.claim_facts import ClaimScope
from runner.policy.claim_policy import CLAIM_POLICY
from runner.policy.lanes import Lane
from runner.policy.positions import KnownTenant, LanePosition, TenantPositions, Visit
from runner.store.claim.plain import LIMIT, due_tasks

MOST_VISITS = 2_000
"""Maximum number of tenants that one claim visits."""

SPARE_VISITS = 64
"""Visits beyond the room, for tenants whose tasks are not due."""

BEYOND = 1_000
"""Tasks to read beyond the room when looking for tasks without a tenant. The next look goes on after them."""

GAP_COLUMNS: dict[str, Any] = {"tenant": sa.Text, "upper": sa.Text}
KNOWN_COLUMNS: dict[str, Any] = {"tenant": sa.Text, "since": PositionTime, "since_id": sa.BigInteger}
SHARE_COLUMNS: dict[str, Any] = KNOWN_COLUMNS | {"tasks": sa.Integer}


class TenantRound(NamedTuple):
    """The tenants that a claim visited.

    Args:
        visits: the tenants in the order of their turns.
        complete: True if these are all tenants of the lane.
    """

    visits: Sequence[Visit]
    complete: bool


class TenantWalk(NamedTuple):
    """A walk from the tenant after `after` towards the last one of a lane, in one statement.

    Args:
        lane: the lane.
        after: the tenant before the walk; empty to begin with the first one.
        most: maximum number of tenants to visit besides the known ones.
        known: the known tenants that follow it, each with the position after which its search begins. Other tenants are
            read from their first entry.
        last: the tenant from which the next walk goes on; None if this one goes to the end of the lane.
        visits: the visited tenants; None before the walk.
    """

    lane: Lane
    after: str
    most: int
    known: Sequence[KnownTenant] = ()
    last: str | None = None
    visits: Sequence[Visit] | None = None

    @classmethod
    def of(cls, lane: Lane, after: str, most: int, positions: TenantPositions | None) -> "TenantWalk":
        """A walk that continues from positions, if there are any: from those of at most twice as many known tenants."""
        known = [] if positions is None else positions.following(after, 2 * most, time.monotonic())
        goes_on = positions is not None and bool(known) and positions.has_after(known[-1].tenant)
        return cls(lane, after, most, known, known[-1].tenant if goes_on else None)

    def step(self, tx: Transaction) -> Step:
        """The statement of the walk; `with_rows` takes its rows."""
        bounds = [self.after, *(each.tenant for each in self.known)]
        values = self.lane._asdict() | {"after": bounds[-1], "further": self.most if self.last is None else 0}
        if self.known:
            rows = [(each.tenant, *each.old) for each in self.known]
            values |= tx.dialect.row_parameters("gap", GAP_COLUMNS, pairwise(bounds)) | {"visits": self.most}
            values |= tx.dialect.row_parameters("known", KNOWN_COLUMNS, rows)
        return Step(_visiting(tx.tables, tx.driver, knows=bool(self.known)), values)

    def with_rows(self, rows: Sequence[Any]) -> "TenantWalk":
        """The walk with the rows of its statement."""
        return self._replace(visits=sorted(Visit(row[0], bool(row[1]), LanePosition(*row[2:])) for row in rows))

    def reaches(self, most: int) -> bool:
        """True if a walk of `most` visits would find no more tenants."""
        return self.visits is not None and (len(self.visits) < self.most or self.most >= most)


@needs(Needs.PREPARED)
async def visit(
    tx: Transaction,
    lane: Lane,
    after: str,
    most: int,
    walk: TenantWalk | None = None,
    positions: TenantPositions | None = None,
) -> TenantRound:
    """Walk from tenant to tenant, from the one after `after` to the last one, and on from the first one.

    Args:
        tx: an open transaction; two statements are executed at most, and one more for each 2 * most known tenants.
        after: the last tenant that had a turn; empty to begin with the first one.
        most: maximum number of tenants to visit.
        walk: a walk that this transaction has made; used if it is from `after` and goes far enough.
        positions: the positions from which to continue; None to read each tenant from its first entry.
    """
    usable = walk if walk is not None and walk.after == after and walk.reaches(most) else None
    visits = await _visits(tx, usable or TenantWalk.of(lane, after, most, positions), positions, most)
    if after and len(visits) < most:
        rest = TenantWalk.of(lane, "", most, positions)
        visits += await _visits(tx, rest, positions, most - len(visits), until=after)
    return TenantRound(visits[:most], len(visits) < most)


async def _visits(
    tx: Transaction, walk: TenantWalk, positions: TenantPositions | None, most: int, until: str = ""
) -> list[Visit]:
    """The tenants of a walk, and those of the walks that go on from it until there are enough of them.

    Args:
        until: the last tenant to visit; empty for the last one of the lane.
    """
    visits = list[Visit]()
    while True:
        if walk.visits is None:
            walk = walk.with_rows(await tx.run(*walk.step(tx)))
        visits += [each for each in walk.visits or () if not until or each.tenant <= until]
        if walk.last is None or (until and walk.last >= until) or len(visits) >= most:
            return visits
        walk = TenantWalk.of(walk.lane, walk.last, walk.most, positions)


async def tenants_of(tx: Transaction, only: str, start: LanePosition) -> TenantRound:
    """Return the tenants of the only tasks of a claim, in place of a visit.

    Args:
        tx: an open transaction; one statement is executed.
        only: the ids of the tasks; see runner.policy.selection.
        start: the position before every task.
    """
    rows = await tx.run(_tenants_of(tx.tables, tx.driver), {"ids": only})
    return TenantRound([Visit(row[0], True, start) for row in rows], True)


@lru_cache
def _tenants_of(tables: Tables, driver: sa.Dialect) -> Prepared:
    task = tables.task.c
    named = is_listed(task.id, sa.bindparam("ids", type_=sa.Text)) & task.tenant.is_not(None)
    return Prepared(sa.select(task.tenant).where(named).distinct(), driver)


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


def share_parameters(tx: Transaction, parts: Mapping[str, int], visits: Sequence[Visit]) -> dict[str, Any]:
    """The parameters of a claim from tenants: the share and the first task of each, and the largest share."""
    first = {visit.tenant: visit.first for visit in visits}
    rows = [(tenant, *first[tenant], tasks) for tenant, tasks in parts.items()]
    return tx.dialect.row_parameters("share", SHARE_COLUMNS, rows) | {"largest": max(parts.values())}


@lru_cache
def _visiting(tables: Tables, driver: sa.Dialect, *, knows: bool) -> Prepared:
    """The walk from tenant to tenant: one search of the index for each, and for each known one and each gap."""
    dialect, row = DIALECTS[driver.name], tables.task.alias("beyond")
    task = row.c

    def walk(name: str, most: str, start: sa.FromClause) -> sa.Subquery:
        """A walk from the tenant of each row of `start`, up to its upper one."""

        def following(last: sa.FromClause) -> sa.Select[Any]:
            # As expressions: SQLite would not use the index for a comparison of two columns.
            lower, *upper = (sa.func.coalesce(column, "") for column in last.c if column.name in GAP_COLUMNS)
            found = _first_waiting(tables, dialect, last, row, task.tenant > lower, *(task.tenant < up for up in upper))
            return found.add_columns(*(last.c.upper for _ in upper))

        met = following(start).cte(f"{name}_walk", recursive=True)
        met = met.union_all(following(met))
        visits = sa.bindparam(most, type_=sa.Integer)
        return sa.select(met.c.tenant, met.c.run_at, met.c.id).limit(visits).subquery(name)

    last = sa.select(sa.bindparam("after", type_=sa.Text).label("tenant")).subquery("start")
    parts = [sa.select(walk("at_end", "further", last))]
    if knows:
        known = dialect.rows("known", KNOWN_COLUMNS)
        after = CLAIM_POLICY.order.position(task) > sa.tuple_(from_position(known.c.since), known.c.since_id)
        parts.append(sa.select(walk("in_gaps", "visits", dialect.rows("gap", GAP_COLUMNS))))
        parts.append(_first_waiting(tables, dialect, known, row, task.tenant == known.c.tenant, after))
    visits = sa.union_all(*parts).subquery("visits").c
    # A task of the future is no position: others may come before it.
    reached = sa.case((visits.run_at <= db_now(), visits.run_at), else_=db_now())
    return Prepared(sa.select(visits.tenant, visits.run_at <= db_now(), to_position(reached), visits.id), driver)


def _first_waiting(
    tables: Tables, dialect: Dialect, outer: sa.FromClause, row: sa.FromClause, *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """The first waiting task of the lane, by tenant and time, for each outer row."""
    task = row.c
    lane = [task[name] == sa.bindparam(name, type_=task[name].type) for name in Lane._fields]
    order = (task.tenant, task.run_at, task.id)
    one = sa.select(*order).where(waits_with_tenant(task), *lane, *conditions)
    one = one.order_by(*(task[name] for name in Lane._fields), *order).limit(sa.literal_column("1")).correlate(outer)
    source, match = dialect.first_of_each(outer, one, tables.task)
    return sa.select(match.tenant, match.run_at, match.id).select_from(source)


def of_tenants(scope: ClaimScope, lane: sa.CTE, dialect: Dialect) -> sa.Select[Any]:
    """The first tasks of each tenant, as many as its share."""
    share = dialect.rows("share", SHARE_COLUMNS)
    row = scope.tables.task.alias("due")
    start = CLAIM_POLICY.order.position(row.c) >= sa.tuple_(from_position(share.c.since), share.c.since_id)
    due = CLAIM_POLICY.walk(row, lane.c, scope._replace(by_tenant=True), start).correlate(lane)
    due = due.where(row.c.tenant == share.c.tenant)
    source = lane.join(share, sa.true())
    if dialect.row_locks:
        some = due.with_only_columns(ctid(row)).limit(share.c.tasks).with_for_update(skip_locked=True)
        locked = some.correlate(lane, share).lateral("locked")
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


def last_read(scope: ClaimScope, lane: sa.CTE, dialect: Dialect) -> sa.Select[Any]:
    """The position of the last task that `without_tenant` read; no row if it read all tasks of the lane."""
    row = scope.tables.task.alias("due")
    one = due_tasks(scope, row, lane).limit(sa.literal_column("1")).offset(LIMIT + sa.literal_column(str(BEYOND - 1)))
    joined, match = dialect.for_each(lane, one, scope.tables.task)
    return sa.select(to_position(match.run_at), match.id).select_from(joined)
