"""What an intervention is asked for, and what it answers."""

from dataclasses import dataclass, field
from typing import NamedTuple

from runner.task import State


class By(NamedTuple):
    """Who intervenes; it is written down with everything that is changed.

    Args:
        operator: the person's name.
        host: the machine that the person sits at.
        reason: why; None when none was given.
        batch: a word that all changes have in common which are made together, and can be taken back together.
    """

    operator: str
    host: str
    reason: str | None = None
    batch: str | None = None


class Target(NamedTuple):
    """A task to be changed.

    Args:
        id: the task's.
        seen: the version that the operator saw; None to change it whatever it is now.
    """

    id: int
    seen: int | None = None


class MovedOn(NamedTuple):
    """A task that has changed since the operator saw it, as it is now; it was left alone."""

    id: int
    state: State
    version: int


class Refused(NamedTuple):
    """A task to which this cannot be done, and why."""

    id: int
    why: str


@dataclass(slots=True)
class Result:
    """What an intervention did, task by task.

    Args:
        changed: ids of the tasks that were changed.
        moved_on: tasks that had changed before.
        refused: tasks to which it does not apply.
    """

    changed: list[int] = field(default_factory=list)
    moved_on: list[MovedOn] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def add(self, other: "Result") -> None:
        """Take in what another call did."""
        self.changed += other.changed
        self.moved_on += other.moved_on
        self.refused += other.refused

    def __str__(self) -> str:
        counts = [f"{len(self.changed):,} changed"]
        if self.moved_on:
            counts.append(f"{len(self.moved_on):,} had moved on")
        if self.refused:
            counts.append(f"{len(self.refused):,} {'was' if len(self.refused) == 1 else 'were'} left alone")
        return ", ".join(counts)

    def left_alone(self) -> list[str]:
        """One sentence for each task that was not changed."""
        moved = [
            f"task {left.id} has changed: it is {left.state} at version {left.version} now" for left in self.moved_on
        ]
        return [f"task {left.id}: {left.why}" for left in self.refused] + moved
