"""claim policy: the tasks that a claim takes, its order, the reasons to skip a task, and the shares of queues.

The conditions are in runner.policy.claim_conditions and runner.policy.limits, the orders in runner.policy.claim_order.
"""

from collections.abc import Iterator, Sequence
from datetime import tzinfo
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
from runner.policy.limits import WithinLimits
from runner.policy.selection import selected


class ClaimPolicy(NamedTuple):
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

    def walk(self, row: sa.FromClause, lane: Any, scope: ClaimScope, start: Condition | None = None) -> sa.Select[Any]:
        """The tasks that a claim takes from a lane, after its position, in order: a walk along the index `ready`.

        Args:
            row: the task table, or an alias.
            lane: the queue, handler, priority, hosts and retried, and the position (since, since_id).
            scope: the other names.
            start: the condition that replaces the position. With two of them, PostgreSQL 17 and older begin the walk
                at neither.
        """
        task = row.c
        start = self.order.position(task) > sa.tuple_(lane.since, lane.since_id) if start is None else start
        return (
            sa.select(task.id, task.priority, task.retried, task.run_at)
            .where(
                self.is_due(task, scope),
                task.queue == lane.queue,
                task.handler == lane.handler,
                task.priority == lane.priority,
                task.hosts == lane.hosts,
                task.retried == lane.retried,
                start,
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
