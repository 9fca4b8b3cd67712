"""Id ranges of the history's partitions: when to create one, and how to prune an old one."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from runner.db.schema.partitions import WIDTH
from runner.model.task import LAST_ID

AHEAD = 2
"""Empty ranges kept beyond the current one, so that a burst, or a lock held for hours, does not use them up."""

WIDER_EVERY = 10
"""The width doubles after this many ranges, so that a few dozen cover the retention at any rate."""

FEW = 5_000
"""Maximum number of rows to keep in a range that is dropped; moving them locks out settles."""

LEEWAY = 1 / 8
"""Share of the retention that old rows may be kept longer if their range can be dropped whole after that."""


class Range(NamedTuple):
    """The ids of a partition.

    Args:
        first: lowest id.
        end: lowest id after the range.
    """

    first: int
    end: int


def next_range(ranges: Sequence[Range], next_id: int) -> Range | None:
    """Choose the range to create next.

    Args:
        next_id: id of the next task.

    Returns:
        The range; None if there are enough ranges beyond the next id.
    """
    top, width = max((part.end for part in ranges), default=1), WIDTH * 2 ** (len(ranges) // WIDER_EVERY)
    if top - next_id > AHEAD * width:
        return None
    return _from(max(top, _cell(next_id)), width)


def beyond(candidate: Range, highest_id: int) -> Range | None:
    """Choose the range to create instead of one whose ids already have rows in another partition.

    Args:
        candidate: range from `next_range`.
    """
    return _from(_cell(highest_id) + WIDTH, candidate.end - candidate.first)


def _cell(id: int) -> int:
    """Lowest id at which a range with this id may start."""
    return (id - 1) // WIDTH * WIDTH + 1


def _from(first: int, width: int) -> Range | None:
    return Range(first, first + width) if first + width <= LAST_ID else None


class RangeState(NamedTuple):
    """The state of a range.

    Args:
        used_up: True if all its ids have been assigned.
        few_live: True if at most FEW of its tasks are live; also True if they were not counted, because the range is
            young or not used up.
        old: True if its oldest row exceeds the retention; None without rows.
        all_old: True if all but FEW of its rows exceed the retention; None if it has no more than FEW rows.
        soon_old: the same, after the leeway.
    """

    used_up: bool
    few_live: bool
    old: bool | None
    all_old: bool | None
    soon_old: bool | None


class Fate(StrEnum):
    """How pruning treats a range."""

    KEEP = "keep"
    """Leave it; no row is old."""
    SWEEP = "sweep"
    """Delete its old rows."""
    SPARE = "spare"
    """Leave it for now, to drop it soon."""
    DROP = "drop"
    """Drop it as a whole."""


def fate(state: RangeState) -> Fate:
    """Decide how pruning treats a range."""
    if state.old is False:
        return Fate.KEEP
    if not (state.used_up and state.few_live):
        return Fate.SWEEP
    if state.all_old is not False:
        return Fate.DROP
    return Fate.SPARE if state.soon_old else Fate.SWEEP
