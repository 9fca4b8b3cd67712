"""capacity: how many tasks runners can execute for each queue, how far it is behind, and when it is drained.

All times are in minutes of work. A work key is a queue and a handler. Its need is the slots that its arrivals keep
busy: attempts per minute times their mean duration (Little, 1961), as far as limits, pauses and breakers allow.
Slots that no arrivals need are left for the backlogs of the work keys that share them, in proportion to their work.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple, TypeAlias

from runner.policy.limits import LimitUsage
from runner.policy.rate import MOST_BY_RUN_TIME, Bound
from runner.policy.work_keys import WorkKey
from runner.text.sanitize import one_line

MINUTE = 60.0

DAY = 1_440.0
"""Minutes."""

STEADY = 0.05
"""The largest change of a backlog that does not count as one, as a share of the attempts."""

KeyPart: TypeAlias = Literal["queue", "handler"]


class Demand(NamedTuple):
    """The work for one queue and handler.

    Args:
        arrivals: submitted tasks per minute.
        attempts: attempts per minute that these tasks and their retries need.
        seconds: the mean duration of an attempt; None if unknown.
        backlog: due tasks.
        oldest: seconds since the first of them became due.
        more: True if there may be more due tasks.
        done: attempts per minute that ended.
        finished: tasks per minute that finished.
        per_slot: the tasks that one slot executes at the same time: those of a full chunk.
    """

    arrivals: float = 0.0
    attempts: float = 0.0
    seconds: float | None = None
    backlog: int = 0
    oldest: float = 0.0
    more: bool = False
    done: float = 0.0
    finished: float = 0.0
    per_slot: float = 1.0

    @property
    def need(self) -> float:
        """The slots that its arrivals keep busy."""
        return self.attempts * (self.seconds or 0.0) / self.per_slot / MINUTE

    @property
    def work(self) -> float:
        """Its backlog in minutes of one slot."""
        return self.backlog * (self.seconds or 0.0) / self.per_slot / MINUTE


class Pool(NamedTuple):
    """Slots of live runners that serve the same work keys.

    Args:
        size: the number of slots.
        work_keys: the queues and handlers that they serve.
    """

    size: int
    work_keys: frozenset[WorkKey]


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """The capacity of the live runners for a queue or a handler.

    Args:
        name: the queue or the handler.
        demand: its arrivals and its backlog.
        slots: the slots of the live runners that serve it.
        bound: the bound that decides; infinite if no duration is known.
        last: its queue and handler that is drained last, if that is later than for all together; its bound decides.
    """

    name: str
    demand: Demand
    slots: int
    bound: Bound
    last: "CapacityRow | None" = None

    @property
    def per_minute(self) -> float | None:
        """The attempts per minute that the runners can do; None if unknown."""
        return self.bound.per_minute if self.bound.per_minute < inf else None

    @property
    def per_day(self) -> float | None:
        """The tasks per day that the runners can do, with as many attempts for each as were measured; None if unknown.

        A task counts as one attempt if none ended. The number is unknown if attempts ended and no task finished.
        """
        done, finished = self.demand.done, self.demand.finished
        if not self.per_minute or not done:
            return self.per_minute and DAY * self.per_minute
        return DAY * self.per_minute * finished / done if finished else None

    @property
    def deciding(self) -> "CapacityRow":
        """The row whose bound decides when the backlog is done."""
        return self.last or self

    @property
    def utilisation(self) -> float | None:
        """The attempts that arrive, as a share of the capacity; None if unknown."""
        if not self.demand.attempts or self.per_minute is None:
            return None if self.demand.attempts else 0.0
        return self.demand.attempts / self.per_minute if self.per_minute else inf

    @property
    def behind(self) -> float | None:
        """Minutes that the runners need for the backlog alone; None if unknown."""
        if not self.demand.backlog or self.per_minute is None:
            return None if self.demand.backlog else 0.0
        return self.demand.backlog / self.per_minute if self.per_minute else inf

    @property
    def surplus(self) -> float | None:
        """The attempts per minute that are left for the backlog; negative if it grows; None if unknown."""
        return None if self.per_minute is None else self.per_minute - self.demand.attempts

    @property
    def is_steady(self) -> bool:
        """True if the runners do about as many attempts as arrive, so that the backlog stays as it is."""
        surplus, runs = self.deciding.surplus, bool(self.demand.attempts and self.deciding.per_minute)
        return runs and surplus is not None and abs(surplus) <= STEADY * self.demand.attempts

    @property
    def drained_in(self) -> float | None:
        """Minutes until the backlog is done while tasks arrive as now; infinite if it never is, None if unknown."""
        if not self.demand.backlog:
            return 0.0
        if self.last is not None:
            return self.last.drained_in
        if self.surplus is None or (self.bound.at_least and self.surplus <= 0):
            return None
        return self.demand.backlog / self.surplus if self.surplus > 0 else inf


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that capacity is computed from.

    Args:
        demands: the work by queue and handler.
        pools: the slots of the live runners.
        limits: the limits of queues and handlers.
        paused: the paused queues and handlers, as (kind, name).
    """

    demands: Mapping[WorkKey, Demand]
    pools: Sequence[Pool] = ()
    limits: Sequence[LimitUsage] = ()
    paused: frozenset[tuple[str, str]] = frozenset()


