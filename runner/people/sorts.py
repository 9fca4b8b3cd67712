"""Orders of a list of tasks, as people type them: `run_at`, `finished_at desc`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from runner.errors import InvalidSort
from runner.people.fields import suggestion

ASC, DESC = "asc", "desc"
UP, DOWN = "↑", "↓"


class By(StrEnum):
    """What a list can be sorted by."""

    ID = "id"
    AGE = "age"
    RUN_AT = "run_at"
    PRIORITY = "priority"
    CLAIMED_AT = "claimed_at"
    FINISHED_AT = "finished_at"
    ATTEMPTS = "attempts"


class Meaning(NamedTuple):
    """What it means to sort by something.

    Args:
        of: the tasks that have it, as people say; all others are left out of the list.
        ascending: what comes first, the least before.
        descending: what comes first, the greatest before.
        falls: the greatest comes first unless somebody says otherwise.
    """

    of: str
    ascending: str
    descending: str
    falls: bool


SORTS = {
    By.ID: Meaning("all", "oldest first", "newest first", falls=True),
    By.AGE: Meaning("all", "newest first", "oldest first", falls=True),
    By.RUN_AT: Meaning("those that wait", "due first", "due last first", falls=False),
    By.PRIORITY: Meaning("those that wait", "lowest first", "highest first, as they are claimed", falls=True),
    By.CLAIMED_AT: Meaning("those that run", "running longest first", "started last first", falls=False),
    By.FINISHED_AT: Meaning("those that have ended", "ended longest ago first", "ended last first", falls=True),
    By.ATTEMPTS: Meaning("all", "fewest first", "most first", falls=True),
}
"""Every sort, in the order to show them."""


@dataclass(frozen=True, slots=True)
class Sort:
    """An order. Its text reads back as an equal one.

    Args:
        by: what counts; where it is the same, the id does.
        descending: the greatest comes first.
    """

    by: By = By.ID
    descending: bool = True

    def __str__(self) -> str:
        return f"{self.by} {DESC if self.descending else ASC}"

    @property
    def words(self) -> str:
        """What comes first, as people say it."""
        meaning = SORTS[self.by]
        return meaning.descending if self.descending else meaning.ascending

    @property
    def arrow(self) -> str:
        """Which way the values go, down the list."""
        return DOWN if self.descending else UP

    @property
    def reverse(self) -> "Sort":
        """The same, from the other end."""
        return Sort(self.by, not self.descending)


NEWEST = Sort(By.ID, descending=True)
OLDEST = Sort(By.ID, descending=False)


def sort_by(name: str, *, descending: bool | None = None) -> Sort:
    """Read an order.

    Args:
        name: of what counts.
        descending: which way; None for the way that is usual for it.

    Raises:
        InvalidSort: there is nothing of that name.
    """
    if name not in SORTS:
        known = ", ".join(SORTS)
        raise InvalidSort(sort=repr(name[:30]), why=f"write one of {known}{suggestion(name, tuple(SORTS))}")
    by = By(name)
    return Sort(by, SORTS[by].falls if descending is None else descending)


def parse_sort(text: str) -> Sort:
    """Read an order as it is typed: `run_at`, `run_at desc`.

    Raises:
        InvalidSort: it is none.
    """
    name, *way = text.split() or [""]
    if len(way) > 1 or not {ASC, DESC}.issuperset(way):
        raise InvalidSort(sort=repr(text[:40]), why=f"behind what counts stands {ASC}, {DESC}, or nothing")
    return sort_by(name, descending=way[0] == DESC if way else None)
