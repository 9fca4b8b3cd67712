"""claim_limited: claim from lanes whose queue or handler has limits, in a transaction of their own.

The claim locks the registry rows of the limits that it uses, and only then counts the running tasks, so that no two
claims use the same room. It does not wait for such a lock: the lanes of a locked row are busy, and the runner tries
them again in a moment. Only a runner without other due lanes waits, for some milliseconds. Settles and rescues only
make room, and take no lock. Claims from other lanes do not come here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.needs import Needs, needs
from runner.db.schema import Tables
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.model.task import Claimed
from runner.policy.breaker import Probe
from runner.policy.claim_facts import ClaimScope
from runner.policy.claim_order import STRICT, ClaimOrder
from runner.policy.lanes import LOOK_AGAIN, Lane, LimitName, limits_of
from runner.policy.positions import LanePosition, TenantPositions, Visit
from runner.policy.suspicion import Ask
from runner.store.claim.ledger import Ledger, charge, hold
from runner.store.claim.plain import (
    HELD_COLUMNS,
    HOLDS,
    LIMIT,
    OF_ROW,
    Claimant,
    HandlerDefaults,
    claim_update,
    claim_values,
    claimed_tasks,
    due_tasks,
    first_of_lane,
    first_suspect,
    lock_shares,
    open_lanes,
    returned,
)
from runner.store.claim.running_count import LastCount
from runner.store.claim.tenants import (
    MOST_VISITS,
    SPARE_VISITS,
    TenantRound,
    TenantWalk,
    last_read,
    of_tenants,
    share_parameters,
    shares,
    tenants_of,
    visit,
    without_tenant,
)

BUSY = 0.01
"""Seconds until the next try of a lane whose limits another claim holds."""

FURTHER = 0.05
"""Seconds until a claim goes on from tenant to tenant after one that met no due task."""

ROOMS = ("queue_room", "handler_room")
LIMITED_COLUMNS = HELD_COLUMNS | dict.fromkeys(ROOMS, sa.Integer)
FULL_COLUMNS: dict[str, Any] = dict.fromkeys(("queue", "handler", "tenant"), sa.Text)


class LimitedLanes(NamedTuple):
    """The lanes of a limited claim.

    Args:
        lanes: the lanes, in the order of claims.
        start: the position before every task.
        cursors: the last tenant that had a turn, by lane; empty if only the tasks without a tenant had one.
        patient: if other claims hold all limits, wait for them for a moment; see `hold`.
        with_tenants: lanes in which a recent claim found no task without a tenant: look for these last.
        others: the position after which to look for tasks without a tenant, by lane, where a claim read only a part.
        counts: False if the last claim used no limit that counts running tasks.
        passed: the positions that replace `start`, in lanes with a limit per tenant for tasks without a tenant.
        tenants: the positions by tenant, by lane; without them, a claim reads each tenant from its first entry.
        walks: the maximum number of tenants to visit in the round trip that locks the limits, by lane; from the
            claims before.
        last: the last counts of the running tasks, from which to continue; None to count all of them.
    """

    lanes: Sequence[Lane]
    start: LanePosition
    cursors: Mapping[Lane, str] = {}
    patient: bool = False
    with_tenants: Collection[Lane] = frozenset()
    others: Mapping[Lane, LanePosition] = {}
    counts: bool = True
    passed: Mapping[Lane, LanePosition] = {}
    tenants: Mapping[Lane, TenantPositions] = {}
    walks: Mapping[Lane, int] = {}
    last: Mapping[LimitName, LastCount] | None = None


@dataclass
class LimitedClaim:
    """The result of a limited claim.

    Args:
        waits: seconds until a lane without room may have some; infinite until a running task ends.
        empty: the lanes without due tasks.
        cursors: the new cursors by lane; None for the start of the next round.
        probes: the round of probes of each claimed task that probes for an open breaker, by task id.
        others: the lanes in which the claim found no due task without a tenant, and the last task that it read there;
            None if it read all of them.
        counts: True if a limit counted running tasks.
        visits: the first waiting task of each tenant that the claim visited, by lane.
        walks: the maximum number of tenants that the next claim should visit, by lane; only of a server.
        last: the counts of the running tasks from which the next claim may continue.
    """

    claimed: list[Claimed] = field(default_factory=list)
    waits: dict[Lane, float] = field(default_factory=dict)
    empty: set[Lane] = field(default_factory=set)
    cursors: dict[Lane, str | None] = field(default_factory=dict)
    probes: dict[int, Probe] = field(default_factory=dict)
    others: dict[Lane, LanePosition | None] = field(default_factory=dict)
    counts: bool = True
    visits: dict[Lane, Sequence[Visit]] = field(default_factory=dict)
    walks: dict[Lane, int] = field(default_factory=dict)
    last: Mapping[LimitName, LastCount] = field(default_factory=dict)


@needs(Needs.PREPARED_TRANSACTION)
async def claim_limited(
    tx: Transaction,
    who: Claimant,
    lanes: LimitedLanes,
    defaults: Mapping[str, HandlerDefaults],
    limit: int,
    starts: bool = True,
) -> LimitedClaim:
    """Claim due tasks from lanes with limits; no limit is exceeded.

    Args:
        defaults: the defaults of every handler in `lanes`, by name.
        limit: maximum number of tasks.
        starts: True if each task has a slot; see `claim`.
    """
    values = claim_values(who, limit, starts=starts)
    walks = [
        TenantWalk.of(lane, lanes.cursors.get(lane, ""), most, lanes.tenants.get(lane))
        for lane in lanes.lanes
        if (most := lanes.walks.get(lane))
    ]
    steps = [walk.step(tx) for walk in walks]
    ledger, rows = await hold(tx, lanes.lanes, lanes.patient, lanes.counts, steps, lanes.last)
    claim = _Claim(tx, ledger, lanes, defaults, values, who.order, who.selection.names)
    claim.walks = {walk.lane: walk.with_rows(each) for walk, each in zip(walks, rows, strict=True)}
    result = claim.result
    result.last = ledger.last
    result.counts = any(usage.limits.counts_running for usage in ledger.usages.values())
    result.waits = {lane: BUSY for lane in lanes.lanes if claim.ledger.is_busy(lane)}
    mine = [lane for lane in lanes.lanes if lane not in result.waits]
    if mine and not ledger.may_charge:
        claim.commits_with = mine[-1]
    for limits_tenants, group in groupby(mine, claim.ledger.limits_tenants):
        if limits_tenants:
            for lane in group:
                await claim.from_tenants(lane)
        else:
            await claim.from_lanes(list(group))
    for lane in lanes.lanes:
        if lane not in result.waits and (wait := claim.ledger.wait(lane)) is not None:
            result.waits[lane] = wait
    await charge(tx, claim.ledger)
    result.probes = claim.ledger.probes(result.claimed)
    return result


@needs(Needs.PREPARED_TRANSACTION)
async def claim_limited_suspect(
    tx: Transaction, who: Claimant, lanes: LimitedLanes, defaults: Mapping[str, HandlerDefaults], ask: Ask
) -> LimitedClaim:
    """Claim the oldest suspect from lanes with limits, if it has the width; see `claim_suspect`.

    Args:
        defaults: the defaults of every handler in `lanes`, by name.
        ask: which suspects; at most one is claimed.
    """
    ledger, _ = await hold(tx, lanes.lanes, last=lanes.last)
    part = [lane for lane in lanes.lanes if not ledger.is_busy(lane) and ledger.room(lane)]
    if not part:
        return LimitedClaim()
    full = {(lane.queue, lane.handler, tenant) for lane in part for tenant in ledger.full_tenants(lane)}
    values = (
        claim_values(who, 1, starts=True)
        | tx.dialect.row_parameters("full", FULL_COLUMNS, sorted(full))
        | {"width": ask.width, "among": ask.among}
    )
    prepared = _prepared(tx.tables, tx.driver, "suspects", selection=who.selection.names)
    if not ledger.may_charge:
        tx.commit_next()
    starts = dict.fromkeys(part, lanes.start)
    rows = await tx.run(prepared, values | _lane_parameters(tx, ledger, defaults, starts))
    claimed = claimed_tasks(rows, STRICT, part, None)
    ledger.count(claimed)
    await charge(tx, ledger)
    return LimitedClaim(claimed, probes=ledger.probes(claimed))


class _Claim:
    """A limited claim in progress."""

    def __init__(
        self,
        tx: Transaction,
        ledger: Ledger,
        lanes: LimitedLanes,
        defaults: Mapping[str, HandlerDefaults],
        values: dict[str, Any],
        order: ClaimOrder,
        selection: tuple[str, ...],
    ) -> None:
        self.tx, self.ledger, self.lanes, self.defaults, self.values = tx, ledger, lanes, defaults, values
        self.order, self.selection = order, selection
        self.remaining: int = values["limit"]
        self.result = LimitedClaim()
        self.commits_with: Lane | None = None
        """The last lane; None if the ledger may be charged after its claim."""
        self.walks: Mapping[Lane, TenantWalk] = {}

    async def from_lanes(self, lanes: Sequence[Lane]) -> None:
        """Claim from lanes without a limit per tenant."""
        part, number = [lane for lane in lanes if self.ledger.room(lane)], self.remaining
        if len(part) == 1:
            number = self._room(part[0])
        if not part or not number:
            return
        if lanes[-1] == self.commits_with:
            self.tx.commit_next()
        if len(await self._run("lanes" if len(part) > 1 else "lane", part, number)) < number:
            self.result.empty |= {lane for lane in part if self.ledger.room(lane)}

    async def from_tenants(self, lane: Lane) -> None:
        """Claim from a lane with a limit per tenant."""
        cursor = self.lanes.cursors.get(lane)
        others_last = lane in self.lanes.with_tenants
        if cursor is None and (number := self._room(lane)):
            await self._from_others(lane, 0 if others_last else (number + 1) // 2)
            self.result.cursors[lane] = cursor = ""
        if not (number := self._room(lane)):
            return
        full = self.ledger.full_tenants(lane)
        tour = await self._tour(lane, cursor or "", number + len(full))
        due = [each.tenant for each in tour.visits if each.due]
        parts = shares(due, lambda tenant: self.ledger.tenant_room(lane, tenant), number)
        if cursor and any(tenant <= cursor for tenant in parts):  # a new round
            await self._from_others(lane, 0 if others_last else (number + 1) // 2)
            if not (number := self._room(lane)):
                self.result.cursors[lane] = ""
                return
            parts = shares(due, lambda tenant: self.ledger.tenant_room(lane, tenant), number)
        claimed: list[Claimed] = []
        has_committed = bool(parts) and lane == self.commits_with and self.tx.commit_next()
        if parts:
            claimed = await self._run("tenants", [lane], number, share_parameters(self.tx, parts, tour.visits))
        has_looked = lane in self.result.others
        leaves_none = len(parts) < number or self.values.get("selected_only") is not None
        if not claimed and not has_looked and not has_committed:
            claimed = await self._from_others(lane, number)
        if not claimed:
            complete = tour.complete and leaves_none and (has_looked or not has_committed)
            self._stop(lane, complete=complete, is_full=not full.isdisjoint(due))
        turns = list(parts) or [each.tenant for each in tour.visits]
        ends = tour.complete and leaves_none
        self.result.cursors[lane] = None if ends or not turns else turns[-1]

    async def _tour(self, lane: Lane, after: str, number: int) -> TenantRound:
        """Visit the tenants of a lane, at least a number of them with due tasks if there are so many."""
        if only := self.values.get("selected_only"):
            return await tenants_of(self.tx, only, self.lanes.start)
        most = min(number + SPARE_VISITS, MOST_VISITS)
        tour = await visit(self.tx, lane, after, most, self.walks.get(lane), self.lanes.tenants.get(lane))
        self.result.visits[lane] = tour.visits
        if self.tx.dialect.is_server:
            self.result.walks[lane] = min(len(tour.visits) + SPARE_VISITS, most)
        return tour

    async def _from_others(self, lane: Lane, number: int) -> list[Claimed]:
        """Claim tasks without a tenant, and note how far the claim read if it found none."""
        claimed: list[Claimed] = await self._run("without tenant", [lane], number) if number else []
        if number and not claimed:
            values = self.values | self._lane_parameters([lane], self._start_of_others(lane)) | {"limit": number}
            rows = await self.tx.run(_last_read(self.tx.tables, self.tx.driver, self.selection), values)
            self.result.others[lane] = LanePosition(*rows[0]) if rows else None
        return claimed

    def _start_of_others(self, lane: Lane) -> Mapping[Lane, LanePosition]:
        start = self.lanes.others.get(lane) or self.lanes.passed.get(lane)
        return {} if start is None else {lane: start}

    def _stop(self, lane: Lane, *, complete: bool, is_full: bool) -> None:
        """Note why no tenant had a task to claim."""
        if not complete:
            self.result.waits[lane] = FURTHER
        elif is_full:
            self.result.waits[lane] = inf
        elif self.result.others.get(lane) is not None:
            self.result.waits[lane] = LOOK_AGAIN
        else:
            self.result.empty.add(lane)

    def _room(self, lane: Lane) -> int:
        return min(self.remaining, self.ledger.room(lane))

    async def _run(self, among: str, lanes: Sequence[Lane], limit: int, more: dict[str, Any] | None = None) -> Any:
        prepared = _prepared(self.tx.tables, self.tx.driver, among, self.order, self.selection)
        passed = self.lanes.passed if among != "tenants" else {}  # these have a position each
        if among == "without tenant":
            passed = self._start_of_others(lanes[0])
        values = self.values | self._lane_parameters(lanes, passed) | (more or {}) | {"limit": limit}
        only = None if among == "lanes" else lanes[0]
        claimed = claimed_tasks(await self.tx.run(prepared, values), self.order, lanes, only)
        self.ledger.count(claimed)
        self.remaining -= len(claimed)
        self.result.claimed += claimed
        return claimed

    def _lane_parameters(self, lanes: Sequence[Lane], passed: Mapping[Lane, LanePosition]) -> dict[str, Any]:
        starts = {lane: passed.get(lane, self.lanes.start) for lane in lanes}
        return _lane_parameters(self.tx, self.ledger, self.defaults, starts)


def _lane_parameters(
    tx: Transaction, ledger: Ledger, defaults: Mapping[str, HandlerDefaults], starts: Mapping[Lane, LanePosition]
) -> dict[str, Any]:
    """Return lanes and their first positions as parameters, with the limits that the ledger holds and their rooms."""
    rows = []
    for number, (lane, start) in enumerate(starts.items()):
        flags = (key in ledger.usages for key in limits_of(lane))
        rooms = (ledger.room_of(key) for key in limits_of(lane))
        rows.append((number, *lane, start.run_at, start.id, *defaults[lane.handler], *flags, *rooms))
    return tx.dialect.row_parameters("lane", LIMITED_COLUMNS, rows)


@lru_cache
def _prepared(
    tables: Tables, driver: sa.Dialect, among: str, order: ClaimOrder = STRICT, selection: tuple[str, ...] = ()
) -> Prepared:
    dialect, scope = DIALECTS[driver.name], ClaimScope(tables, HOLDS, selection)
    several = among in ("lanes", "suspects")
    lane = open_lanes(dialect.rows("lane", LIMITED_COLUMNS), scope, several=several)
    match among:
        case "lane":
            tasks = first_of_lane(scope, lane, dialect)
        case "lanes":
            tasks = _within_rooms(scope, lane, dialect, order)
        case "tenants":
            tasks = of_tenants(scope, lane, dialect)
        case "without tenant":
            tasks = without_tenant(scope, lane, dialect)
        case _:
            tasks = first_suspect(scope, lane, dialect, dialect.rows("full", FULL_COLUMNS))
    # The claims of tenants have one lane as well.
    statement = claim_update(tables, dialect, lane, tasks, one_lane=not several)
    return Prepared(
        statement.returning(*returned(tables.task, dialect, Claimed._fields if several else OF_ROW)), driver
    )


@lru_cache
def _last_read(tables: Tables, driver: sa.Dialect, selection: tuple[str, ...]) -> Prepared:
    dialect, scope = DIALECTS[driver.name], ClaimScope(tables, HOLDS, selection)
    lane = open_lanes(dialect.rows("lane", LIMITED_COLUMNS), scope, several=False)
    return Prepared(last_read(scope, lane, dialect), driver)


def _within_rooms(scope: ClaimScope, lane: sa.CTE, dialect: Dialect, order: ClaimOrder) -> sa.Select[Any]:
    """The first `limit` tasks over all lanes, at most as many as each queue and each handler has room for."""
    due = due_tasks(scope, scope.tables.task.alias("due"), lane).limit(LIMIT)
    joined, row = dialect.for_each(lane, due, scope.tables.task)
    first = (*order.of_lanes(row), *order.within_lane(row))
    ranks = {
        name: sa.func.row_number().over(partition_by=lane.c[name], order_by=first).label(f"in_{name}")
        for name in ("queue", "handler")
    }
    columns = (lane.c.number, lane.c.queue_room, lane.c.handler_room, row.id, row.priority, row.retried, row.run_at)
    ranked = sa.select(*columns, *ranks.values()).select_from(joined).cte("ranked")
    fits = (ranked.c.in_queue <= ranked.c.queue_room, ranked.c.in_handler <= ranked.c.handler_room)
    merged = (*order.of_lanes(ranked.c), *order.within_lane(ranked.c))
    head = sa.select(ranked.c.number, ranked.c.id).where(*fits).order_by(*merged).limit(LIMIT)
    if not dialect.row_locks:
        return head.with_only_columns(ranked.c.id)
    return lock_shares(scope, lane, head.cte("head"))