def capacity_rows(situation: Situation, by: KeyPart = "queue") -> list[CapacityRow]:
    """Compute the capacity of the live runners for each queue or handler.

    Args:
        situation: the work, the slots, and the limits.

    Returns:
        The rows; the last one to be drained comes first.
    """
    groups: dict[str, list[WorkKey]] = defaultdict(list)
    for work_key in situation.demands:
        groups[work_key[by == "handler"]].append(work_key)
    shares = _Shares(situation)
    rows = [_with_last(_row(name, work_keys, shares), work_keys, shares) for name, work_keys in groups.items()]
    return sorted(rows, key=lambda row: (-(row.drained_in or 0.0), -(row.utilisation or 0.0), row.name))


class _Shares:
    """The load and the backlog of each pool."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self.pools_of: dict[WorkKey, list[int]] = defaultdict(list)
        self.sizes: dict[WorkKey, int] = defaultdict(int)
        for index, pool in enumerate(situation.pools):
            for work_key in pool.work_keys:
                self.pools_of[work_key].append(index)
                self.sizes[work_key] += pool.size
        self.limits: dict[tuple[str, str], list[LimitUsage]] = defaultdict(list)
        for usage in situation.limits:
            self.limits[usage.kind, usage.name].append(usage)
        self.demands: dict[tuple[str, str], dict[WorkKey, Demand]] = defaultdict(dict)
        for work_key, demand in situation.demands.items():
            for kind, name in zip(("queue", "handler"), work_key, strict=True):
                if (kind, name) in self.limits:
                    self.demands[kind, name][work_key] = demand
        self.load: dict[int, float] = defaultdict(float)
        self.work: dict[int, float] = defaultdict(float)
        self._needs: dict[WorkKey, float] = {}
        self._works: dict[WorkKey, float] = {}
        for work_key, demand in situation.demands.items():
            most = self._most(work_key)
            self._needs[work_key], self._works[work_key] = min(demand.need, most), demand.work * (demand.need < most)
            for index in self.pools_of[work_key]:
                self.load[index] += self._needs[work_key] * self._part(work_key, index)
                self.work[index] += self._works[work_key] * self._part(work_key, index)

    def _most(self, work_key: WorkKey) -> float:
        """The slots that the limits and pauses of a work key let it keep busy."""
        seconds, per_slot = self.situation.demands[work_key].seconds, self.situation.demands[work_key].per_slot
        kinds = zip(("queue", "handler"), work_key, strict=True)
        most = min((each.per_minute for kind in kinds for each in self.bounds(*kind, [work_key], seconds)), default=inf)
        return most * seconds / per_slot / MINUTE if seconds and most < inf else inf

    def _part(self, work_key: WorkKey, index: int) -> float:
        """The part of a work key's tasks that a pool takes."""
        return self.situation.pools[index].size / self.sizes[work_key] if self.sizes[work_key] else 0.0

    def slots(self, work_keys: Sequence[WorkKey]) -> tuple[int, float]:
        """The slots that serve some work keys, and how many of these are theirs."""
        pools = sorted({index for work_key in work_keys for index in self.pools_of[work_key]})
        total, own = 0, 0.0
        for index in pools:
            size = self.situation.pools[index].size
            mine = [work_key for work_key in work_keys if index in self.pools_of[work_key]]
            load = sum(self._needs[work_key] * self._part(work_key, index) for work_key in mine)
            work = sum(self._works[work_key] * self._part(work_key, index) for work_key in mine)
            total += size
            if self.load[index] >= size:  # nothing is left, and the loads share the slots
                own += size * load / self.load[index] if self.load[index] else 0.0
            else:
                own += load + (size - self.load[index]) * (work / self.work[index] if work else 1.0)
        return total, own

    def bounds(self, kind: str, name: str, work_keys: Sequence[WorkKey], seconds: float | None) -> Iterable[Bound]:
        """The pauses and limits of a queue or a handler, for its tasks in some work keys."""
        if (kind, name) in self.situation.paused:
            yield Bound(f"{kind} {one_line(name)} is paused", 0.0)
        for usage in self.limits.get((kind, name), ()):
            mine, same = set(work_keys), self.demands[kind, name]
            others = sum(demand.attempts for work_key, demand in same.items() if work_key not in mine)
            own = sum(self.situation.demands[work_key].attempts for work_key in work_keys)
            share = own / (own + others) if own + others else 1 / (1 + len(same.keys() - mine))
            for bound in _allowed(usage, seconds):
                yield Bound(bound.name, max(bound.per_minute - others, bound.per_minute * share))


