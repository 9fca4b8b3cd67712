"""objections: why a change cannot be taken back; pure, asked alike by who only looks and by who does it."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runner.errors import RunnerError
from runner.store.intervene.changes import Changes, check_against, check_values
from runner.store.intervene.locking import MISSING, Held
from runner.store.intervene.undo.changes import Change, Kind, edited
from runner.task import LIVE, MOVES, State

CHANGED = "its values have been changed again since"
PLAIN_SQL = "it was done with plain SQL, and only values that an edit may set can be set back"
LOOK = "it was a look at secrets, and changed nothing"
UNDONE = "it took back what was done before; do that again instead"
NOT_STARTED = (State.WAITING, State.BLOCKED)
TAKEN_BACK = "it was taken back already"
LIMITED = "only values, ends, letting go, pauses and wishes can be taken back"


def final(change: Change) -> str:
    """Why a change of no kind cannot be taken back."""
    match change.verb:
        case "reveal":
            return LOOK
        case "restore" | "reblock" | "withdraw":
            return UNDONE
    return PLAIN_SQL if change.verb.startswith("SQL") else LIMITED


def objection(change: Change, task: Held | None, children: Mapping[int, int]) -> str | None:
    """Say why a change of a task cannot be taken back.

    Args:
        change: that is to be taken back.
        task: as it is now; None when it is gone.
        children: a task for each whose end others have been cancelled or let go for since, by its id.

    Returns:
        The reason, as a sentence without its end; None when nothing speaks against it.
    """
    if change.undone_by is not None:
        return TAKEN_BACK
    if change.kind not in OBJECTIONS:
        return final(change)
    return MISSING if task is None else OBJECTIONS[change.kind](change, task) or _overtaken(change, children)


def _values(change: Change, task: Held) -> str | None:
    if task.state not in LIVE:
        return f"it is {task.state}, and only values of live tasks can be set"
    return _unlike(change, task, change.after)


def _unlike(change: Change, task: Held, names: Iterable[str]) -> str | None:
    if any(_differ(getattr(task, name), change.after[name]) for name in names):
        return CHANGED
    try:
        check_against(check_values(Changes(**{name: change.before[name] for name in names})), task)
    except RunnerError as error:
        return str(error)
    return None


def _differ(present: Any, written: Any) -> bool:
    if present == written:
        return False
    try:
        return not isinstance(written, str) or json.loads(present) != json.loads(written)
    except (TypeError, ValueError, RecursionError):
        return True


def _end(change: Change, task: Held) -> str | None:
    same = task.state in MOVES["restore"].sources and task.version == change.after.get("version")
    return None if same else f"it has changed since, and is {task.state} now"


def _overtaken(change: Change, children: Mapping[int, int]) -> str | None:
    child = children.get(change.subject) if change.kind is Kind.END else None
    if child is None:
        return None
    return f"task {child}, which waited for it, was cancelled or let go because of its end; retry both instead"


def _request(change: Change, task: Held) -> str | None:
    if task.state is State.CANCELLED:
        return "it has been carried out: it is cancelled"
    same = task.state is State.RUNNING and task.fence == change.after.get("fence")
    return None if same and task.cancel_requested else f"that run has ended: it is {task.state} now"


def _letting_go(change: Change, task: Held) -> str | None:
    return _not_started(change, task, NOT_STARTED)


def _again(change: Change, task: Held) -> str | None:
    names = edited(change)
    why = _unlike(change, task, names) if names and task.state in LIVE else None
    return why or _not_started(change, task, MOVES["rebury"].sources)


def _not_started(change: Change, task: Held, states: tuple[State | None, ...]) -> str | None:
    if task.fence != change.after.get("fence") or task.state is State.RUNNING:
        return "it has been started since"
    return None if task.state in states else f"it is {task.state} now"


OBJECTIONS: Mapping[Kind | None, Callable[[Change, Held], str | None]] = {
    Kind.VALUES: _values,
    Kind.END: _end,
    Kind.REQUEST: _request,
    Kind.AGAIN: _again,
    Kind.LETTING_GO: _letting_go,
}
"""What speaks against taking back a change of a task, by what that would have to do."""
