"""The task list: its columns, and its order, which stays fixed while its tasks change.

Tasks are identified by id, never by position.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from rich.cells import cell_len

from runner.filter.fields import Operator
from runner.filter.parse import Filter
from runner.filter.sort import Sort, SortField
from runner.model.task import Shown, is_new
from runner.operations.results import Result
from runner.queries.counting import Count
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.shard_page import ShardCursors, ShardPage
from runner.text import formatting
from runner.text.sanitize import count_noun
from tasktui.render.render import Cell, ListColumn, RenderedRow, handler_cell, line, state, when_text


@dataclass(frozen=True, slots=True)
class Everything:
    """All tasks that match a filter, with their number at the time of the count.

    Args:
        filters: the filter by the name of the database, bounded by the newest match.
    """

    filters: Mapping[str, Filter]
    count: Count

    @property
    def task_filter(self) -> Filter:
        """The filter of the first database."""
        return next(iter(self.filters.values()))


@dataclass(frozen=True, slots=True)
class Listing:
    """Tasks in the order in which they were loaded.

    Args:
        ids: task ids in order.
        tasks: the latest row of each task.
        at: the database's time of the last read; None before the first one.
        next: cursors of the next page by the name of the database; empty at the end of the list.
        indexed: an index covers the filter.
        access: description of the access path.
        missing: ids of tasks that no longer exist.
        live: ids of tasks that were unfinished when loaded.
        marks: the latest row of each marked task, in the list or not.
        newer: number of tasks submitted since the list was loaded.
        all: the filter whose tasks are all marked, if they are too many to list; None otherwise.
        matching: number of matching tasks, loaded or not; None if unknown.
        capped: the search stopped at the scan limit; `next` continues it.
        unknown: a clause about each unknown queue and handler of the filter.
        silent: the error of each shard that did not answer the last read.
        unlisted: the shards without an answer when the list was loaded.
    """

    ids: tuple[int, ...] = ()
    tasks: Mapping[int, TaskRow] = field(default_factory=dict)
    at: datetime | None = None
    next: ShardCursors = field(default_factory=dict)
    indexed: bool = True
    access: str = ""
    missing: frozenset[int] = frozenset()
    live: frozenset[int] = frozenset()
    marks: Mapping[int, TaskRow] = field(default_factory=dict)
    newer: int = 0
    all: "Everything | None" = None
    matching: Count | None = None
    capped: bool = False
    unknown: tuple[str, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)
    unlisted: frozenset[str] = frozenset()

    def loaded(self, page: ShardPage, unknown: tuple[str, ...] = ()) -> "Listing":
        """Replace the list with a first page; marks stay, even of tasks outside the page."""
        tasks = {row.task.id: row.task for row in page.tasks}
        marks = {id: tasks.get(id, task) for id, task in self.marks.items()}
        live, at = _live(tasks.values()), page.at if page.pages else self.at
        listing = Listing(tuple(tasks), tasks, at, page.next, page.indexed, page.access, live=live, marks=marks)
        return replace(listing, all=self.all, capped=page.capped, unknown=unknown)

    def extended(self, page: ShardPage) -> "Listing":
        """Append the next page."""
        new = {row.task.id: row.task for row in page.tasks if row.task.id not in self.tasks}
        return replace(
            self,
            ids=(*self.ids, *new),
            tasks={**self.tasks, **new},
            at=page.at if page.pages else self.at,
            next=page.next,
            access=page.access,
            live=self.live | _live(new.values()),
            capped=page.capped,
        )

    def refreshed(self, ids: Iterable[int], rows: Sequence[TaskRow], at: datetime, newer: int = 0) -> "Listing":
        """Update tasks in their positions.

        Args:
            rows: the existing tasks among them.
            newer: number of tasks submitted since the list was loaded.
        """
        by_id = {row.id: row for row in rows}
        tasks = {**self.tasks, **{id: row for id, row in by_id.items() if id in self.tasks}}
        marks = {id: by_id.get(id, task) for id, task in self.marks.items()}
        missing = frozenset(id for id in ids if id not in by_id)
        return replace(
            self, tasks=tasks, marks=marks, at=at, missing=(self.missing - by_id.keys()) | missing, newer=newer
        )

    def toggled(self, id: int) -> "Listing":
        """Mark or unmark a task of the list."""
        if id in self.marks:
            return replace(self, marks={marked: task for marked, task in self.marks.items() if marked != id})
        return self.marked([self.tasks[id]]) if id in self.tasks else self

    def marked(self, tasks: Iterable[TaskRow]) -> "Listing":
        """Mark tasks, in the list or not."""
        return replace(self, marks={**self.marks, **{task.id: task for task in tasks}}, all=None)

    def between(self, start: int | None, end: int) -> tuple[TaskRow, ...]:
        """The tasks between two ids, both included, in either direction.

        Args:
            start: an id; ignored if it is not in the list.
        """
        if end not in self.tasks:
            return ()
        positions = [self.ids.index(id) for id in (start, end) if id is not None and id in self.tasks]
        return tuple(self.tasks[id] for id in self.ids[min(positions) : max(positions) + 1])

    def with_all(self, filters: Mapping[str, Filter], count: Count) -> "Listing":
        """Mark all tasks that match a filter, without listing them."""
        return replace(self, marks={}, all=Everything(filters, count))

    def unmarked(self, result: Result) -> "Listing":
        """Remove the marks of changed tasks; the mark of a filter, if the operation has been at all its tasks."""
        ids = frozenset(result.changed)
        done = len(ids) + len(result.skipped) + len(result.conflicts) + len(result.stuck)
        left = None if self.all is not None and done >= self.all.count.number else self.all
        return replace(self, marks={id: task for id, task in self.marks.items() if id not in ids}, all=left)

    def cleared(self) -> "Listing":
        """Remove all marks."""
        return replace(self, marks={}, all=None)

    def selected(self, cursor: int | None) -> tuple[TaskRow, ...]:
        """The targets of an action: the marked tasks, or else the one under the cursor."""
        if self.marks:
            return tuple(self.marks.values())
        return (self.tasks[cursor],) if cursor is not None and cursor in self.tasks else ()

    def has_finished(self, id: int) -> bool:
        """True if a task has finished since it was loaded."""
        return id in self.live and self.tasks[id].state.final

    @property
    def count_text(self) -> str:
        """The number of matching and of loaded tasks, as far as known."""
        if not self.next:
            return f"{len(self.ids):,}+ tasks" if self.silent else count_noun(len(self.ids), "task")
        if self.capped:
            return f"{len(self.ids):,} found so far"
        if self.matching is None or self.matching.number < len(self.ids):
            return f"{len(self.ids):,}+ tasks"
        return f"{self.matching} tasks, {len(self.ids):,} loaded"

    @property
    def hidden(self) -> tuple[TaskRow, ...]:
        """The marked tasks that are not in the list."""
        return tuple(task for id, task in self.marks.items() if id not in self.tasks)

    @property
    def details(self) -> str:
        """The number of marked tasks that are not in the list or no longer exist: ` (3 not in this list, 1 gone)`."""
        hidden, missing = len(self.hidden), len(self.missing & self.marks.keys())
        notes = [f"{hidden:,} not in this list"] * bool(hidden) + [f"{missing:,} gone"] * bool(missing)
        return f" ({', '.join(notes)})" if notes else ""


def _live(tasks: Iterable[TaskRow]) -> frozenset[int]:
    return frozenset(task.id for task in tasks if not task.state.final)


class _ListedTask(NamedTuple):
    """A task, the database's time of its row, and the style of a quiet row.

    Rows are quiet if their task has left the list, succeeded, or died long ago.
    """

    task: TaskRow
    at: datetime
    quiet: str
    missing: bool

    def style(self, spec: str) -> str:
        return self.quiet or spec


def _quiet(task: TaskRow, at: datetime) -> str:
    """The style of the row of a task that needs no look; empty for the others."""
    is_old = task.shown is Shown.DEAD and not is_new(task.finished_at, at)
    return "muted" if is_old or task.shown is Shown.SUCCEEDED else ""


def _state_cell(row: _ListedTask) -> Cell:
    cell = state(row.task.shown)
    if row.quiet and not row.missing:
        sign, word = cell.text[:1], cell.text[1:]
        quiet = cell.style if row.task.shown is Shown.SUCCEEDED else row.quiet
        return Cell(cell.text, row.quiet, ((sign, quiet), (word, row.quiet)))
    cancel_mark = "!" if row.task.cancel_requested else ""
    return Cell("gone", "faint") if row.missing else Cell(f"{cell.text}{cancel_mark}", cell.style)


def _attempt_cell(row: _ListedTask) -> Cell:
    task = row.task
    used_up = task.max_attempts is not None and task.attempt >= task.max_attempts
    tried = "dead" if used_up and task.shown is Shown.DEAD else "retrying" if task.attempt > 1 else "muted"
    return Cell(formatting.attempts(task.attempt, task.max_attempts), row.style(tried))


def _when_cell(row: _ListedTask) -> Cell:
    when, role = when_text(row.task, row.at)
    return Cell(when, row.style(role))


def _reason_cell(row: _ListedTask) -> Cell:
    reason = formatting.brief(row.task.remark)
    kind, colon, rest = reason.partition(": ")
    error = ((kind, row.style("text")), (colon + rest, row.style("muted")))
    return Cell(reason, row.style("muted"), error if colon else None)


TASK_COLUMNS: tuple[tuple[ListColumn, Callable[[_ListedTask], Cell]], ...] = (
    (ListColumn("ID", 8, right=True), lambda row: Cell(str(row.task.id), row.style("text"))),
    (ListColumn("STATE", 12), _state_cell),
    (ListColumn("QUEUE", 10, drop=4, name=True), lambda row: Cell(line(row.task.queue), row.style("muted"))),
    (ListColumn("HANDLER", 19, name=True), lambda row: handler_cell(line(row.task.handler), row.style("text"))),
    (
        ListColumn("KEY", 15, grow=1, name=True),
        lambda row: Cell(line(row.task.key) if row.task.key else "", row.style("text")),
    ),
    (ListColumn("ATTEMPT", 7, right=True), _attempt_cell),
    (ListColumn("WHEN", 11, right=True), _when_cell),
    (
        ListColumn("AGE", 7, right=True, drop=2),
        lambda row: Cell(formatting.since(row.task.submitted_at, row.at), row.style("muted")),
    ),
    (ListColumn("REASON", 16, grow=2, drop=1), _reason_cell),
)
"""The columns of the task list, each with its head and its cell."""

TASK_HEADS = tuple(head for head, _ in TASK_COLUMNS)
"""The heads of the task list."""


def task_line(task: TaskRow, at: datetime, *, finished: bool = False, missing: bool = False) -> RenderedRow:
    """A row of the task list.

    Args:
        task: the latest row.
        finished: the task has finished since it was loaded.
        missing: the task has been pruned since.
    """
    row = _ListedTask(task, at, "faint" if finished or missing else _quiet(task, at), missing)
    return RenderedRow(tuple(cell(row) for _, cell in TASK_COLUMNS), struck=finished or missing)


TITLES = {
    SortField.ID: "ID",
    SortField.AGE: "AGE",
    SortField.RUN_AT: "WHEN",
    SortField.CLAIMED_AT: "WHEN",
    SortField.FINISHED_AT: "WHEN",
    SortField.ATTEMPTS: "ATTEMPT",
}
"""The column of each sort order; priority has none."""


def columns_for(
    sort: Sort, task_filter: Filter | None = None, empty: str = "", keys: int | None = None, ids: int = 0
) -> dict[int, ListColumn]:
    """The columns by their position in a row, with an arrow at the sorted one. A list of one queue needs no QUEUE.

    Args:
        ids: cells of the longest id, if one has more than usual.
        empty: title of a column without texts, KEY or REASON, whose room goes to the other one.
        keys: cells of the longest key, so that REASON gets the rest; None to share the rest.
    """
    title, arrow = TITLES.get(sort.by), f" {sort.arrow}"
    one_queue, columns = _one_queue(task_filter), dict[int, ListColumn]()
    for position, head in enumerate(TASK_HEADS):
        column = head._replace(title=head.title + arrow * (head.title == title))
        if head.title == "ID":
            column = column._replace(width=max(column.width, ids))
        if head.title == "KEY" and keys is not None and empty != "REASON":
            column = column._replace(width=min(max(keys, len(column.title)), LONGEST_KEY), grow=0)
        if head.title == empty:
            column = column._replace(width=len(column.title), grow=0)
        if not (head.title == "QUEUE" and one_queue):
            columns[position] = column
    return columns


LONGEST_KEY = 30
"""The most cells of a key beside its reason."""


def longest_key(tasks: Iterable[TaskRow]) -> int:
    """The cells of the longest key."""
    return max((cell_len(line(task.key)) for task in tasks if task.key), default=0)


def empty_column(tasks: Iterable[TaskRow]) -> str:
    """The title of the column, KEY or REASON, in which no task has a text, if the other one has texts."""
    texts = [(bool(task.key), bool(task.remark)) for task in tasks]
    keys, reasons = any(key for key, _ in texts), any(reason for _, reason in texts)
    return "" if keys is reasons else "REASON" if keys else "KEY"


def _one_queue(task_filter: Filter | None) -> bool:
    """True if all tasks that match a filter are of one queue."""
    terms = task_filter.terms if task_filter is not None else ()
    return any(term.field == "queue" and term.operator is Operator.EQ and not term.negated for term in terms)


def list_line(listing: Listing, id: int, *, positions: Sequence[int] = range(len(TASK_HEADS))) -> RenderedRow:
    """Render a task of a list as a row with some of its columns."""
    assert listing.at is not None  # noqa: S101 - ids come from a read
    row = task_line(listing.tasks[id], listing.at, finished=listing.has_finished(id), missing=id in listing.missing)
    return row._replace(cells=tuple(row.cells[position] for position in positions))
