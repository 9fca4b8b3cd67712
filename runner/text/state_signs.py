"""The signs of states."""

from collections.abc import Mapping
from types import MappingProxyType

from runner.model.task import Shown, State

SIGNS: Mapping[Shown, str] = MappingProxyType(
    {
        Shown.READY: "○",
        Shown.SCHEDULED: "◔",
        Shown.RETRYING: "↻",
        Shown.BLOCKED: "◇",
        Shown.RUNNING: "►",
        Shown.LOST: "◌",
        Shown.SUCCEEDED: "✓",
        Shown.DEAD: "✗",
        Shown.CANCELLED: "⊘",
    }
)
"""One narrow sign per state, always shown with its word: never the sign or a colour alone."""


def state_text(state: Shown) -> str:
    """A displayed state: sign and word."""
    return f"{SIGNS[state]} {state}"


def stored_state_text(state: State) -> str:
    """A stored state, as of a workflow: sign and word."""
    return f"{SIGNS[Shown.READY if state is State.WAITING else Shown(state)]} {state}"
