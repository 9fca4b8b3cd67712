"""Rows of capacity, from the work, the slots and the limits of a moment."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from runner.db.transaction import Transaction, clock
from runner.policy.capacity import MINUTE, CapacityRow, Demand, KeyPart, Pool, Situation, capacity_rows
from runner.policy.lanes import RUNNER_QUEUE, Lane
from runner.policy.work_keys import WorkKey
from runner.queries.counting import Count, TenantTurn, due_by_lane, due_of_tenants, first_of_tenants
from runner.queries.counts import uncounted
from runner.queries.limits import limit_usages
from runner.queries.registries import pauses
from runner.queries.reports import OTHERS, Flow, per_minute
from runner.queries.rows import as_text
from runner.queries.runners import RunnerRow, runners
from runner.queries.signatures import chunk_sizes
from runner.queries.summary import GroupResult, mean_durations, results_by, totals
from runner.store.claim.survey import MANY, survey
from runner.text.columns import Column, figure
from runner.text.formatting import age, rate, volume

if TYPE_CHECKING:
    from runner.policy.limits import LimitUsage

PERIOD = timedelta(minutes=10)
"""The default period of the rates."""

DURATIONS = timedelta(hours=1)
"""The shortest period of the mean durations."""

MOST_WORK_KEYS = 1_000
"""Maximum number of queues and their handlers that are listed for their results, those with the most ended tasks."""

OTHER_QUEUES = "(other queues)"
"""The name of the row of all others."""

MOST_USED = 9.99
"""The highest share that is shown as a number."""

MOST_TENANTS = 5
"""Maximum number of tenants to list for a limit, those with the oldest due tasks."""

MOST_VISITS = 10_000
"""Maximum number of index look-ups for the first due tasks of tenants at their limits."""


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant that waits at its limit.

    Args:
        backlog: its due tasks.
        oldest: seconds since the first of them became due.
        work: its backlog in minutes of one slot; None if no duration is known.
        most: maximum number of its running tasks.
    """

    tenant: str
    running: int
    backlog: Count
    oldest: float
    work: float | None
    most: int

    @property
    def drained_in(self) -> float | None:
        """Minutes until its backlog is done if no more of its tasks arrive; None if unknown."""
        return None if self.work is None else self.work / self.most


