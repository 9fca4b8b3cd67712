"""Retention: how long finished tasks are kept, by state and by queue."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from runner.model.task import State
from runner.settings.queue_retention import FINISHED


class AgeGroup(NamedTuple):
    """The finished tasks of one state that are kept for the same time.

    Args:
        queues: the only queues, or with `others` the queues that are left out; empty for all queues.
    """

    state: State
    age: timedelta
    queues: tuple[str, ...] = ()
    others: bool = False


@dataclass(frozen=True, slots=True)
class Retention:
    """How long finished tasks are kept.

    Args:
        states: the retention by state; tasks of other states are kept indefinitely.
        queues: the retention by state of the queues that have their own; None keeps their tasks indefinitely.
    """

    states: Mapping[State, timedelta] = field(default_factory=dict)
    queues: Mapping[State, Mapping[str, timedelta | None]] = field(default_factory=dict)

    def groups(self) -> list[AgeGroup]:
        """Return the groups of tasks that are deleted at an age, in the order of the states."""
        groups = []
        for state in FINISHED:
            own = self.queues.get(state, {})
            if (age := self.states.get(state)) is not None:
                groups.append(AgeGroup(state, age, tuple(sorted(own)), others=bool(own)))
            groups += [AgeGroup(state, own_age, (queue,)) for queue, own_age in own.items() if own_age is not None]
        return groups

    def longer(self, state: State) -> Mapping[str, timedelta | None]:
        """Return the queues whose tasks are kept longer than those of other queues."""
        age = self.states.get(state)
        own = self.queues.get(state, {}).items()
        return {queue: kept for queue, kept in own if age is not None and (kept is None or kept > age)}
