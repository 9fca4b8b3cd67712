"""The bounds that runner.policy.suspicion promises: how many rounds suspects take at most, and how long."""

from collections.abc import Mapping
from math import ceil

from runner.policy.suspicion import WIDTHS, Proof


def rounds(innocents: int, killers: int = 0, slots: int = WIDTHS[0], attempts: int = 5) -> int:
    """Maximum number of rounds after which one runner has started all of its suspects.

    Args:
        innocents: tasks that end well, none of them before its last attempt.
        killers: tasks that kill their runner each time.
        slots: of the runner.
    """
    wide, narrow = min(WIDTHS[0], slots), min(WIDTHS[1], slots)
    return (
        (ceil(innocents / wide) + 2 * killers)
        + (ceil(wide * killers / narrow) + killers)
        + (narrow - 1 + attempts) * killers
    )


def seconds(suspects: Mapping[int, int], slots: int, proof: Proof, longest: float) -> float:
    """The longest time in which one runner has started all of its suspects when no more runners are lost.

    Args:
        suspects: how many there are of each width.
        slots: of the runner; a slot is free again after `longest`.
        proof: the times after which suspects make room.
        longest: seconds that the slowest of them runs.
    """
    groups = sum(ceil(n / min(width, slots)) * min(longest, proof.of(width)) for width, n in suspects.items() if n)
    return groups + ceil(sum(suspects.values()) / slots) * longest
