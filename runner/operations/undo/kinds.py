"""kinds: the kinds of undo, each with its changes, its conflicts and the function that undoes them.

A new kind is one entry in KINDS.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runner.db.transaction import Transaction
from runner.operations.edit_values import FIELDS
from runner.operations.eligibility import REQUEUED
from runner.operations.limit import CLOSE, OPEN
from runner.operations.lock import MISSING, LockedTask
from runner.operations.new_task import SUBMIT, cancel_submit, submit_conflict
from runner.operations.results import Actor, Result
from runner.operations.undo import conflicts
from runner.operations.undo.entries import UndoableChange
from runner.operations.undo.pauses import undo_breaker, undo_command, undo_limit, undo_pause
from runner.operations.undo.requeue import undo_requeue
from runner.operations.undo.schedules import is_of_schedule, undo_schedule
from runner.operations.undo.unblock import reblock
from runner.operations.undo.values import set_values, undo_rewind, withdraw

Pair: TypeAlias = tuple[UndoableChange, LockedTask]
"""A change, and its locked task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoKind:
    """One kind of undo.

    Args:
        applies: returns whether a change needs this kind.
        conflict: returns the reason why the current task prevents the undo; None for changes of other objects.
        undo_tasks: undoes changes of tasks without conflicts.
        undo_object: undoes the change of a queue, handler or runner, or returns the reason why it cannot.
    """

    applies: Callable[[UndoableChange], bool]
    conflict: Callable[[UndoableChange, LockedTask], str | None] | None = None
    undo_tasks: Callable[[Transaction, Sequence[Pair], Actor], Awaitable[Result]] | None = None
    undo_object: Callable[[Transaction, UndoableChange, Actor], Awaitable[str | None]] | None = None


def _edits(change: UndoableChange) -> bool:
    return bool(change.before) and FIELDS.issuperset(change.before) and FIELDS.issuperset(change.after)


TERMINATE = UndoKind(
    applies=lambda change: change.verb == "terminate" and "state" in change.before, conflict=conflicts.of_restore
)
"""A task that was terminated before it ran. `undo` restores such tasks itself, because it locks their unique keys."""

KINDS: tuple[UndoKind, ...] = (
    UndoKind(applies=is_of_schedule, undo_object=undo_schedule),
    # The termination of a running task, which has not taken effect.
    UndoKind(
        applies=lambda change: change.verb == "terminate" and "cancel_requested" in change.before,
        conflict=conflicts.of_withdrawal,
        undo_tasks=withdraw,
    ),
    TERMINATE,
    # A retry of a dead or cancelled task.
    UndoKind(
        applies=lambda change: change.verb in ("retry_now", "requeue") and change.before.get("state") in REQUEUED,
        conflict=conflicts.of_requeue,
        undo_tasks=undo_requeue,
    ),
    UndoKind(applies=lambda change: change.verb == "rewind", conflict=conflicts.of_rewind, undo_tasks=undo_rewind),
    UndoKind(applies=lambda change: change.verb == SUBMIT, conflict=submit_conflict, undo_tasks=cancel_submit),
    UndoKind(applies=lambda change: change.verb == "unblock", conflict=conflicts.of_unblock, undo_tasks=reblock),
    UndoKind(applies=lambda change: change.verb in ("pause", "resume"), undo_object=undo_pause),
    UndoKind(applies=lambda change: change.verb == "limit", undo_object=undo_limit),
    UndoKind(applies=lambda change: change.verb in (OPEN, CLOSE), undo_object=undo_breaker),
    UndoKind(applies=lambda change: change.verb == "command", undo_object=undo_command),
    # Edited, delayed and retried values of a live task.
    UndoKind(
        applies=lambda change: change.task_id is not None and _edits(change),
        conflict=conflicts.of_values,
        undo_tasks=set_values,
    ),
)
"""Every kind of undo; the first one that applies to a change counts."""


def kind_of(change: UndoableChange) -> UndoKind | None:
    """The kind of undo that a change needs; None if it cannot be undone."""
    return next((kind for kind in KINDS if kind.applies(change)), None)


def task_conflict(change: UndoableChange, task: LockedTask | None, dependents: Mapping[int, int]) -> str | None:
    """The reason why a change of a task cannot be undone.

    Args:
        change: the change to undo.
        task: the current task; None if it no longer exists.
        dependents: by terminated task, a dependent that was cancelled or released because of it.

    Returns:
        The reason as a clause; None if the change can be undone.
    """
    if change.undone_by is not None:
        return conflicts.ALREADY_UNDONE
    kind = kind_of(change)
    if kind is None or kind.conflict is None:
        return conflicts.unsupported(change)
    if task is None:
        return MISSING
    dependent = dependents.get(change.subject) if kind is TERMINATE else None
    return kind.conflict(change, task) or (None if dependent is None else conflicts.of_dependent(dependent))


def object_conflict(change: UndoableChange) -> str | None:
    """The reason why a change of a queue, handler or runner can never be undone; None if only its undo can decide."""
    kind = kind_of(change)
    return None if kind is not None and kind.undo_object is not None else conflicts.unsupported(change)
