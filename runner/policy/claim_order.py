"""claim order: which tasks a claim takes, in which order, and why it skips a task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Protocol

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.schema.task import Condition
from runner.db.types import db_now
from runner.model.task import State
from runner.policy.claim_conditions import (
    AttemptsLeft,
    BelowBounds,
    ClaimCondition,
    Due,
    Isolation,
    NotExpired,
    NotPaused,
)
from runner.policy.claim_facts import ClaimFacts, ClaimScope, CommonCause, Explanation, RemedyStep
from runner.policy.limits import WithinLimits
from runner.policy.selection import selected
from runner.text.sanitize import one_line


class InOrder(ClaimCondition):
    """A task is not claimed while an earlier one with its order key is live, or another one runs.

    A submit chains each task to its predecessor by a dependency, so that usually one task per key waits and a claim
    does not walk over the others. This condition is the guarantee: it also holds for plain inserts, for concurrent
    submits, and for tasks that return from the history. Two claims that do not see each other are kept apart by the
    unique index `in_order`.
    """

    name = "order"
    lasting = False

    @staticmethod
    def earlier(other: Any, task: Any) -> Condition:
        """The SQL that another live task with the same order key came before: a search of the index `order`."""
        return sa.and_(other.order_key == task.order_key, other.id < task.id)

    @staticmethod
    def running(other: Any, task: Any) -> Condition:
        """The SQL that another task with the same order key runs: a search of the index `in_order`."""
        return sa.and_(other.order_key == task.order_key, is_state(other.state, State.RUNNING))

    def of_task(self, task: Any, scope: ClaimScope) -> Sequence[Condition]:
        """The SQL that a task has no order key, or that its turn has come."""
        earlier, running = scope.tables.task.alias("earlier"), scope.tables.task.alias("rival")
        one: sa.ColumnElement[int] = sa.literal_column("1")
        free = [
            ~sa.select(one).select_from(other).where(condition(other.c, task)).correlate_except(other).exists()
            for other, condition in ((earlier, self.earlier), (running, self.running))
        ]
        return (sa.or_(task.order_key.is_(None), sa.and_(*free)),)

    def explain(self, facts: ClaimFacts, _zone: tzinfo) -> Iterator[Explanation]:
        """Name the task whose turn it is."""
        if self.name not in facts.refused:
            return
        rival, common = facts.predecessor, CommonCause("another task with the same order key comes first")
        if rival is None:
            text = "A task with the same order key just finished; it is claimed next."
            yield Explanation(self.name, text, common=common)
        else:
            text = f"Task {rival.id} {one_line(rival.handler)} has the same order key and is {rival.shown}."
            yield Explanation(self.name, text, f"runner why {rival.id}", ("task", str(rival.id)), common)

    def remedies(self, facts: ClaimFacts) -> Sequence[RemedyStep] | None:
        """None: the end of another task is not a change that an operator can make."""
        return None if self.name in facts.refused else ()


class ClaimOrder(Protocol):
    """The order of tasks within a lane, and over lanes; the index `ready` has the order within a lane.

    Equal orders must be equal and hashable: statements are prepared once per order.
    """

    def __hash__(self) -> int: ...

    @property
    def note(self) -> str:
        """The effect of the order on a task that waits, for people; empty if the priority is the whole reason."""
        ...

    def within_lane(self, task: Any, forward: bool = True) -> Sequence[Any]:
        """The ORDER BY columns within a lane; reversed unless `forward`."""
        ...

    def of_lanes(self, task: Any, forward: bool = True) -> Sequence[Any]:
        """The ORDER BY columns that precede these over all lanes."""
        ...

    def position(self, task: Any) -> sa.Tuple:
        """The SQL of a task's position in its lane; the next one is greater."""
        ...

    def level(self, priority: int, own: int) -> int:
        """The relation of a lane's priority to that of a task; lanes of the same level are compared alike."""
        ...

    def ahead_of(self, task: Any, level: int, id: int, run_at: Any) -> Sequence[Condition]:
        """The due tasks in lanes of a level that are claimed before a task, as conditions of one index walk each.

        Args:
            task: the columns of the other tasks.
            level: from `level`.
            id: the task's id.
            run_at: its due time, as SQL; None for a task that becomes due now, after all due tasks.
        """
        ...

    def rank(self, priority: int) -> int:
        """The place of a priority in a list in this order; lower ones come first, and equal ones together."""
        ...

    def lane_key(self, priority: int, wait: float) -> Any:
        """The sort key of a lane, from its priority and the seconds until its first task is due."""
        ...

    def sort_key(self, task: Any) -> Any:
        """The sort key of a claimed task, over all lanes."""
        ...


