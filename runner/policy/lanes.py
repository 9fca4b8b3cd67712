"""Lanes: the order in which a runner claims from its queues, and the position that it has reached in each."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any, NamedTuple, TypeAlias

from runner.model.task import DEFAULT_QUEUE, Claimed, NewTask, Priority
from runner.policy.claim_order import STRICT, ClaimOrder
from runner.policy.positions import FIRST_ID, Advance, LanePosition, TenantPositions

RUNNER_QUEUE = "@"
"""The first character of the queues of single runners, where the tasks of a broadcast are."""

RECALLED = 8
"""Maximum number of lanes to remember: a claim right after a submit must not query many lanes."""

CLAIMED = 500
"""Maximum number of lanes of one claim, more than the tasks of a batch. A survey returns lanes in order, so that the
first tasks of n lanes are those of the first n."""


class Lane(NamedTuple):
    """Tasks of one queue, handler, priority and list of hosts, fresh or retried, claimed in the order of their time."""

    queue: str
    handler: str
    priority: int
    hosts: str = ""
    """The hosts that may take them, as tasks store them; empty for all."""
    retried: bool = False
    """True for tasks with a counted attempt."""

    def priority_in(self, order: ClaimOrder) -> int:
        """The priority of the lane in an order."""
        return order.effective(self.priority, self.retried)


LimitName: TypeAlias = tuple[str, str]
"""The kind and the name of a queue or a handler."""


def limits_of(lane: Lane) -> tuple[LimitName, LimitName]:
    """The queue and the handler of a lane, whose limits, rates and pauses concern its tasks."""
    return ("queue", lane.queue), ("handler", lane.handler)


def lane_of(task: Claimed) -> Lane:
    """The lane of a claimed task."""
    return Lane(task.queue, task.handler, task.priority, task.hosts, task.attempt > 1)


def lane_of_new(task: NewTask) -> Lane:
    """The lane of a task to submit, with the defaults of the table."""
    return Lane(task.queue or DEFAULT_QUEUE, task.handler, task.priority or Priority.DEFAULT, task.hosts or "")


def serves(queue: str, queues: Collection[str], own: str) -> bool:
    """True if a runner claims from a queue.

    Args:
        queues: the queues of the runner; empty for all.
        own: the queue of this runner alone. It never claims from those of others.
    """
    if queue.startswith(RUNNER_QUEUE):
        return queue == own
    return not queues or queue in queues


def runner_queue(runner_id: int) -> str:
    """Return the queue of a single runner."""
    return f"{RUNNER_QUEUE}{runner_id}"


class Head(NamedTuple):
    """The first waiting task of a lane, from a survey.

    Args:
        run_at: time at which the task is due, in the database's own form.
        wait: seconds until then by the database's clock; zero or less if it is due.
        paused: True if the queue or the handler is paused.
        refused: id of its first task if no claim ever takes that task, else None.
        limited: True if the queue or the handler has a limit.
        has_order_key: True if its first task has an order key, so that it may wait for the end of another task.
    """

    lane: Lane
    run_at: Any
    wait: float
    paused: bool
    refused: int | None = None
    limited: bool = False
    has_order_key: bool = False


FULL = 1.0
"""Seconds until the next try of a full lane, in case that a task of another runner has ended."""

LOOK_AGAIN = 0.1
"""Seconds until a claim looks again for tasks without a tenant, after one that found none."""


SOONEST = 0.01
"""The shortest wait in seconds, also for a lane whose time has come while no slot is free."""


@dataclass
class LaneSchedule:
    """The due lanes with limits, and when to try each: one without room waits for the end of a task, or for a time."""

    due: dict[Lane, None] = field(default_factory=dict)
    """In the order of claims."""
    cursors: dict[Lane, str] = field(default_factory=dict)
    """The last tenant that had a turn."""
    tenants: dict[Lane, TenantPositions] = field(default_factory=dict)
    """The positions by tenant of lanes with a limit per tenant, while surveys are slow."""
    _until: dict[Lane, float] = field(default_factory=dict)
    _full: set[Lane] = field(default_factory=set)
    """Those of `_until` that wait for the end of a task."""
    _ended: set[tuple[str, str]] | None = None
    """The queue and handler of tasks that ended during a claim, which may have counted them; None between claims."""
    _limited: frozenset[Lane] = frozenset()

    def survey(self, lanes: Iterable[Lane], limited: Iterable[Lane]) -> None:
        """Start over with the result of a survey.

        Args:
            lanes: the due lanes with limits, in order.
            limited: all lanes with limits.
        """
        self.due, self._limited = dict.fromkeys(lanes), frozenset(limited)
        self._until = {lane: until for lane, until in self._until.items() if lane in self.due}
        self._full &= self._until.keys()
        self.cursors = {lane: tenant for lane, tenant in self.cursors.items() if lane in self.due}
        self.tenants.clear()

    def add(self, lane: Lane) -> None:
        """Treat a lane as due, and as one with limits."""
        self.due[lane] = None
        self._limited |= {lane}

    def forget_tenants(self, lately: Collection[Lane]) -> None:
        """Forget the tenants of the lanes that are neither due nor among these."""
        self.tenants = {lane: each for lane, each in self.tenants.items() if lane in self.due or lane in lately}

    def recall(self, lanes: Iterable[Lane]) -> list[Lane]:
        """Treat the lanes with limits among these as due, and return the others."""
        lanes = list(lanes)
        self.due |= {lane: None for lane in lanes if lane in self._limited}
        return [lane for lane in lanes if lane not in self._limited]

    def has_limits(self, lane: Lane) -> bool:
        """True if a lane had limits in the last survey."""
        return lane in self._limited

    def waits(self, lane: Lane) -> bool:
        """True if a lane without room waits for some."""
        return lane in self._until

    def ready(self, now: float) -> list[Lane]:
        """The lanes to try, in order; `now` in monotonic seconds."""
        return [lane for lane in self.due if self._until.get(lane, 0.0) <= now]

    def wait(self, now: float) -> float | None:
        """Seconds until the first lane that waits is tried again; None if none waits. `now` in monotonic seconds."""
        waits = [until - now for lane, until in self._until.items() if lane in self.due]
        return max(SOONEST, min(waits)) if waits else None

    def record(
        self,
        lanes: Iterable[Lane],
        waits: Mapping[Lane, float],
        empty: Iterable[Lane],
        cursors: Mapping[Lane, str | None],
        now: float,
        further: Collection[Lane] = (),
    ) -> None:
        """Record the result of a claim.

        Args:
            waits: seconds until a lane without room may have some; infinite until a task ends.
            empty: lanes without due tasks.
            cursors: the last tenants that had a turn; None after the last one of a round.
            now: monotonic seconds.
            further: lanes in which the next claim looks further for tasks without a tenant.
        """
        for lane, tenant in cursors.items():
            self.cursors.pop(lane, None)
            if tenant is not None:
                self.cursors[lane] = tenant
        ended, self._ended = self._ended or set(), None
        for lane in lanes:
            self._until.pop(lane, None)
            self._full.discard(lane)
            has_ended = any(lane.queue == queue or lane.handler == handler for queue, handler in ended)
            if lane in waits and not (waits[lane] == inf and has_ended):
                self._until[lane] = now + min(waits[lane], LOOK_AGAIN if lane in further else FULL)
                self._full |= {lane} if waits[lane] == inf else set()
        for lane in empty:
            self.due.pop(lane, None)

    def begin(self) -> None:
        """Begin a claim; `record` takes its result."""
        self._ended = set()

    def reopen(self, queue: str, handler: str) -> bool:
        """Try the lanes of a queue and of a handler again because one of their tasks has ended; False if none waits."""
        if self._ended is not None:
            self._ended.add((queue, handler))
        lanes = {lane for lane in self._full if lane.queue == queue or lane.handler == handler}
        for lane in lanes:
            self._until.pop(lane, None)
        self._full -= lanes
        return bool(lanes)


@dataclass
class Lanes:
    """The due lanes of a runner, each with the position that its claims have reached.

    Claimed rows leave dead entries at the head of the index until vacuum removes them, and an old snapshot of another
    client can delay that for hours. A claim therefore starts where the last one ended. The next survey starts over, and
    finds tasks before that position: those with an earlier time, released ones, and those of a lane that was empty.
    A submit starts over too. While surveys are slow, it continues from an old position of each lane instead, and a
    survey runs beside the claims; see `find`.

    Args:
        accepts: returns whether this runner claims from a lane.
        start: position before every task, in the database's own form.
        order: order in which the runner claims.
    """

    accepts: Callable[[Lane], bool]
    start: LanePosition
    order: ClaimOrder = STRICT
    positions: dict[Lane, LanePosition] = field(default_factory=dict)
    """Positions in the lanes that are believed to have due tasks."""
    heads: dict[Lane, LanePosition] = field(default_factory=dict)
    """Lanes that the last survey found due: each at its start, or at its first task if the survey was slow."""
    lately: dict[Lane, None] = field(default_factory=dict)
    """Lanes that recently had due tasks, the most recent last; at most RECALLED."""
    limited: LaneSchedule = field(default_factory=LaneSchedule)
    """The due lanes with limits; they are not in `positions`."""
    _advances: dict[Lane, Advance] = field(default_factory=dict)
    """The positions that claims from the lanes in `lately` have passed."""
    _waits: dict[Lane, float] = field(default_factory=dict)
    """Seconds from the last survey until the first task of each lane was due."""
    next_due: float | None = None
    """Seconds from the last survey until another accepted lane becomes due; None without one."""

    def survey(self, heads: Iterable[Head], position: Callable[[Any], Any] | None = None) -> None:
        """Start over with the result of a survey.

        Args:
            position: converts the time of a head to the form of positions, so that claims start at the first tasks
                that a slow survey found; None to start before all tasks.
        """
        claimable, due = self._record(heads)
        self.limited.survey(
            (head.lane for head in due if head.limited), (head.lane for head in claimable if head.limited)
        )
        self.positions = {lane: position for lane, position in self.heads.items() if lane not in self.limited.due}
        for lane in self.limited.due:  # their claims start over too
            self._advances.pop(lane, None)
        self._remember(reversed(list(islice(self.heads, RECALLED))))
        if position is not None:
            self.positions = {}
            self.find(due, position)
        self.next_due = min((head.wait for head in claimable if head.wait > 0), default=None)

    def _record(self, heads: Iterable[Head]) -> tuple[list[Head], list[Head]]:
        """Return the lanes of a survey that this runner claims from, and those that are due in the order of claims."""
        claimable = [head for head in heads if not head.paused and self.accepts(head.lane)]
        due = [head for head in claimable if head.wait <= 0]
        due.sort(key=lambda head: self.order.lane_key(head.lane.priority_in(self.order), head.wait))
        self.heads = {head.lane: self.start for head in due}
        self._waits = {head.lane: head.wait for head in due}
        return claimable, due

    def find(self, heads: Iterable[Head], position: Callable[[Any], Any]) -> float | None:
        """Add the due lanes of a survey that ran beside claims: each from its first task on, if no claim has passed it.

        The lane that becomes due next is remembered, so that `recall` treats it as due then.

        Args:
            heads: those that are not due yet come last, the earliest first.
            position: converts the time of a head to the form of positions.

        Returns:
            Seconds until another lane becomes due; None without one.
        """
        claimable, due = self._record(heads)
        later = [head for head in claimable if head.wait > 0]
        self._remember(head.lane for head in [*later[:1], *reversed(due[:RECALLED])])
        for head in due:
            first, passed = LanePosition(position(head.run_at), FIRST_ID), self._advances.get(head.lane)
            self.heads[head.lane] = first
            at = first if passed is None or first < passed.old else passed.old
            if head.lane in self.lately and at == first:  # others may come before a later one
                self._advances[head.lane] = Advance.at(first)
            if head.limited:
                self.limited.add(head.lane)
            else:
                self.positions[head.lane] = min(at, self.positions.get(head.lane, at))
        self.positions = dict(sorted(self.positions.items(), key=lambda item: self.key(item[0])))
        self.limited.due = dict.fromkeys(sorted(self.limited.due, key=self.key))
        self.limited.forget_tenants(self.lately)
        return min((head.wait for head in later), default=None)

    def leave(self, next_due: float | None) -> None:
        """Forget the lanes of the last survey: a claim saw that no other task is due.

        Args:
            next_due: seconds until the next one; None without one.
        """
        self.heads, self._waits, self.next_due = {}, {}, next_due

    def expect(self, lanes: Iterable[Lane]) -> None:
        """Remember lanes to which tasks were submitted; `recall` treats them as due, before a survey finds them."""
        self._remember(lane for lane in lanes if self.accepts(lane))

    def _remember(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self.lately.pop(lane, None)
            self.lately[lane] = None
        for lane in list(self.lately)[:-RECALLED]:
            del self.lately[lane]
            self._advances.pop(lane, None)

    def key(self, lane: Lane) -> Any:
        """The sort key of a lane in the order of claims; a lane that became due after the survey is due now."""
        return self.order.lane_key(lane.priority_in(self.order), self._waits.get(lane, 0.0))

    def recall(self, *, from_start: bool = True) -> None:
        """Treat the lanes that recently had due tasks as due: a new task is most likely in one of them.

        Args:
            from_start: False to continue from the old position of each lane.
        """
        accepted = filter(self.accepts, self.lately)
        lately = sorted(accepted, key=lambda lane: self.order.rank(lane.priority_in(self.order)))
        recalled = {lane: self.start for lane in self.limited.recall(lately) if lane not in self.positions}
        if not from_start:
            recalled |= {lane: passed.old for lane, passed in self._advances.items() if lane in recalled}
        self.positions = recalled | self.positions
        self.limited.due = dict.fromkeys(sorted(self.limited.due, key=self.key))

    def passed(self, lanes: Iterable[Lane]) -> dict[Lane, LanePosition]:
        """The old positions of lanes, from which limited claims continue while surveys are slow."""
        return {lane: self._advances[lane].old for lane in lanes if lane in self._advances}

    @staticmethod
    def first(positions: Mapping[Lane, LanePosition], accepts: Callable[[Lane], bool]) -> dict[Lane, LanePosition]:
        """Return the lanes to claim from, in order, at most CLAIMED: the next tasks are in them.

        Args:
            accepts: returns whether to claim from a lane.
        """
        return dict(islice(((lane, position) for lane, position in positions.items() if accepts(lane)), CLAIMED))

    def advance(self, last: Mapping[Lane, LanePosition], now: float) -> None:
        """Move each lane past the last task that a claim took from it; `now` in monotonic seconds."""
        for lane, position in last.items():
            if lane in self.positions:
                self.positions[lane] = max(self.positions[lane], position)
            if lane in self.lately:
                before = self._advances.get(lane)
                self._advances[lane] = (
                    before.on(position, now) if before else Advance(now, self.start, position, position)
                )

    def remove(self, lanes: Iterable[Lane]) -> None:
        """Forget the lanes of a claim that returned fewer tasks than requested: they have no more due tasks."""
        for lane in lanes:
            self.positions.pop(lane, None)

    def is_due(self, lane: Lane) -> bool:
        """True if a lane is believed to have due tasks."""
        return lane in self.positions or lane in self.limited.due

    def restrict(self, *, heads: bool = False) -> None:
        """Forget the due lanes that are no longer accepted; with `heads`, also as lanes of suspects."""
        if heads:
            self.heads = {lane: position for lane, position in self.heads.items() if self.accepts(lane)}
        self.positions = {lane: position for lane, position in self.positions.items() if self.accepts(lane)}
        self.limited.due = {lane: None for lane in self.limited.due if self.accepts(lane)}

    def has_ready(self, now: float) -> bool:
        """True if there are lanes to claim from; `now` in monotonic seconds."""
        return bool(self.positions or self.limited.ready(now))

    def __bool__(self) -> bool:
        return bool(self.positions)
