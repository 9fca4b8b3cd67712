"""claim policy: the tasks that a claim takes, its order, the reasons to skip a task, and the shares of queues.

The conditions are in runner.policy.claim_conditions and runner.policy.limits, the orders in runner.policy.claim_order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from heapq import heapify, heapreplace
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema.task import Condition
from runner.policy.claim_conditions import (
    AttemptsLeft,
    BelowBounds,
    ClaimCondition,
    Due,
    InOrder,
    Isolation,
    NotExpired,
    NotPaused,
)
from runner.policy.claim_facts import ClaimFacts, ClaimScope, Explanation, RemedyStep
from runner.policy.claim_order import STRICT, ClaimOrder
from runner.policy.lanes import Lane
from runner.policy.limits import WithinLimits
from runner.policy.selection import selected


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    """An order, and the conditions that a task must meet.

    Args:
        order: the order in which due tasks are claimed.
        due: the condition about the time, which the index serves.
        conditions: all conditions but isolation, in the order in which `why` explains them.
        isolation: the condition that divides the tasks between the two claims.
    """

    order: ClaimOrder
    due: Due
    conditions: Sequence[ClaimCondition]
    isolation: Isolation

    def of_lane(self, lane: Any, scope: ClaimScope) -> list[Condition]:
        """The SQL that a lane's tasks may be claimed, given by the lane's columns: a claim checks it once per lane."""
        queue_held, handler_held = (None, None) if scope.holds is None else (lane[name] for name in scope.holds)
        return [
            ~self._stops(scope.tables.queue, lane.queue, queue_held),
            ~self._stops(scope.tables.handler, lane.handler, handler_held),
        ]

    def _stops(self, registry: sa.Table, name: Any, locked: Condition | None) -> Condition:
        """The SQL that the queue or the handler of a lane stops its tasks."""
        stops = [part for condition in self.conditions for part in condition.of_registry(registry, locked)]
        return sa.exists().where(registry.c.name == name, sa.or_(*stops))

    def of_task(self, task: Any, scope: ClaimScope) -> list[Condition]:
        """The SQL that a claim checks row by row, without the due time and isolation."""
        others = (condition for condition in self.conditions if condition is not self.due)
        return [part for condition in others for part in condition.of_task(task, scope)]

    def is_never_claimed(self, task: Any, scope: ClaimScope) -> Condition:
        """The SQL that no claim takes a task before an operator changes something, without its due time."""
        persistent = (condition for condition in self.conditions if condition.persistent and condition is not self.due)
        return ~sa.and_(*(part for condition in persistent for part in condition.of_task(task, scope)))

    def is_due(self, task: Any, scope: ClaimScope) -> Condition:
        """The SQL that a task waits, and that its time has come."""
        return sa.and_(*self.due.of_task(task, scope))

    def walk(self, row: sa.FromClause, lane: Any, scope: ClaimScope) -> sa.Select[Any]:
        """The tasks that a claim takes from a lane, after its position, in order: a walk along the index `ready`.

        Args:
            row: the task table, or an alias.
            lane: the queue, handler, priority and hosts, and the position (since, since_id).
            scope: the other names.
        """
        task = row.c
        return (
            sa.select(task.id, task.priority, task.run_at)
            .where(
                self.is_due(task, scope),
                task.queue == lane.queue,
                task.handler == lane.handler,
                task.priority == lane.priority,
                task.hosts == lane.hosts,
                self.order.position(task) > sa.tuple_(lane.since, lane.since_id),
                *self.of_task(task, scope),
                *self.isolation.of_task(task, scope),
                *selected(task, scope.selection),
            )
            .order_by(*self.order.within_lane(task))
        )

    def suspects(self, task: Any, scope: ClaimScope) -> list[Condition]:
        """The SQL that a task is a suspect that may be claimed: a walk along the index `rescued`."""
        conditions = (*self.isolation.suspects(task), *self.of_task(task, scope))
        return [self.is_due(task, scope), *conditions, *selected(task, scope.selection)]

    def met(self, task: Any, scope: ClaimScope) -> dict[str, Condition]:
        """The SQL of each condition about a task, by the condition's name."""
        parts = {each.name: each.of_task(task, scope) for each in (*self.conditions, self.isolation)}
        return {name: sa.and_(*part) for name, part in parts.items() if part}

    def explain(self, facts: ClaimFacts, zone: tzinfo) -> Iterator[Explanation]:
        """Explain why the claim skips a waiting task, without isolation."""
        for condition in self.conditions:
            yield from condition.explain(facts, zone)

    def remedies(self, facts: ClaimFacts) -> list[RemedyStep] | None:
        """The changes that make a task meet all conditions; None if no change is certain to help."""
        steps: list[RemedyStep] = []
        for condition in (*self.conditions, self.isolation):
            changes = condition.remedies(facts)
            if changes is None:
                return None
            steps += changes
        return steps


DUE, PAUSED, LIMITED, EXPIRY, ISOLATION = Due(), NotPaused(), WithinLimits(), NotExpired(), Isolation()
ORDERING = InOrder()
CONDITIONS = (AttemptsLeft(), BelowBounds(), EXPIRY, ORDERING, DUE, PAUSED, LIMITED)

CLAIM_POLICY = ClaimPolicy(STRICT, DUE, CONDITIONS, ISOLATION)
"""The policy of this project; a new condition is registered here."""


class Share(NamedTuple):
    """The lanes of one queue, and the number of tasks to claim from them."""

    lanes: list[Lane]
    tasks: int


class QueueShares:
    """Divides free slots between queues in proportion to their weights.

    Every queue has a pass, which rises by 1/weight with each task; the next slot goes to the lowest pass. A queue that
    had no due tasks starts at the pass of the others: it gets its share from now on, and no more for the past.

    Source: stride scheduling, Waldspurger and Weihl, 1995.

    Args:
        weight: returns the weight of a queue, more than 0.
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._passes: dict[str, float] = {}
        self._now = 0.0

    def divide(self, lanes: Sequence[Lane], slots: int) -> list[Share]:
        """Divide slots between the queues of due lanes.

        Args:
            lanes: the due lanes, in the order of claims.
            slots: number of tasks to claim.

        Returns:
            The shares that are not empty, the largest first.
        """
        by_queue: dict[str, list[Lane]] = defaultdict(list)
        for lane in lanes:
            by_queue[lane.queue].append(lane)
        self._passes = {queue: max(self._passes.get(queue, 0.0), self._now) for queue in by_queue}
        tasks = dict.fromkeys(by_queue, 0)
        heap = [(passed + 1 / self._weight(queue), queue) for queue, passed in self._passes.items()]
        heapify(heap)
        for _ in range(slots if heap else 0):
            passed, queue = heap[0]
            tasks[queue] += 1
            heapreplace(heap, (passed + 1 / self._weight(queue), queue))
        shares = [Share(by_queue[queue], number) for queue, number in tasks.items() if number]
        return sorted(shares, key=lambda share: -share.tasks)

    def record(self, queues: Iterable[str]) -> None:
        """Record the queues of claimed tasks, one per task."""
        for queue in queues:
            if queue in self._passes:
                self._passes[queue] += 1 / self._weight(queue)
        self._now = max(self._now, min(self._passes.values(), default=0.0))
