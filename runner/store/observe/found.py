"""found: what a search found, and how."""

from dataclasses import dataclass
from enum import Enum, auto

from runner.store.observe.bookmark import Bookmark

STRETCH = 20_000
"""Rows that one search walks over at most where no index finds the right ones."""


class Way(Enum):
    """How tasks were found."""

    INDEX = auto()
    """Along an index: nothing else was looked at."""

    SIFTED = auto()
    """Along an index, row by row, most of which may not be wanted."""

    SORTED = auto()
    """All that a stretch holds was looked at, and sorted."""


@dataclass(frozen=True, slots=True)
class Found:
    """A stretch of ids.

    Args:
        ids: in order.
        next: the place to go on from; None when there is nothing more.
        capped: True when the search stopped for having walked far, not for having found enough; what was sorted was
            not all then.
        way: how they were found.
    """

    ids: list[int]
    next: Bookmark | None
    capped: bool
    way: Way = Way.INDEX
