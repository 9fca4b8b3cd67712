"""ordering: at most one task of an order key runs at a time, and in the order of submit."""

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Any

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.schema.task import Condition
from runner.model.task import State
from runner.policy.claim_conditions import ClaimCondition
from runner.policy.claim_facts import ClaimFacts, ClaimScope, CommonCause, Explanation, RemedyStep
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
