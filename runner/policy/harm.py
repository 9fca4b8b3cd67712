"""The harm of a remedy: which changes of an operator come first where several help alike."""

from collections.abc import Iterable

HARM = (
    "runner",  # adds room and changes nothing that exists
    "due",  # the task alone starts earlier
    "attempts",
    "expired",
    "apart",
    "priority",  # the task overtakes others
    "slots",  # more tasks at the same time, for this process and the services that its handlers call
    "threads",
    "processes",
    "unblock",  # the task runs without the results that it waits for
    "paused",  # ends the decision of an operator
    "resume",
    "limit",  # ends a protection of other systems
    "breaker",
)
"""The kinds of changes, the least harmful first; a kind that is not listed comes last."""


def harm_of(kinds: Iterable[str]) -> tuple[int, int]:
    """The rank of changes that are made together: that of the most harmful one, then their number."""
    ranks = [HARM.index(kind) if kind in HARM else len(HARM) for kind in kinds]
    return max(ranks, default=0), len(ranks)
