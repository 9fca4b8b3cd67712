"""The targets and results of operations."""

import secrets
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.model.task import State
from runner.text import operator
from runner.text.sanitize import count_noun


class Actor(NamedTuple):
    """The author of an operation, recorded with every change.

    Args:
        operator: the operator's name.
        host: the operator's host.
        reason: the reason; None if none was given.
        change_group: the id of the change group; its changes can be undone together.
    """

    operator: str
    host: str
    reason: str | None = None
    change_group: str | None = None


class Target(NamedTuple):
    """A task to change.

    Args:
        id: the task's id.
        version: the expected version; None to change any version.
    """

    id: int
    version: int | None = None


class Conflict(NamedTuple):
    """A conflict: the task has changed since the operator saw it; these are its current values."""

    id: int
    state: State
    version: int


class Skipped(NamedTuple):
    """A skipped task, or a skipped change of an undo: the operation does not apply to it."""

    id: int
    why: str
    subject: str = "task"


@dataclass(slots=True)
class Result:
    """The result of an operation, by task.

    Args:
        changed: the ids of the changed tasks.
        conflicts: the conflicts.
        skipped: the skipped tasks.
        requested: the ids of those changed tasks that still run: their runners carry out the operation.
    """

    changed: list[int] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    requested: list[int] = field(default_factory=list, compare=False)

    def add(self, other: "Result") -> None:
        """Add the result of another call."""
        self.changed += other.changed
        self.conflicts += other.conflicts
        self.skipped += other.skipped
        self.requested += other.requested

    def __str__(self) -> str:
        done, requested = len(self.changed) - len(self.requested), len(self.requested)
        counts = [f"{done:,} changed"] if done or not requested else []
        counts += (
            [f"{requested:,} requested of {'its runner' if requested == 1 else 'their runners'}"] if requested else []
        )
        if self.conflicts:
            counts.append(count_noun(len(self.conflicts), "conflict"))
        if self.skipped:
            counts.append(f"{len(self.skipped):,} skipped")
        return ", ".join(counts)

    def reasons(self) -> list[str]:
        """One sentence per conflict and skipped task or change."""
        conflicts = [
            f"task {conflict.id} has changed: it is now {conflict.state}, version {conflict.version}"
            for conflict in self.conflicts
        ]
        return [f"{skipped.subject} {skipped.id}: {skipped.why}" for skipped in self.skipped] + conflicts


def local_actor(reason: str | None) -> Actor:
    """The operator at this terminal, with the reason."""
    return Actor(operator.operator(), operator.host(), reason)


def with_change_group(by: Actor) -> Actor:
    """The same author, with a new change group."""
    return by._replace(change_group=secrets.token_hex(4))
