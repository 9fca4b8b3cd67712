"""simulation: what another configuration would do with the same work, as a discrete-event simulation in memory.

The claim orders, limits and rates are those of the runners: this module only moves tasks between them. Everything is
pure: the same work, configuration and seed give the same result. The time is in seconds from the start.

A failed attempt comes back after the delay of the retry plan of its handler. Attempts fail at random, each with the
same share, and the due tasks at the start are in their first attempt.

Above a number of tasks they are simulated in batches: the tasks of a batch come at the same time, and run one after the
other in one slot. The slots, limits and rates stay as they are.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, count
from math import ceil, inf
from random import Random
from typing import Any, NamedTuple

from runner.model.task import Priority
from runner.policy.capacity import MINUTE, Pool
from runner.policy.claim_order import ClaimOrder, WeightedOrder
from runner.policy.histogram import Histogram, merged
from runner.policy.lanes import Lane, LimitName, limits_of
from runner.policy.limits import LIMITS, LimitUsage, SharedLimits, retry_in, room
from runner.policy.queue_shares import QueueShares
from runner.policy.retry import Retries
from runner.policy.work_keys import WorkKey

MOST_TASKS = 100_000
"""Maximum number of tasks to simulate one by one."""


class Backlog(NamedTuple):
    """The due tasks of a lane, spread evenly over their waits.

    Args:
        oldest: seconds since the first one became due.
    """

    tasks: int
    oldest: float


class TaskKind(NamedTuple):
    """The priority and the tenant of tasks, and how many of a sample have them."""

    priority: int
    tenant: str | None
    number: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The work to simulate.

    Args:
        minutes: the length of the simulation.
        arrivals: the tasks that arrive in each minute from the start, by work key.
        backlogs: the due tasks at the start.
        durations: the durations of attempts by work key.
        kinds: the priorities and tenants of the tasks of a work key.
        retries: how the tasks of a work key fail and come back.
    """

    minutes: int
    arrivals: Mapping[tuple[int, WorkKey], int]
    backlogs: Mapping[Lane, Backlog]
    durations: Mapping[WorkKey, Histogram]
    kinds: Mapping[WorkKey, Sequence[TaskKind]]
    retries: Mapping[WorkKey, Retries] = field(default_factory=dict)

    @property
    def tasks(self) -> int:
        """The number of all tasks."""
        return sum(self.arrivals.values()) + sum(each.tasks for each in self.backlogs.values())


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration to simulate.

    Args:
        limits: the limits of queues and handlers.
        paused: the paused queues and handlers: their tasks wait.
    """

    order: ClaimOrder
    pools: Sequence[Pool]
    limits: Mapping[LimitName, SharedLimits] = field(default_factory=dict)
    paused: frozenset[LimitName] = frozenset()


@dataclass(slots=True)
class QueueResult:
    """The simulation of one queue.

    Args:
        retries: the failed attempts that came back.
        longest: the longest wait in seconds from the due time to the start, or to the end of the simulation.
        drained: seconds until no task of it waited for the first time; None if tasks waited all the time.
        remaining: the due tasks that wait at the end.
    """

    tasks: int = 0
    started: int = 0
    retries: int = 0
    longest: float = 0.0
    drained: float | None = None
    remaining: int = 0


def in_order(order: ClaimOrder, lanes: Mapping[Lane, float], now: float) -> list[Lane]:
    """Lanes in the order of claims, given by the due times of their first tasks."""
    return sorted(lanes, key=lane_key_in(order, lanes, now))


def lane_key_in(order: ClaimOrder, lanes: Mapping[Lane, float], now: float) -> Callable[[Lane], Any]:
    """The sort key of lanes in the order of claims; see `in_order`."""
    return lambda lane: (order.lane_key(lane.priority_in(order), lanes[lane] - now), lanes[lane], lane)


class Waiting(NamedTuple):
    """Tasks that come together, usually one, and their next attempt, from 1."""

    due: float
    tasks: int
    tenant: str | None
    attempt: int = 1


class SimulatedLane:
    """The waiting tasks of a lane: first in, first out, and in turns of tenants where tenants have a limit.

    A round has a turn of the tasks without a tenant and one of each tenant in the order of their names, as in
    runner.store.claim.tenants.

    Args:
        has_turns: True if tenants have a limit.
    """

    def __init__(self, *, has_turns: bool) -> None:
        self._has_turns = has_turns
        self._by_tenant: dict[str, deque[Waiting]] = defaultdict(deque)
        self._cursor: str | None = None

    def __bool__(self) -> bool:
        return bool(self._by_tenant)

    def __iter__(self) -> Iterator[Waiting]:
        return (item for items in self._by_tenant.values() for item in items)

    @property
    def due(self) -> float:
        """The time of the first task."""
        if len(self._by_tenant) == 1:
            return next(iter(self._by_tenant.values()))[0].due
        return min(items[0].due for items in self._by_tenant.values())

    def add(self, item: Waiting) -> None:
        """Add tasks; they come in the order of their time."""
        self._by_tenant[(item.tenant or "") if self._has_turns else ""].append(item)

    def take(self, may_start: Callable[[str], bool]) -> Waiting | None:
        """Take the next tasks; None if no tenant has room."""
        names = sorted(self._by_tenant) if self._has_turns else list(self._by_tenant)
        later = [name for name in names if self._cursor is not None and name > self._cursor]
        for name in [*later, *(name for name in names if name not in later)]:
            if not self._has_turns or may_start(name):
                items = self._by_tenant[name]
                item = items.popleft()
                self._cursor = name
                if not items:
                    del self._by_tenant[name]
                return item
        return None


class Simulation:
    """A simulation of a configuration.

    Args:
        seed: of the random durations, failures, priorities and tenants.
        most: maximum number of tasks to simulate one by one.
    """

    def __init__(self, workload: Workload, configuration: Configuration, seed: int = 1, most: int = MOST_TASKS) -> None:
        self.results: dict[str, QueueResult] = defaultdict(QueueResult)
        self.batch = max(1, ceil(workload.tasks / most))
        self._work, self._setup = workload, configuration
        self._random = Random(seed)  # noqa: S311 - guards nothing
        self._end = workload.minutes * MINUTE
        self._lines: dict[Lane, SimulatedLane] = {}
        self._waiting: dict[str, int] = defaultdict(int)
        self._free = [pool.size for pool in configuration.pools]
        self._running: dict[LimitName, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._spent: dict[LimitName, float] = {}
        self._wakes: dict[LimitName, float] = {}
        order = configuration.order
        self._shares = [QueueShares(order.weight) for _ in self._free] if isinstance(order, WeightedOrder) else []
        everything = merged(workload.durations.values())
        self._times: dict[WorkKey, tuple[list[float], list[int]]] = defaultdict(lambda: _cumulated(everything))
        self._times |= {work_key: _cumulated(each) for work_key, each in workload.durations.items() if each.number}
        self._events: list[tuple[float, int, Lane | None, int, Waiting | None]] = []
        self._numbers = count()

    def run(self) -> Mapping[str, QueueResult]:
        """Simulate, and return the results by queue."""
        for work_key, each in self._items():
            heappush(self._events, (max(0.0, each.due), next(self._numbers), work_key, -1, each))
        while self._events and self._events[0][0] <= self._end:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, _, lane, pool, item = heappop(self._events)
                if lane is not None and item is not None:
                    self._arrive(lane, item) if pool < 0 else self._finish(lane, pool, item, now)
            self._claim(now)
        for lane, line in self._lines.items():
            result = self.results[lane.queue]
            result.longest = max([result.longest, *(self._end - item.due for item in line)])
            result.remaining += sum(item.tasks for item in line)
        return self.results

    def _items(self) -> Iterator[tuple[Lane, Waiting]]:
        """All tasks: first the backlogs, then the arrivals, in the order of their time."""
        items: list[tuple[Lane, Waiting]] = []
        for lane, backlog in sorted(self._work.backlogs.items()):
            work_key, step = (lane.queue, lane.handler), backlog.oldest / backlog.tasks if backlog.tasks else 0.0
            for index, number in self._batches(backlog.tasks):
                kind = self._kind(work_key, lane.priority)
                items.append((lane, Waiting(index * step - backlog.oldest, number, kind.tenant)))
        for (minute, work_key), tasks in sorted(self._work.arrivals.items()):
            for index, number in self._batches(tasks):
                kind = self._kind(work_key)
                due = MINUTE * (minute + index / tasks)
                items.append((Lane(*work_key, kind.priority), Waiting(due, number, kind.tenant)))
        for lane, item in items:
            self.results[lane.queue].tasks += item.tasks
        items.sort(key=lambda each: each[1].due)
        yield from items

    def _batches(self, tasks: int) -> Iterator[tuple[int, int]]:
        """The index of the first task of each batch, and the number of its tasks."""
        for index in range(0, tasks, self.batch):
            yield index, min(self.batch, tasks - index)

    def _kind(self, work_key: WorkKey, priority: int | None = None) -> TaskKind:
        """A random kind of task of a work key, with this priority if it is given and known."""
        kinds = self._work.kinds.get(work_key, ())
        same = [kind for kind in kinds if priority in (None, kind.priority)]
        if not same:
            return TaskKind(priority or Priority.DEFAULT, None, 1)
        return self._random.choices(same, [kind.number for kind in same])[0]

    def _arrive(self, lane: Lane, item: Waiting) -> None:
        if lane not in self._lines:
            keys = limits_of(lane)
            turns = any(limits.per_tenant for key in keys if (limits := self._setup.limits.get(key)))
            self._lines[lane] = SimulatedLane(has_turns=turns)
        self._lines[lane].add(item)
        self._waiting[lane.queue] += 1
        self.results[lane.queue].retries += item.tasks * (item.attempt > 1)

    def _finish(self, lane: Lane, pool: int, item: Waiting, now: float) -> None:
        self._free[pool] += 1
        for key in limits_of(lane):
            self._running[key][item.tenant or ""] -= 1
        if (retries := self._work.retries.get((lane.queue, lane.handler))) is None:
            return
        failed = sum(self._random.random() < retries.share for _ in range(item.tasks))
        delay = retries.delay(item.attempt, self._random.random()) if failed else None
        if delay is not None:
            again = Waiting(now + delay, failed, item.tenant, item.attempt + 1)
            heappush(self._events, (again.due, next(self._numbers), lane._replace(retried=True), -1, again))

    def _claim(self, now: float) -> None:
        """Let every pool take as many tasks as fit."""
        for index, pool in enumerate(self._setup.pools):
            while self._free[index] > 0:
                lanes = [
                    lane for lane, line in self._lines.items() if line and (lane.queue, lane.handler) in pool.work_keys
                ]
                lanes = [lane for lane in lanes if self._room(lane, now) > 0]
                if not lanes or not self._claim_from(index, lanes, now):
                    break
        for queue, result in self.results.items():
            if result.drained is None and not self._waiting[queue]:
                result.drained = now

    def _claim_from(self, pool: int, lanes: Sequence[Lane], now: float) -> int:
        """Start the next tasks of some lanes; return how many."""
        order = self._setup.order
        dues = {lane: self._lines[lane].due for lane in lanes}
        if not self._shares and self._start(pool, min(dues, key=lane_key_in(order, dues, now)), now):
            return 1
        lanes = in_order(order, dues, now)
        if not self._shares:
            return next((1 for lane in lanes if self._start(pool, lane, now)), 0)
        started, shares = 0, self._shares[pool]
        for some, tasks in shares.divide(lanes, self._free[pool]):
            for _ in range(tasks):
                candidates = in_order(order, {lane: self._lines[lane].due for lane in some if self._lines[lane]}, now)
                lane = next((lane for lane in candidates if self._start(pool, lane, now)), None)
                if lane is None:
                    break
                shares.record([lane.queue])
                started += 1
        return started

    def _start(self, pool: int, lane: Lane, now: float) -> bool:
        """Start the next task of a lane; False if its limits have no room."""
        if self._room(lane, now) <= 0:
            return False
        item = self._lines[lane].take(lambda tenant: self._tenant_may_start(lane, tenant, now))
        if item is None:
            return False
        self._free[pool] -= 1
        self._waiting[lane.queue] -= 1
        for key in limits_of(lane):
            self._running[key][item.tenant or ""] += 1
            if (limits := self._setup.limits.get(key)) and limits.rate:
                self._spent[key] = limits.rate.after(self._spent.get(key), now, item.tasks)
        result = self.results[lane.queue]
        result.started += item.tasks * (item.attempt == 1)
        result.longest = max(result.longest, now - item.due)
        times, totals = self._times[lane.queue, lane.handler]
        seconds = sum(self._random.choices(times, cum_weights=totals, k=item.tasks)) if times else 0.0
        heappush(self._events, (now + seconds, next(self._numbers), lane, pool, item))
        return True

    def _usages(self, lane: Lane, now: float) -> Iterator[tuple[LimitName, LimitUsage]]:
        for key in limits_of(lane):
            if limits := self._setup.limits.get(key):
                yield key, LimitUsage(*key, limits, now, self._spent.get(key), self._running[key])

    def _room(self, lane: Lane, now: float) -> int:
        """The number of tasks of a lane that may start; a time at which a rate allows the next one is an event."""
        if not self._setup.limits and not self._setup.paused:
            return 1
        if not self._setup.paused.isdisjoint(limits_of(lane)):
            return 0
        least = 1
        for key, usage in self._usages(lane, now):
            if room(usage) <= 0:
                least = 0
                wait = retry_in(usage)
                if wait < inf and self._wakes.get(key, -1.0) <= now:
                    self._wakes[key] = now + wait
                    heappush(self._events, (now + wait, next(self._numbers), None, -1, None))
        return least

    def _tenant_may_start(self, lane: Lane, tenant: str, now: float) -> bool:
        usages = [usage for _, usage in self._usages(lane, now)]
        return not any(limit.of_tenants and limit.full(usage, tenant or None) for usage in usages for limit in LIMITS)


def _cumulated(histogram: Histogram) -> tuple[list[float], list[int]]:
    """The mean times of the bins, and the cumulated numbers of times."""
    bins = [each for _, each in sorted(histogram.bins.items()) if each.number]
    return [each.seconds / each.number for each in bins], list(accumulate(each.number for each in bins))
