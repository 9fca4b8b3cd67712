"""The list of tasks as the operator sees it: its order stands still while the tasks in it change.

Everything in it is found by a task's id, never by a place in the list.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from runner.people.filters import Filter
from runner.people.terminal import counted
from runner.store.observe import Bookmark, Count, Page, TaskRow


@dataclass(frozen=True, slots=True)
class Everything:
    """All tasks that a filter lets through, as many as there were when they were counted."""

    wanted: Filter
    count: Count


@dataclass(frozen=True, slots=True)
class Listing:
    """Tasks in the order in which they were loaded.

    Args:
        ids: in order.
        tasks: each as it was read last.
        at: the database's time when anything was read last; None before anything was.
        next: where to go on behind the last one; None when there are no more.
        indexed: an index finds the filter's tasks.
        way: how they were found, in words.
        gone: ids of those that exist no more.
        live: ids of those that had not ended when they were loaded.
        marks: marked tasks as they were seen last, in the list or not.
        newer: tasks that were submitted since it was loaded.
        all: that all are marked which a filter lets through, more than can be named; None when they are not.
        matching: how many tasks match, loaded or not; None when that is not known.
    """

    ids: tuple[int, ...] = ()
    tasks: Mapping[int, TaskRow] = field(default_factory=dict)
    at: datetime | None = None
    next: Bookmark | None = None
    indexed: bool = True
    way: str = ""
    gone: frozenset[int] = frozenset()
    live: frozenset[int] = frozenset()
    marks: Mapping[int, TaskRow] = field(default_factory=dict)
    newer: int = 0
    all: "Everything | None" = None
    matching: Count | None = None

    def loaded(self, page: Page) -> "Listing":
        """Begin anew with a first page; marks stay, also those of tasks that are not in it."""
        tasks = {task.id: task for task in page.tasks}
        marks = {id: tasks.get(id, task) for id, task in self.marks.items()}
        live = _live(page.tasks)
        return Listing(
            tuple(tasks), tasks, page.at, page.next, page.indexed, page.way, live=live, marks=marks, all=self.all
        )

    def extended(self, page: Page) -> "Listing":
        """Go on with the next page."""
        new = {task.id: task for task in page.tasks if task.id not in self.tasks}
        return replace(
            self,
            ids=(*self.ids, *new),
            tasks={**self.tasks, **new},
            at=page.at,
            next=page.next,
            way=page.way,
            live=self.live | _live(page.tasks),
        )

    def refreshed(self, asked: Iterable[int], rows: Sequence[TaskRow], at: datetime, newer: int = 0) -> "Listing":
        """Update tasks in their places.

        Args:
            asked: ids that were looked for.
            rows: those of them that exist.
            at: the database's time.
            newer: tasks that were submitted since the list was loaded.
        """
        found = {row.id: row for row in rows}
        tasks = {**self.tasks, **{id: row for id, row in found.items() if id in self.tasks}}
        marks = {id: found.get(id, task) for id, task in self.marks.items()}
        missing = frozenset(id for id in asked if id not in found)
        return replace(self, tasks=tasks, marks=marks, at=at, gone=(self.gone - found.keys()) | missing, newer=newer)

    def toggled(self, id: int) -> "Listing":
        """Mark a task of the list, or take its mark away."""
        if id in self.marks:
            return replace(self, marks={marked: task for marked, task in self.marks.items() if marked != id})
        return self.marked([self.tasks[id]]) if id in self.tasks else self

    def marked(self, tasks: Iterable[TaskRow]) -> "Listing":
        """Mark tasks, in the list or not."""
        return replace(self, marks={**self.marks, **{task.id: task for task in tasks}}, all=None)

    def between(self, one: int | None, other: int) -> tuple[TaskRow, ...]:
        """The tasks of the list from one to the other, both included, whichever comes first.

        Args:
            one: an id; when it does not stand in the list, only the other is meant.
            other: an id in the list.
        """
        if other not in self.tasks:
            return ()
        places = [self.ids.index(id) for id in (one, other) if id is not None and id in self.tasks]
        return tuple(self.tasks[id] for id in self.ids[min(places) : max(places) + 1])

    def with_all(self, wanted: Filter, count: Count) -> "Listing":
        """Mark all that a filter lets through, without naming each."""
        return replace(self, marks={}, all=Everything(wanted, count))

    def cleared(self) -> "Listing":
        """Take all marks away."""
        return replace(self, marks={}, all=None)

    def chosen(self, cursor: int | None) -> tuple[TaskRow, ...]:
        """What an action is done to: the marked tasks, or else the one under the cursor, as they were seen last."""
        if self.marks:
            return tuple(self.marks.values())
        return (self.tasks[cursor],) if cursor is not None and cursor in self.tasks else ()

    def ended(self, id: int) -> bool:
        """Tell whether a task has ended since it was loaded."""
        return id in self.live and self.tasks[id].state.final

    @property
    def found(self) -> str:
        """How many tasks match, and how many of them are loaded, as far as that is known."""
        if self.next is None:
            return counted(len(self.ids), "task")
        if self.matching is None or self.matching.number < len(self.ids):
            return f"{len(self.ids):,}+ tasks"
        return f"{self.matching} tasks, {len(self.ids):,} loaded"

    @property
    def aside(self) -> str:
        """How many marked tasks do not stand in the list, or exist no more: ` (3 not in this list, 1 gone)`."""
        hidden, gone = (sum(id not in self.tasks for id in self.marks), len(self.gone & self.marks.keys()))
        told = [f"{hidden:,} not in this list"] * bool(hidden) + [f"{gone:,} gone"] * bool(gone)
        return f" ({', '.join(told)})" if told else ""


def _live(tasks: Iterable[TaskRow]) -> frozenset[int]:
    return frozenset(task.id for task in tasks if not task.state.final)