def _allowed(usage: LimitUsage, seconds: float | None) -> Iterable[Bound]:
    """The attempts per minute that the limits of a queue or a handler allow; tenants are not taken into account."""
    if usage.breaker is not None:
        yield Bound(f"the breaker of {usage.words} is open", 0.0)
    if (limits := usage.limits).running is not None and seconds:
        yield Bound(f"{usage.words}: at most {limits.running:,} running", limits.running * MINUTE / seconds)
    if limits.rate is not None:
        yield Bound(f"{usage.words}: {limits.rate} started", limits.rate.tokens * MINUTE / limits.rate.period)


def _row(name: str, work_keys: Sequence[WorkKey], shares: _Shares) -> CapacityRow:
    demands = [shares.situation.demands[work_key] for work_key in work_keys]
    total = _sum(demands)
    size, own = shares.slots(work_keys)
    handlers = sorted({key[1] for key in work_keys if shares.situation.demands[key].backlog or not total.backlog})
    more = f" and {len(handlers) - 1} more" if len(handlers) > 1 else ""
    bounds = [_of_slots(own, total) if size else Bound(f"no runner takes {one_line(handlers[0])}{more}", 0.0)]
    for index, kind in enumerate(("queue", "handler")):
        by_name: dict[str, list[WorkKey]] = defaultdict(list)
        for work_key in work_keys:
            by_name[work_key[index]].append(work_key)
        tightest = []
        for each, some in by_name.items():
            seconds = _sum([shares.situation.demands[work_key] for work_key in some]).seconds
            group_bounds = [Bound("", inf), *shares.bounds(kind, each, some, seconds)]
            tightest.append(min(group_bounds, key=lambda bound: bound.per_minute))
        # Each of several queues or handlers has bounds of its own, so that together they do the sum.
        least = min(tightest, key=lambda bound: bound.per_minute)
        bounds.append(Bound(least.name, sum(bound.per_minute for bound in tightest)))
    return CapacityRow(name, total, size, min(bounds, key=lambda bound: bound.per_minute))


def _of_slots(slots: float, demand: Demand) -> Bound:
    """The attempts per minute that some slots do; the run time decides up to MOST_BY_RUN_TIME."""
    if demand.seconds is None:
        return Bound("slots", inf)
    if demand.seconds and (most := slots * demand.per_slot * MINUTE / demand.seconds) <= MOST_BY_RUN_TIME:
        return Bound("slots", max(most, demand.done))
    # If a task has been due for a minute, this machine may do fewer: only the attempts that ended are certain.
    least = demand.done if demand.oldest > MINUTE else max(MOST_BY_RUN_TIME, demand.done)
    return Bound("claims and settles", least, at_least=not demand.backlog or demand.done < MOST_BY_RUN_TIME)


def _with_last(row: CapacityRow, work_keys: Sequence[WorkKey], shares: _Shares) -> CapacityRow:
    """A row whose bound is that of the work key that is drained last, if it is drained later than all together."""
    last = max((_row(row.name, [work_key], shares) for work_key in work_keys), key=lambda each: each.drained_in or 0.0)
    is_later = last.drained_in == inf if row.drained_in is None else (last.drained_in or 0.0) > row.drained_in
    return replace(row, last=last) if is_later else row


def _sum(demands: Sequence[Demand]) -> Demand:
    """The sum of some work; the mean duration is weighted by the attempts, or by the backlogs without any."""
    samples = [each for each in demands if each.seconds is not None]
    choices = ([each.attempts for each in samples], [float(each.backlog) for each in samples])
    weights = next(filter(any, choices), [1.0] * len(samples))
    weighted = [(each, each.seconds * weight) for each, weight in zip(samples, weights, strict=True) if each.seconds]
    seconds, of_slots = sum(of for _, of in weighted), sum(of / each.per_slot for each, of in weighted)
    return Demand(
        sum(each.arrivals for each in demands),
        sum(each.attempts for each in demands),
        seconds / sum(weights) if samples else None,
        sum(each.backlog for each in demands),
        max((each.oldest for each in demands), default=0.0),
        any(each.more for each in demands),
        sum(each.done for each in demands),
        sum(each.finished for each in demands),
        seconds / of_slots if of_slots else 1.0,
    )
