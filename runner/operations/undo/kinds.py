"""Kinds of undo, each with its changes, the function that undoes them, and the conflicts that prevent it."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from runner.db.transaction import Transaction
from runner.errors import RunnerError
from runner.model.task import LIVE, MOVES, State
from runner.operations.breaker import CLOSE, OPEN
from runner.operations.edit_values import FIELDS, check_against
from runner.operations.failed_steps import FAILED_STEPS
from runner.operations.new_task import SUBMIT, cancel_submit, submit_conflict
from runner.operations.results import Actor, Result
from runner.operations.targets import MISSING, REQUEUED, LockedTask, objection
from runner.operations.undo.entries import UndoableChange, edited_columns, former_values
from runner.operations.undo.registries import (
    UndoAnswer,
    is_of_schedule,
    undo_breaker,
    undo_limit,
    undo_pause,
    undo_runner_command,
    undo_schedule,
    undo_silence,
)
from runner.operations.undo.tasks import (
    consequences,
    pruned_parents,
    reblock,
    set_values,
    undo_requeue,
    undo_rewind,
    undo_signal,
    withdraw,
)

VALUES_CHANGED = "its values have changed since"
PLAIN_SQL = "it was made with plain SQL, and undo restores only values that an edit can set"
REVEALED = "it revealed secrets, and changed nothing"
RESULT = "it is the result of a canary; undo its group instead"
IS_UNDO = "it is an undo; repeat the original operation instead"
NOT_STARTED = (State.WAITING, State.BLOCKED)
ALREADY_UNDONE = "it is already undone"
UNSUPPORTED = "undo does not support this operation"


REASONS = {
    "reveal": REVEALED,
    "canary": RESULT,
    "erase": "it erased contents, which are gone",
    "rekey": "it encrypted the same values with another key",
    **dict.fromkeys(("restore", "reblock", "withdraw", "withdraw_signal", "cancel", "undo_retry"), IS_UNDO),
}
"""The reasons why changes with these verbs cannot be undone."""


def unsupported(change: UndoableChange) -> str:
    """The reason why a change without a kind cannot be undone."""
    if change.verb == "copy":
        return f"it submitted task {change.after.get('copy')}, and only the submit of that task can be undone"
    return REASONS.get(change.verb, PLAIN_SQL if change.verb.startswith("SQL") else UNSUPPORTED)


def of_values(change: UndoableChange, task: LockedTask) -> str | None:
    """The conflict with the restoring of values."""
    if task.state not in LIVE:
        return f"it is {task.state}, and only live tasks can be edited"
    return _values_conflict(change, task, change.after)


def _values_conflict(change: UndoableChange, task: LockedTask, names: Iterable[str]) -> str | None:
    if any(_differ(getattr(task, name), change.after[name]) for name in names if name != FAILED_STEPS):
        return VALUES_CHANGED
    try:
        check_against(former_values(change, names), task)
    except RunnerError as error:
        return str(error)
    return None


def _differ(current: Any, recorded: Any) -> bool:
    if current == recorded:
        return False
    try:
        return not isinstance(recorded, str) or json.loads(current) != json.loads(recorded)
    except (TypeError, ValueError, RecursionError):
        return True


def of_restore(change: UndoableChange, task: LockedTask) -> str | None:
    """The conflict with the restoring of a terminated task."""
    unchanged = task.state in MOVES["restore"].sources and task.version == change.after.get("version")
    return None if unchanged else f"it has changed since and is now {task.state}"


def of_dependent(dependent: int) -> str:
    """The conflict with a dependent that was cancelled or released because the task was terminated."""
    return f"its dependent task {dependent} was cancelled or released because it ended; retry both instead"


def of_pruned(parent: int) -> str:
    """The conflict with a parent that was pruned since, so that the task would wait for it without end."""
    return f"its parent task {parent} has ended and was pruned since, so its end is unknown"


def of_withdrawal(change: UndoableChange, task: LockedTask) -> str | None:
    """The conflict with the withdrawal of a termination."""
    if task.state is State.CANCELLED:
        return "it has taken effect: the task is cancelled"
    unchanged = task.state is State.RUNNING and task.fence == change.after.get("fence")
    return None if unchanged and task.cancel_requested else f"that attempt has ended: the task is now {task.state}"


def of_unblock(change: UndoableChange, task: LockedTask) -> str | None:
    """The conflict with the blocking of an unblocked task."""
    return _not_started(change, task, NOT_STARTED)


def of_rewind(_change: UndoableChange, task: LockedTask) -> str | None:
    """The conflict with the return to the checkpoint before a rewind."""
    return objection("rewind", task)


def of_signal(_change: UndoableChange, task: LockedTask) -> str | None:
    """The conflict with the withdrawal of a signal."""
    return objection("signal", task)


def of_requeue(change: UndoableChange, task: LockedTask) -> str | None:
    """The conflict with the return of a requeued task to the history."""
    names = edited_columns(change)
    why = _values_conflict(change, task, names) if names and task.state in LIVE else None
    sources = NOT_STARTED if change.after.get("state") == State.BLOCKED else MOVES["undo_retry"].sources
    return why or _not_started(change, task, sources)


def _not_started(change: UndoableChange, task: LockedTask, states: tuple[State | None, ...]) -> str | None:
    if task.fence != change.after.get("fence") or task.state is State.RUNNING:
        return "it has started since"
    return None if task.state in states else f"it is now {task.state}"


Pair: TypeAlias = tuple[UndoableChange, LockedTask]
"""A change, and its locked task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoKind:
    """One kind of undo.

    Args:
        applies: returns whether a change needs this kind.
        conflict: returns the reason why the current task prevents the undo; None for changes of other objects.
        undo_tasks: undoes changes of tasks without conflicts.
        undo_object: undoes the change of a queue, handler or runner, and returns its audit entry; or the reason why it
            cannot.
    """

    applies: Callable[[UndoableChange], bool]
    conflict: Callable[[UndoableChange, LockedTask], str | None] | None = None
    undo_tasks: Callable[[Transaction, Sequence[Pair], Actor], Awaitable[Result]] | None = None
    undo_object: Callable[[Transaction, UndoableChange], Awaitable[UndoAnswer]] | None = None


