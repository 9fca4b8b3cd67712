"""Conflicts: the reasons why a change cannot be undone, as pure rules for undo and its preview."""

import json
from collections.abc import Iterable
from typing import Any

from runner.errors import RunnerError
from runner.model.task import LIVE, MOVES, State
from runner.operations.edit_values import Changes, check_against, check_values
from runner.operations.eligibility import objection
from runner.operations.lock import LockedTask
from runner.operations.undo.entries import UndoableChange, edited_columns

VALUES_CHANGED = "its values have changed since"
PLAIN_SQL = "it was made with plain SQL, and undo restores only values that an edit can set"
REVEALED = "it revealed secrets, and changed nothing"
IS_UNDO = "it is an undo; repeat the original operation instead"
NOT_STARTED = (State.WAITING, State.BLOCKED)
ALREADY_UNDONE = "it is already undone"
UNSUPPORTED = "undo does not support this operation"


def unsupported(change: UndoableChange) -> str:
    """The reason why a change without a kind cannot be undone."""
    match change.verb:
        case "reveal":
            return REVEALED
        case "restore" | "reblock" | "withdraw" | "cancel":
            return IS_UNDO
        case "copy":
            return f"it submitted task {change.after.get('copy')}, and only the submit of that task can be undone"
    return PLAIN_SQL if change.verb.startswith("SQL") else UNSUPPORTED


def of_values(change: UndoableChange, task: LockedTask) -> str | None:
    """The conflict with the restoring of values."""
    if task.state not in LIVE:
        return f"it is {task.state}, and only live tasks can be edited"
    return _values_conflict(change, task, change.after)


def _values_conflict(change: UndoableChange, task: LockedTask, names: Iterable[str]) -> str | None:
    if any(_differ(getattr(task, name), change.after[name]) for name in names):
        return VALUES_CHANGED
    try:
        check_against(check_values(Changes(**{name: change.before[name] for name in names})), task)
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


def of_requeue(change: UndoableChange, task: LockedTask) -> str | None:
    """The conflict with the return of a requeued task to the history."""
    names = edited_columns(change)
    why = _values_conflict(change, task, names) if names and task.state in LIVE else None
    return why or _not_started(change, task, MOVES["undo_retry"].sources)


def _not_started(change: UndoableChange, task: LockedTask, states: tuple[State | None, ...]) -> str | None:
    if task.fence != change.after.get("fence") or task.state is State.RUNNING:
        return "it has started since"
    return None if task.state in states else f"it is now {task.state}"
