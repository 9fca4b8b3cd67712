"""The targets and results of operations."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from runner.model.shard import ShardId
from runner.model.stuck_row import RowFault, StuckCause
from runner.model.task import State
from runner.model.text_limits import to_storable
from runner.text import operator
from runner.text.sanitize import count_noun, one_line
from runner.text.stuck_row import LONGEST_FACT, lock_advice, refusal_advice

NAME_LIMIT = 1_000
REASON_LIMIT = 4_000
"""Maximum number of bytes that are stored."""


class Actor(NamedTuple):
    """The author of an operation, recorded with every change.

    Args:
        reason: the reason; None if none was given.
        change_group: the id of the change group; its changes can be undone together.
    """

    operator: str
    host: str
    reason: str | None = None
    change_group: str | None = None

    @property
    def stored(self) -> Self:
        """The author with texts that the databases can store."""
        names = to_storable(self.operator, NAME_LIMIT), to_storable(self.host, NAME_LIMIT)
        reason = None if self.reason is None else to_storable(self.reason, REASON_LIMIT)
        return self._replace(operator=names[0], host=names[1], reason=reason)


class Target(NamedTuple):
    """A task to change.

    Args:
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


class Stuck(NamedTuple):
    """A task, or a change of an undo, whose row is locked or which the database refuses to change; it is unchanged.

    Args:
        id: the task's id; the id of the audit entry for a change that was not to a task.
        cause: locked or refused.
        why: the observed fact, which begins with the SQLSTATE, the session that holds the lock, and the next step.
        subject: task or change.
    """

    id: int
    cause: StuckCause
    why: str
    subject: str = "task"


def stuck_of(id: int, fault: RowFault, subject: str = "task") -> Stuck:
    """Return a task or a change that the database did not change, with the next step.

    Args:
        fault: the reason.
        subject: task or change.
    """
    advice = refusal_advice(fault.fact) if fault.cause is StuckCause.REFUSED else lock_advice(None)
    return Stuck(id, fault.cause, f"{one_line(fault.fact, LONGEST_FACT)}; {advice}", subject)


@dataclass(slots=True)
class Result:
    """The result of an operation, by task.

    Args:
        changed: the ids of the changed tasks.
        stuck: the tasks whose rows could not be changed.
        requested: the ids of those changed tasks that still run: their runners carry out the operation.
    """

    changed: list[int] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    stuck: list[Stuck] = field(default_factory=list)
    requested: list[int] = field(default_factory=list, compare=False)

    def add(self, other: "Result") -> None:
        """Add the result of another call."""
        self.changed += other.changed
        self.conflicts += other.conflicts
        self.skipped += other.skipped
        self.stuck += other.stuck
        self.requested += other.requested

    def in_shard(self, shard: str) -> "Result":
        """Return the same result, whose ids have their shard."""

        def named(rows: Sequence[Any]) -> list[Any]:
            return [row._replace(id=ShardId(shard, row.id)) for row in rows]

        return Result(
            [ShardId(shard, id) for id in self.changed],
            named(self.conflicts),
            named(self.skipped),
            named(self.stuck),
            [ShardId(shard, id) for id in self.requested],
        )

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
        for cause in StuckCause:
            if number := sum(stuck.cause is cause for stuck in self.stuck):
                counts.append(f"{number:,} {cause}")
        return ", ".join(counts)

    def reasons(self) -> list[str]:
        """One sentence per task or change that is not changed: the locked and the refused ones first."""
        stuck = [f"{stuck.subject} {stuck.id} is {stuck.cause}: {stuck.why}" for stuck in self.stuck]
        conflicts = [
            f"task {conflict.id} has changed: it is now {conflict.state}, version {conflict.version}"
            for conflict in self.conflicts
        ]
        return stuck + [f"{skipped.subject} {skipped.id}: {skipped.why}" for skipped in self.skipped] + conflicts


def local_actor(reason: str | None) -> Actor:
    """The operator at this terminal, with the reason."""
    return Actor(operator.operator(), operator.host(), reason)


def with_change_group(by: Actor) -> Actor:
    """The same author, with a new change group."""
    return by._replace(change_group=secrets.token_hex(4))