def _edits(change: UndoableChange) -> bool:
    columns = FIELDS | {"rescues", FAILED_STEPS} if change.verb in ("retry_now", "edit") else FIELDS
    return bool(change.before) and columns.issuperset(change.before) and columns.issuperset(change.after)


TERMINATE = UndoKind(
    applies=lambda change: change.verb == "terminate" and "state" in change.before, conflict=of_restore
)
"""A task that was terminated before it ran. `undo` restores such tasks itself, because it locks their unique keys."""

UNBLOCK = UndoKind(applies=lambda change: change.verb == "unblock", conflict=of_unblock, undo_tasks=reblock)

KINDS: tuple[UndoKind, ...] = (
    UndoKind(applies=is_of_schedule, undo_object=undo_schedule),
    # The termination of a running task, which has not taken effect.
    UndoKind(
        applies=lambda change: change.verb == "terminate" and "cancel_requested" in change.before,
        conflict=of_withdrawal,
        undo_tasks=withdraw,
    ),
    TERMINATE,
    # A retry of a dead or cancelled task.
    UndoKind(
        applies=lambda change: change.verb in ("retry_now", "requeue") and change.before.get("state") in REQUEUED,
        conflict=of_requeue,
        undo_tasks=undo_requeue,
    ),
    UndoKind(applies=lambda change: change.verb == "rewind", conflict=of_rewind, undo_tasks=undo_rewind),
    UndoKind(applies=lambda change: change.verb == "signal", conflict=of_signal, undo_tasks=undo_signal),
    UndoKind(applies=lambda change: change.verb == SUBMIT, conflict=submit_conflict, undo_tasks=cancel_submit),
    UNBLOCK,
    UndoKind(applies=lambda change: change.verb in ("pause", "resume"), undo_object=undo_pause),
    UndoKind(applies=lambda change: change.verb in ("silence", "unsilence"), undo_object=undo_silence),
    UndoKind(applies=lambda change: change.verb == "limit", undo_object=undo_limit),
    UndoKind(applies=lambda change: change.verb in (OPEN, CLOSE), undo_object=undo_breaker),
    UndoKind(applies=lambda change: change.verb == "command", undo_object=undo_runner_command),
    # Edited, delayed and retried values of a live task.
    UndoKind(
        applies=lambda change: change.task_id is not None and _edits(change),
        conflict=of_values,
        undo_tasks=set_values,
    ),
)
"""Every kind of undo; the first one that applies to a change counts."""


def kind_of(change: UndoableChange) -> UndoKind | None:
    """The kind of undo that a change needs; None if it cannot be undone."""
    return next((kind for kind in KINDS if kind.applies(change)), None)


async def obstacles(tx: Transaction, changes: Sequence[UndoableChange]) -> dict[int, str]:
    """The parents and dependents that prevent the undo of terminations and unblocks: the reasons, by change."""
    ends = [change for change in changes if kind_of(change) is TERMINATE]
    blocked = [change for change in ends if change.before["state"] == State.BLOCKED]
    unblocks = [change for change in changes if kind_of(change) is UNBLOCK]
    parents, dependents = await pruned_parents(tx, [*blocked, *unblocks]), await consequences(tx, ends)
    reasons = {id: of_pruned(parent) for id, parent in parents.items()}
    return reasons | {
        change.id: of_dependent(dependents[change.subject]) for change in ends if change.subject in dependents
    }


def task_conflict(change: UndoableChange, task: LockedTask | None, others: Mapping[int, str]) -> str | None:
    """The reason why a change of a task cannot be undone.

    Args:
        task: the current task; None if it no longer exists.
        others: the obstacles.

    Returns:
        The reason as a clause; None if the change can be undone.
    """
    if change.undone_by is not None:
        return ALREADY_UNDONE
    kind = kind_of(change)
    if kind is None or kind.conflict is None:
        return unsupported(change)
    return MISSING if task is None else kind.conflict(change, task) or others.get(change.id)


def object_conflict(change: UndoableChange) -> str | None:
    """The reason why a change of a queue, handler or runner can never be undone; None if only its undo can decide."""
    kind = kind_of(change)
    return None if kind is not None and kind.undo_object is not None else unsupported(change)
