"""eligibility: to which tasks an intervention applies; the preview and the act ask the same question."""

from typing import Any

from runner.task import LIVE, MOVES, State

REQUEUED = tuple(state for state in MOVES["requeue"].sources if state)
CANCELLED = tuple(state for state in MOVES["cancel"].sources if state)

VERBS: dict[str, tuple[State, ...]] = {
    "retry_now": (State.WAITING, *REQUEUED),
    "requeue": REQUEUED,
    "delay": (State.WAITING,),
    "terminate": CANCELLED,
    "edit": LIVE,
    "unblock": tuple(state for state in MOVES["unblock"].sources if state),
}
"""The states of the tasks that each intervention can be done to."""

LAST = "tried before with one attempt left: dead if that fails too"
"""What is said of tasks that `is_last` holds for, behind their number."""


def objection(verb: str, task: Any) -> str | None:
    """Say why an intervention cannot be done to a task.

    Args:
        verb: a key of VERBS.
        task: with state, attempt, max_attempts and cancel_requested.

    Returns:
        The reason, as the end of a sentence; None when nothing speaks against it.
    """
    state = State(task.state)
    if verb == "edit" and state in REQUEUED:
        return f"it is {state}: only an edit that runs it again (--again) sets its values"
    if state not in VERBS[verb]:
        return f"it is {state}, and must be {_either(VERBS[verb])}"
    if verb == "terminate" and task.cancel_requested:
        return "its end has been asked for already"
    if verb == "retry_now" and state is State.WAITING and used_up(task.attempt, task.max_attempts):
        return f"its attempts are used up ({task.attempt} of {task.max_attempts}): raise max_attempts first"
    return None


def used_up(attempt: int, max_attempts: int | None) -> bool:
    """Tell whether a task has no attempts left; claims pass it by."""
    return max_attempts is not None and attempt >= max_attempts


def is_last(verb: str, task: Any) -> bool:
    """Tell whether what an intervention starts is the last attempt of a task that had others."""
    waits = verb == "retry_now" and State(task.state) is State.WAITING
    return waits and task.attempt > 0 and used_up(task.attempt + 1, task.max_attempts)


def _either(states: tuple[State, ...]) -> str:
    *others, last = states
    return f"{', '.join(others)} or {last}" if others else str(last)
