"""eligibility: the tasks that an operation applies to; previews and operations share these rules."""

from typing import Any

from runner.model.task import LIVE, MOVES, State
from runner.policy.claim_conditions import used_up

REQUEUED = tuple(state for state in MOVES["requeue"].sources if state)
CANCELLED = tuple(state for state in MOVES["cancel"].sources if state)

ACCEPTED_STATES: dict[str, tuple[State, ...]] = {
    "retry_now": (State.WAITING, *REQUEUED),
    "requeue": REQUEUED,
    "delay": (State.WAITING,),
    "terminate": CANCELLED,
    "edit": LIVE,
    "rewind": (State.WAITING, State.BLOCKED, *REQUEUED),
    "unblock": tuple(state for state in MOVES["unblock"].sources if state),
}
"""The task states that each operation accepts."""

LAST = "with one attempt left: dead if it fails"
"""The remark on tasks for which `is_last` is true, after their number."""


def objection(verb: str, task: Any) -> str | None:
    """The reason why an operation does not apply to a task.

    Args:
        verb: a key of ACCEPTED_STATES.
        task: a row with state, attempt, max_attempts and cancel_requested.

    Returns:
        The reason as a clause; None if the operation applies.
    """
    state = State(task.state)
    if verb == "edit" and state in REQUEUED:
        return f"it is {state}: only an edit that retries it (--requeue) can change it"
    if state not in ACCEPTED_STATES[verb]:
        return f"it is {state}, not {_either(ACCEPTED_STATES[verb])}"
    if verb == "terminate" and task.cancel_requested:
        return "its termination is already requested"
    if verb == "retry_now" and state is State.WAITING and used_up(task.attempt, task.max_attempts):
        return f"it has used {task.attempt} of {task.max_attempts} attempts: raise max_attempts first"
    return None


def is_last(verb: str, task: Any) -> bool:
    """True if the operation starts the last attempt of a task that was attempted before."""
    is_waiting = verb == "retry_now" and State(task.state) is State.WAITING
    return is_waiting and task.attempt > 0 and used_up(task.attempt + 1, task.max_attempts)


def _either(states: tuple[State, ...]) -> str:
    *others, last = states
    return f"{', '.join(others)} or {last}" if others else str(last)
