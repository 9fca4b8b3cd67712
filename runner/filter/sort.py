"""The order of a task list."""

from enum import StrEnum
from typing import NamedTuple

from runner.errors import InvalidSort
from runner.filter.fields import suggestion

ASC, DESC = "asc", "desc"


UP, DOWN = "↑", "↓"


class SortField(StrEnum):
    """The sort fields."""

    ID = "id"
    AGE = "age"
    RUN_AT = "run_at"
    PRIORITY = "priority"
    CLAIMED_AT = "claimed_at"
    FINISHED_AT = "finished_at"
    ATTEMPTS = "attempts"


class Meaning(NamedTuple):
    """The description of a sort field.

    Args:
        of: the tasks that have the field; the list leaves out all others.
        ascending: a description of the ascending order.
        descending: a description of the descending order.
        falls: True if the default order is descending.
    """

    of: str
    ascending: str
    descending: str
    falls: bool


SORTS = {
    SortField.ID: Meaning("all tasks", "oldest first", "newest first", falls=True),
    SortField.AGE: Meaning("all tasks", "newest first", "oldest first", falls=True),
    SortField.RUN_AT: Meaning("waiting tasks", "due first", "due last first", falls=False),
    SortField.PRIORITY: Meaning("waiting tasks", "lowest first", "highest first, in claim order", falls=True),
    SortField.CLAIMED_AT: Meaning("running tasks", "running longest first", "started last first", falls=False),
    SortField.FINISHED_AT: Meaning("finished tasks", "ended longest ago first", "ended last first", falls=True),
    SortField.ATTEMPTS: Meaning("all", "fewest first", "most first", falls=True),
}
"""Every sort field, in display order."""


class Sort(NamedTuple):
    """An order; its text parses back to an equal one.

    Args:
        by: the sort field; the id breaks ties.
        descending: True for the greatest first.
    """

    by: SortField = SortField.ID
    descending: bool = True

    def __str__(self) -> str:
        return f"{self.by} {DESC if self.descending else ASC}"

    @property
    def words(self) -> str:
        """A description of the order."""
        meaning = SORTS[self.by]
        return meaning.descending if self.descending else meaning.ascending

    @property
    def arrow(self) -> str:
        """The direction of the values, down the list."""
        return DOWN if self.descending else UP

    @property
    def reverse(self) -> "Sort":
        """The reverse order."""
        return Sort(self.by, not self.descending)


NEWEST = Sort(SortField.ID, descending=True)


def sort_by(name: str, *, descending: bool | None = None) -> Sort:
    """The order by a field.

    Args:
        descending: the direction; None for the default of the field.

    Raises:
        InvalidSort: the field is unknown.
    """
    if name not in SORTS:
        fields = ", ".join(SORTS)
        raise InvalidSort(sort=repr(name[:30]), why=f"the sort fields are {fields}{suggestion(name, tuple(SORTS))}")
    by = SortField(name)
    return Sort(by, SORTS[by].falls if descending is None else descending)


def parse_sort(text: str) -> Sort:
    """Parse an order: `run_at`, `run_at desc`.

    Raises:
        InvalidSort: the text is not an order.
    """
    name, *direction = text.split() or [""]
    if len(direction) > 1 or not {ASC, DESC}.issuperset(direction):
        raise InvalidSort(sort=repr(text[:40]), why=f"write a field, then {ASC}, {DESC} or nothing")
    return sort_by(name, descending=direction[0] == DESC if direction else None)
