"""Ranges of ids in the history: when another one is needed, and what is to become of an old one."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from runner.schema.partitions import WIDTH

AHEAD = 2
"""Ranges that stand empty beyond the one in use, so that neither a burst nor a lock of hours overtakes them."""

WIDER_EVERY = 10
"""So many ranges, and the next ones are twice as wide: whatever the rate, a few dozen hold what is kept."""

FEW = 5_000
"""Rows that may still be kept, or come, when a range is dropped: they are put elsewhere, which locks settles out."""

LEEWAY = 1 / 8
"""The share of their retention for which rows may be kept longer, where their range can then be dropped whole."""

LAST_ID = 2**63 - 1


class Range(NamedTuple):
    """Ids of one partition.

    Args:
        first: the lowest.
        end: the first one beyond.
    """

    first: int
    end: int


def next_range(ranges: Sequence[Range], next_id: int) -> Range | None:
    """Choose the range to create next.

    Args:
        ranges: that there are.
        next_id: the id that will be handed out next.

    Returns:
        The range; None when there are enough beyond the next id.
    """
    top, width = max((part.end for part in ranges), default=1), WIDTH * 2 ** (len(ranges) // WIDER_EVERY)
    if top - next_id > AHEAD * width:
        return None
    return _from(max(top, _cell(next_id)), width)


def beyond(wanted: Range, taken: int) -> Range | None:
    """Choose the range to create instead of one that has ids which stand elsewhere already.

    Args:
        wanted: as `next_range` chose it.
        taken: the highest of these ids.
    """
    return _from(_cell(taken) + WIDTH, wanted.end - wanted.first)


def _cell(id: int) -> int:
    """Where a range that holds an id may begin."""
    return (id - 1) // WIDTH * WIDTH + 1


def _from(first: int, width: int) -> Range | None:
    return Range(first, first + width) if first + width <= LAST_ID else None


class Weighed(NamedTuple):
    """What is known of a range.

    Args:
        used_up: all its ids have been handed out.
        few_live: at most FEW tasks with its ids are live.
        old: its oldest row need not be kept any more; None when it has no rows.
        all_old: all but FEW of its rows need not be kept; None when it has no more than those.
        soon_old: the same would be so after the leeway.
    """

    used_up: bool
    few_live: bool
    old: bool | None
    all_old: bool | None
    soon_old: bool | None


class Fate(StrEnum):
    """What is to become of a range."""

    KEEP = "keep"
    """Nothing in it is old."""
    SWEEP = "sweep"
    """Its old rows are deleted."""
    SPARE = "spare"
    """It is left alone, to be dropped soon."""
    DROP = "drop"
    """It is dropped as a whole."""


def fate(weighed: Weighed) -> Fate:
    """Decide what is to become of a range."""
    if weighed.old is False:
        return Fate.KEEP
    if not (weighed.used_up and weighed.few_live):
        return Fate.SWEEP
    if weighed.all_old is not False:
        return Fate.DROP
    return Fate.SPARE if weighed.soon_old else Fate.SWEEP
