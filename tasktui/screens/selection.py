"""Selection: the marks of a task list, on single tasks, a range, or all tasks that match a filter."""

from collections.abc import Sequence

from runner.filter.parse import Filter
from runner.queries.task_list.row import TaskRow
from tasktui.data.task_pages import TaskPages
from tasktui.messages import MatchesFound
from tasktui.widgets.table import Table


class Selection:
    """The marked tasks, or the task under the cursor.

    Args:
        pages: the loaded tasks, which hold the marks.
        table: the table with the cursor.
    """

    def __init__(self, pages: TaskPages, table: Table[int]) -> None:
        self._pages = pages
        self._table = table
        self._range_start: int | None = None

    def tasks(self) -> Sequence[TaskRow]:
        """Return the marked tasks, or the task under the cursor."""
        return self._pages.listing.selected(self._table.cursor)

    def task_filter(self) -> Filter | None:
        """Return the filter whose tasks are all marked; None if the marks are on single tasks."""
        everything = self._pages.listing.all
        return everything.task_filter if everything is not None else None

    def toggle(self) -> None:
        """Toggle the mark of the task under the cursor and move down."""
        if self._table.cursor is not None:
            self._range_start = self._table.cursor
            self._pages.listing = self._pages.listing.toggled(self._table.cursor)
            self._table.action_move(1)

    def extend(self) -> None:
        """Mark the tasks from the last marked one to the cursor."""
        cursor, listing = self._table.cursor, self._pages.listing
        if cursor is not None:
            self._pages.listing = listing.marked(listing.between(self._range_start, cursor))
            self._range_start = cursor

    def clear(self) -> None:
        """Clear all marks."""
        self._pages.listing, self._range_start = self._pages.listing.cleared(), None

    def add(self, matches: MatchesFound) -> None:
        """Mark all tasks that match a filter, loaded or not."""
        listing = self._pages.listing
        if matches.rows is None:
            self._pages.listing = listing.with_all(matches.task_filter, matches.count)
        else:
            self._pages.listing = listing.marked(matches.rows)