@dataclass(frozen=True, slots=True)
class StrictOrder:
    """Higher priority first, then the earlier time, then the lower id."""

    def __str__(self) -> str:
        return "strict"

    @property
    def note(self) -> str:
        """Empty: the priority is the whole reason."""
        return ""

    def within_lane(self, task: Any, forward: bool = True) -> Sequence[Any]:
        """By time and id."""
        return (task.run_at, task.id) if forward else (task.run_at.desc(), task.id.desc())

    def of_lanes(self, task: Any, forward: bool = True) -> Sequence[Any]:
        """By priority."""
        return (task.priority.desc() if forward else task.priority,)

    def position(self, task: Any) -> sa.Tuple:
        """The time and the id."""
        return sa.tuple_(task.run_at, task.id)

    def level(self, priority: int, own: int) -> int:
        """1 for a higher priority, 0 for the same, -1 for a lower one."""
        return (priority > own) - (priority < own)

    def ahead_of(self, task: Any, level: int, id: int, run_at: Any) -> Sequence[Condition]:
        """All due tasks of a higher priority; of the same one those of an earlier time, or the same and a lower id.

        As one comparison of (run_at, id), SQLite would search by the time alone, which a bulk submit shares.
        """
        waiting = is_state(task.state, State.WAITING)
        if level < 0:
            return ()
        if level > 0 or run_at is None:
            return (waiting & (task.run_at <= db_now()),)
        # The tasks before a due task are due too.
        return waiting & (task.run_at < run_at), waiting & (task.run_at == run_at) & (task.id < id)

    def rank(self, priority: int) -> int:
        """The negative priority."""
        return -priority

    def lane_key(self, priority: int, wait: float) -> Any:
        """By priority and time."""
        return self.rank(priority), wait

    def sort_key(self, task: Any) -> Any:
        """By priority, time and id."""
        return -task.priority, task.run_at, task.id


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

    def _stops(self, registry: sa.Table, name: Any, held: Condition | None) -> Condition:
        """The SQL that the queue or the handler of a lane stops its tasks."""
        stops = [part for condition in self.conditions for part in condition.of_registry(registry, held)]
        return sa.exists().where(registry.c.name == name, sa.or_(*stops))

    def of_task(self, task: Any, scope: ClaimScope) -> list[Condition]:
        """The SQL that a claim checks row by row, without the due time and isolation."""
        others = (condition for condition in self.conditions if condition is not self.due)
        return [part for condition in others for part in condition.of_task(task, scope)]

    def is_never_claimed(self, task: Any, scope: ClaimScope) -> Condition:
        """The SQL that no claim takes a task before an operator changes something, without its due time."""
        lasting = (condition for condition in self.conditions if condition.lasting and condition is not self.due)
        return ~sa.and_(*(part for condition in lasting for part in condition.of_task(task, scope)))

    def is_due(self, task: Any, scope: ClaimScope) -> Condition:
        """The SQL that a task waits, and that its time has come."""
        return sa.and_(*self.due.of_task(task, scope))

    def order_by(self, task: Any, forward: bool = True) -> list[Any]:
        """The ORDER BY columns over all lanes."""
        return [*self.order.of_lanes(task, forward), *self.order.within_lane(task, forward)]

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
STRICT = StrictOrder()
CONDITIONS = (AttemptsLeft(), BelowBounds(), EXPIRY, ORDERING, DUE, PAUSED, LIMITED)

CLAIM_POLICY = ClaimPolicy(STRICT, DUE, CONDITIONS, ISOLATION)
"""The policy of this project; a new condition is registered here."""
