"""The reasons why a change cannot be undone; pure rules that previews and undo share."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runner.errors import RunnerError
from runner.model.task import LIVE, MOVES, State
from runner.operations.edit_values import Changes, check_against, check_values
from runner.operations.lock import MISSING, LockedTask
from runner.operations.undo.entries import ChangeKind, UndoableChange, edited_columns

CHANGED = "its values have changed since"
PLAIN_SQL = "it was made with plain SQL, and undo restores only values that an edit can set"
LOOK = "it revealed secrets, and changed nothing"
UNDONE = "it is an undo; repeat the original operation instead"
NOT_STARTED = (State.WAITING, State.BLOCKED)
TAKEN_BACK = "it is already undone"
LIMITED = "undo does not support this operation"


def unsupported(change: UndoableChange) -> str:
    """The reason why a change without a kind cannot be undone."""
    match change.verb:
        case "reveal":
            return LOOK
        case "restore" | "reblock" | "withdraw":
            return UNDONE
    return PLAIN_SQL if change.verb.startswith("SQL") else LIMITED


def objection(change: UndoableChange, task: LockedTask | None, children: Mapping[int, int]) -> str | None:
    """The reason why a change of a task cannot be undone.

    Args:
        change: the change to undo.
        task: the current task; None if it no longer exists.
        children: by terminated task, a dependent that was cancelled or released because of it.

    Returns:
        The reason as a clause; None if the change can be undone.
    """
    if change.undone_by is not None:
        return TAKEN_BACK
    if change.kind not in OBJECTIONS:
        return unsupported(change)
    return MISSING if task is None else OBJECTIONS[change.kind](change, task) or _overtaken(change, children)


def _values(change: UndoableChange, task: LockedTask) -> str | None:
    if task.state not in LIVE:
        return f"it is {task.state}, and only live tasks can be edited"
    return _values_objection(change, task, change.after)


def _values_objection(change: UndoableChange, task: LockedTask, names: Iterable[str]) -> str | None:
    if any(_differ(getattr(task, name), change.after[name]) for name in names):
        return CHANGED
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


def _end(change: UndoableChange, task: LockedTask) -> str | None:
    unchanged = task.state in MOVES["restore"].sources and task.version == change.after.get("version")
    return None if unchanged else f"it has changed since and is now {task.state}"


def _overtaken(change: UndoableChange, children: Mapping[int, int]) -> str | None:
    child = children.get(change.subject) if change.kind is ChangeKind.TERMINATE else None
    if child is None:
        return None
    return f"its dependent task {child} was cancelled or released because it ended; retry both instead"


def _request(change: UndoableChange, task: LockedTask) -> str | None:
    if task.state is State.CANCELLED:
        return "it has taken effect: the task is cancelled"
    unchanged = task.state is State.RUNNING and task.fence == change.after.get("fence")
    return None if unchanged and task.cancel_requested else f"that attempt has ended: the task is now {task.state}"


def _unblock(change: UndoableChange, task: LockedTask) -> str | None:
    return _not_started(change, task, NOT_STARTED)


def _again(change: UndoableChange, task: LockedTask) -> str | None:
    names = edited_columns(change)
    why = _values_objection(change, task, names) if names and task.state in LIVE else None
    return why or _not_started(change, task, MOVES["rebury"].sources)


def _not_started(change: UndoableChange, task: LockedTask, states: tuple[State | None, ...]) -> str | None:
    if task.fence != change.after.get("fence") or task.state is State.RUNNING:
        return "it has started since"
    return None if task.state in states else f"it is now {task.state}"


OBJECTIONS: Mapping[ChangeKind | None, Callable[[UndoableChange, LockedTask], str | None]] = {
    ChangeKind.VALUES: _values,
    ChangeKind.TERMINATE: _end,
    ChangeKind.REQUEST: _request,
    ChangeKind.REQUEUE: _again,
    ChangeKind.UNBLOCK: _unblock,
}
"""The check for each kind of undo of a task."""