@dataclass(frozen=True, slots=True)
class TenantLimit:
    """The tenants that wait at the limit per tenant of a queue or a handler.

    Args:
        words: the queue or the handler.
        most: maximum number of running tasks of each.
        tenants: the number of tenants with due tasks that are at the limit.
        rows: the worst of them, the oldest due task first.
    """

    words: str
    most: int
    tenants: Count
    rows: tuple[TenantRow, ...]

    def __str__(self) -> str:
        more = f"; the {len(self.rows)} with the oldest tasks" if len(self.rows) < self.tenants.number else ""
        verb = "waits" if self.tenants == Count(1) else "wait"
        return f"{self.words}: {self.tenants.of('tenant')} {verb} at the limit of {self.most:,} running{more}"


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of all queues or handlers.

    Args:
        minutes: the period of the rates.
        rows: the rows; the last one to be drained comes first.
        tenants: the limits at which tenants wait.
    """

    at: datetime
    minutes: float
    by: KeyPart
    rows: tuple[CapacityRow, ...]
    tenants: tuple[TenantLimit, ...] = ()


async def capacity(tx: Transaction, by: KeyPart = "queue", period: timedelta = PERIOD) -> Capacity:
    """Compute the capacity of the live runners for each queue or handler.

    Args:
        tx: an open transaction; about twenty statements are executed, for any number of tasks.
    """
    at = await clock(tx)
    minutes, situation, lanes = await read_situation(tx, at, period)
    rows = (row if row.name != OTHERS else replace(row, name=OTHER_QUEUES) for row in capacity_rows(situation, by))
    return Capacity(at, minutes, by, tuple(rows), await _tenant_limits(tx, situation, lanes))


async def read_situation(tx: Transaction, at: datetime, period: timedelta) -> tuple[float, Situation, list[Lane]]:
    """Read the minutes that the rates cover, the work, the slots and the limits, and the lanes with due tasks."""
    since = (at - period).replace(second=0, microsecond=0)
    first = next(iter(await per_minute(tx, since, at)), None)
    minutes = max(1.0, (at - (first.minute if first else since)).total_seconds() / MINUTE)
    recent = {(each.queue, each.handler): each.flow for each in await totals(tx, since, at, most=MOST_WORK_KEYS)}
    # The latest durations count: in an outage, those of the hour before it would promise too much.
    longer = await mean_durations(tx, at - max(DURATIONS, period), at, MOST_WORK_KEYS)
    means = longer | await mean_durations(tx, since, at, MOST_WORK_KEYS)
    others = await _other_queues(tx, since, at, recent) if MOST_WORK_KEYS in (len(recent), len(longer)) else {}
    heads = [each for each in await survey(tx, most=MANY) if is_listed(as_text(each.lane.queue))]
    lanes = [each.lane for each in heads if each.wait <= 0]
    backlogs = await backlog(tx, lanes)
    oldest: dict[WorkKey, float] = defaultdict(float)
    for head in heads:
        work_key = as_text(head.lane.queue), as_text(head.lane.handler)
        oldest[work_key] = max(oldest[work_key], -head.wait)
    arrivals: dict[WorkKey, int] = defaultdict(int)
    for work_key, number in (await uncounted(tx, since, at)).work_keys.items():
        is_other = others and work_key not in recent and work_key not in backlogs
        arrivals[(OTHERS, work_key[1]) if is_other else work_key] += number
    flows = recent | {work_key: other.flow for work_key, other in others.items()}
    demands, sizes, limits = dict[WorkKey, Demand](), await chunk_sizes(tx), await limit_usages(tx)
    for work_key in sorted(work_key for work_key in {*flows, *means, *arrivals, *backlogs} if is_listed(work_key[0])):
        flow, usual = flows.get(work_key, Flow()), others.get((OTHERS, work_key[1]))
        arrived = flow.submitted + arrivals.get(work_key, 0)
        ready = backlogs.get(work_key, Count(0, work_key[0] == OTHERS and len(heads) >= MANY))
        demands[work_key] = Demand(
            arrived / minutes,
            (arrived + flow.retried) / minutes,
            means.get(work_key, usual.times.runs.mean if usual else None),
            ready.number,
            oldest[work_key] if ready.number else 0.0,
            ready.more,
            (flow.finished + flow.retried) / minutes,
            flow.finished / minutes,
            per_slot(work_key, sizes.get(work_key[1], 1), limits),
        )
    current = await pauses(tx)
    paused = {("queue", name) for name in current.queues} | {("handler", name) for name in current.handlers}
    pools = pools_of(await runners(tx), demands)
    return minutes, Situation(demands, pools, limits, frozenset(paused)), lanes


def per_slot(work_key: WorkKey, size: int, limits: Sequence["LimitUsage"]) -> int:
    """The tasks of a full chunk of a queue and a handler, as far as limits of running tasks let it be full."""
    mine = {("queue", work_key[0]), ("handler", work_key[1])}
    running = (each.limits.running for each in limits if (each.kind, each.name) in mine)
    return min((size, *(most for most in running if most is not None and most > 0)))


async def _other_queues(
    tx: Transaction, since: datetime, at: datetime, listed: Mapping[WorkKey, Flow]
) -> dict[WorkKey, GroupResult]:
    """The counts of each handler in the queues that are not listed, and its times in all queues, as queue OTHERS."""
    totals: dict[str, Flow] = defaultdict(Flow)
    for (_, handler), flow in listed.items():
        totals[handler] += flow
    results = await results_by(tx, "handler", since, at, MOST_WORK_KEYS)
    return {(OTHERS, handler): GroupResult(flow - totals[handler], times) for handler, (flow, times) in results.items()}


def is_listed(queue: str) -> bool:
    """True unless the queue is that of a single runner."""
    return not queue.startswith(RUNNER_QUEUE)


def pools_of(runners: Iterable[RunnerRow], work_keys: Iterable[WorkKey]) -> list[Pool]:
    """The slots of the live runners that do not drain, together where they serve the same work keys."""
    work_keys = list(work_keys)
    keys_by_kind: dict[tuple[object, ...], frozenset[WorkKey]] = {}
    sizes: dict[frozenset[WorkKey], int] = defaultdict(int)
    for runner in runners:
        if not runner.alive or runner.draining:
            continue
        for kind, size in runner.sizes.items():
            key = (kind, runner.handlers, runner.queues, runner.threaded, runner.in_processes)
            if key not in keys_by_kind:
                keys_by_kind[key] = frozenset(
                    work_key
                    for work_key in work_keys
                    if runner.takes(*work_key) and runner.pool_of(work_key[1]) == kind
                )
            sizes[keys_by_kind[key]] += size
    return [Pool(total, each) for each, total in sizes.items() if total and each]


async def backlog(tx: Transaction, lanes: Sequence[Lane]) -> dict[WorkKey, Count]:
    """Count the due tasks of each work key."""
    counts: dict[WorkKey, Count] = defaultdict(Count)
    for lane, (number, more) in (await due_by_lane(tx, lanes)).items():
        before = counts[lane.queue, lane.handler]
        counts[lane.queue, lane.handler] = Count(before.number + number, before.more or more)
    return dict(counts)


async def _tenant_limits(tx: Transaction, situation: Situation, lanes: Sequence[Lane]) -> tuple[TenantLimit, ...]:
    """The limits per tenant at which tenants wait, and the worst of these tenants.

    Only a tenant with running tasks is at its limit, so the running tasks name them all: the cost does not grow with
    the number of tenants. One index look-up for each of them and each lane finds its first due task.
    """
    turns = _turns_at_limits(situation.limits, lanes)
    waits = await first_of_tenants(tx, {turn for _, some in turns for turn in some})
    by_limit = [(usage, _by_tenant(some, waits)) for usage, some in turns]
    worst = [
        (usage, len(tenants), list(islice(tenants.items(), MOST_TENANTS))) for usage, tenants in by_limit if tenants
    ]
    counts = await due_of_tenants(tx, {turn for *_, listed in worst for _, some in listed for turn in some})
    more = sum(len(some) for _, some in turns) >= MOST_VISITS
    return tuple(
        TenantLimit(
            usage.words,
            usage.limits.per_tenant or 1,
            Count(number, more),
            tuple(_tenant_row(usage, tenant, some, waits, counts, situation.demands) for tenant, some in listed),
        )
        for usage, number, listed in worst
    )


def _turns_at_limits(
    limits: Iterable["LimitUsage"], lanes: Sequence[Lane]
) -> list[tuple["LimitUsage", list[TenantTurn]]]:
    """The tenants at each limit, each in the lanes of its queue or handler; MOST_VISITS turns at most."""
    lanes = [lane for lane in lanes if isinstance(lane.queue, str) and isinstance(lane.handler, str)]
    turns, rest = list[tuple["LimitUsage", list[TenantTurn]]](), MOST_VISITS
    for usage in limits:
        most, kind = usage.limits.per_tenant, int(usage.kind == "handler")
        full = [tenant for tenant, count in usage.running.items() if tenant and most is not None and count >= most]
        pairs = (TenantTurn(*lane, tenant) for tenant in full for lane in lanes if lane[kind] == usage.name)
        some = list(islice(pairs, rest))
        rest -= len(some)
        turns.append((usage, some))
    return turns


def _by_tenant(turns: Iterable[TenantTurn], waits: Mapping[TenantTurn, float]) -> dict[str, list[TenantTurn]]:
    """The turns with due tasks by tenant, the longest wait first."""
    by_tenant: dict[str, list[TenantTurn]] = defaultdict(list)
    for turn in sorted((turn for turn in turns if turn in waits), key=lambda turn: -waits[turn]):
        by_tenant[turn.tenant].append(turn)
    return by_tenant


def _tenant_row(
    usage: "LimitUsage",
    tenant: str,
    turns: Sequence[TenantTurn],
    waits: Mapping[TenantTurn, float],
    counts: Mapping[TenantTurn, Count],
    demands: Mapping[WorkKey, Demand],
) -> TenantRow:
    due = [(counts.get(turn, Count()), demands.get(turn.work_key, Demand()).seconds) for turn in turns]
    backlog = Count(sum(count.number for count, _ in due), any(count.more for count, _ in due))
    works = [count.number * seconds / MINUTE for count, seconds in due if seconds is not None]
    work = sum(works) if len(works) == len(due) else None
    return TenantRow(tenant, usage.running[tenant], backlog, waits[turns[0]], work, usage.limits.per_tenant or 1)


def _drained(minutes: float | None) -> str:
    return "unknown" if minutes is None else age(MINUTE * minutes)


TENANT_COLUMNS: tuple[Column[TenantRow], ...] = (
    Column("TENANT", lambda row: row.tenant),
    figure("RUNNING", lambda row: f"{row.running:,} of {row.most:,}"),
    figure("READY", lambda row: row.backlog),
    figure("OLDEST", lambda row: row.oldest, age),
    figure("DRAINED IN", lambda row: row.drained_in, _drained),
)


def _more(row: CapacityRow) -> str:
    return ">" if row.bound.at_least else ""


def _used(row: CapacityRow) -> str:
    used, at_least = row.utilisation, row.bound.at_least
    if used is None or (at_least and used > 1):
        return "-"
    if used > MOST_USED:
        return "over"
    return f"<{100 * min(used + 0.01, 1):.0f} %" if at_least else f"{100 * used:.0f} %"


def _work(row: CapacityRow) -> str:
    work = row.behind
    return "-" if not work or work == inf else f"{'<' if row.bound.at_least else ''}{age(MINUTE * work)}"


def _drained_in(row: CapacityRow) -> str:
    if row.drained_in != inf:
        return drained_in(row)
    return "steady" if row.is_steady else "never" if row.deciding.per_minute else "not now"


NO_ATTEMPT = "unknown: no attempt ended"

CAPACITY_COLUMNS: tuple[Column[CapacityRow], ...] = (
    Column("NAME", lambda row: row.name),
    figure("IN/MIN", lambda row: row.demand.arrivals, rate),
    figure("CAN/MIN", lambda row: f"{_more(row)}{rate(row.per_minute)}"),
    figure("PER DAY", lambda row: f"{_more(row) if row.per_day is not None else ''}{volume(row.per_day)}"),
    figure("USED", _used),
    figure("READY", lambda row: f"{row.demand.backlog:,}{'+' if row.demand.more else ''}"),
    figure("OLDEST", lambda row: age(row.demand.oldest) if row.demand.backlog else "-"),
    figure("WORK", _work),
    Column("DRAINED IN", _drained_in, fixed=True),
    Column("DECIDED BY", lambda row: row.deciding.bound.name if row.deciding.per_minute is not None else NO_ATTEMPT),
)


def drained_in(row: CapacityRow) -> str:
    """The time until the backlog is done, in words: 18m, or "not at this rate: +120 a minute (slots)"."""
    if row.drained_in is None or not row.demand.backlog:
        return "unknown" if row.demand.backlog else "-"
    if row.drained_in < inf:
        return f"{'<' if row.deciding.bound.at_least else ''}{age(MINUTE * row.drained_in)}"
    bound = row.deciding.bound.name
    if row.is_steady:
        return f"steady: about as many attempts end as arrive ({bound})"
    if not row.deciding.per_minute:
        return f"not now: {bound}"
    growth = -(row.deciding.surplus or 0.0)
    return f"not at this rate{f': +{growth:,.0f} a minute' if growth >= 1 else ''} ({bound})"
