"""Screens of a past time: queues, tasks, the causes of one task, and runners with tasks, as they were.

They read once and never act. A screen whose data the database does not keep reports this in one line.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from textwrap import wrap
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term, parse_filter
from runner.model.task import Shown
from runner.queries.counting import Count
from runner.queries.past.as_of import (
    CANDIDATES,
    MISSING,
    UNAUDITED,
    PastPage,
    PastQueue,
    PastQueues,
    queues_as_of,
    tasks_as_of,
)
from runner.queries.past.reconstruction import PastTask
from runner.queries.registries import Pause
from runner.queries.why.why import why_as_of
from runner.text import formatting
from runner.text.times import EARLIEST, format_moment
from tasktui.data.task_list import TASK_HEADS, columns_for, empty_column, task_line
from tasktui.render.render import Cell, ListColumn, RenderedRow, line, lines
from tasktui.render.rows import BLANK, Part, Row, fit
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import Table

LONGEST_NOTE = 500
PAGE, NEAR = 200, 20
"""Characters of a note, tasks per page, and rows before the last one at which the next page is read."""


class PastScreen(LiveScreen):
    """A screen of the session's past time. It has no actions."""

    LIVE = False
    ABOUT = "As it was at a past time. [ and ] move by a minute, { and } by ten, :at goes to any time, :at now returns."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("[", "step(-1)", "-1 min", key_display="["),
        Binding("]", "step(1)", "+1 min", key_display="]"),
        Binding("{", "step(-10)", "-10 min", key_display="{"),
        Binding("}", "step(10)", "+10 min", key_display="}"),
    ]

    _at = EARLIEST

    @property
    def at(self) -> datetime:
        """The past time; the last one when the session returns to the present."""
        self._at = self.session.at or self._at
        return self._at

    def parts(self) -> Iterable[Widget]:
        """Return the line with the time, and the body."""
        yield Canvas(id="title")
        yield from self.body()

    def body(self) -> Iterable[Widget]:
        """Return the widgets below the line with the time."""
        return ()

    def request(self) -> object:
        """Return the past time."""
        return self.session.at

    def action_step(self, minutes: int) -> None:
        """Move the past time."""
        self.actions.run(self._step(timedelta(minutes=minutes)))

    async def _step(self, distance: timedelta) -> None:
        await self.session.go_to((self.at + distance).isoformat())
        self.call_later(self.action_reload)

    def show_head(self, at: datetime, *notes: str) -> None:
        """Show the time of the data, and a line for each note."""
        time: list[Part] = [(" As of ", "muted"), (format_moment(at, self.session.zone), "bold strong")]
        width = self.size.width
        self.query_one("#title", Canvas).draw([fit(time, width), *note_rows(notes, width), BLANK])


def note_rows(notes: Iterable[str], width: int) -> list[Row]:
    """Notes as wrapped lines."""
    return [
        [(f" {part}", "muted")] for note in notes if note for part in wrap(line(note, LONGEST_NOTE), max(20, width - 2))
    ]


class PastOverview(PastScreen):
    """The queues of a past time."""

    ABOUT = (
        "Queues as they were. UNSURE counts tasks that were waiting, or waiting or running: the database does not keep "
        "which. Enter lists the tasks of a queue."
    )
    OPENS = "tasks"
    COLUMNS = (
        ListColumn("NAME", 9, grow=1, name=True),
        *(ListColumn(name, 7, right=True) for name in ("READY", "SCHED", "RETRY")),
        ListColumn("BLOCKED", 7, right=True, drop=3),
        ListColumn("RUNNING", 7, right=True),
        ListColumn("UNSURE", 7, right=True),
        ListColumn("DEAD", 7, right=True),
        ListColumn("OLDEST", 7, right=True),
        ListColumn("DONE/MIN", 8, right=True, drop=2),
        ListColumn("FAILED/H", 8, right=True, drop=1),
        ListColumn("PAUSED OR LIMITED", 18, grow=1, drop=4),
    )

    def body(self) -> Iterable[Widget]:
        """Return the queues and the runners with tasks."""
        yield Table[str](self.COLUMNS, id="queues")
        yield Canvas(id="lower")

    async def read(self) -> object:
        """Count the tasks of each queue."""
        return await self.session.read(queues_as_of, self.at)

    def show(self, snapshot: Any) -> None:
        """Show the queues."""
        data: PastQueues = snapshot
        bounds = "a + marks a lower bound, and an empty figure is unknown"
        capped = f"Only the newest {CANDIDATES:,} unfinished tasks are counted: {bounds}." if data.capped else ""
        self.show_head(data.at, capped, MISSING, "" if data.audited else UNAUDITED)
        rows = {queue.queue: queue for queue in data.queues}
        self.query_one("#queues", Table).show(
            tuple(rows), lambda name: queue_line(rows[name], data, capped=data.capped)
        )
        notes = [f"Handler {line(name)}: {pause_text(pause, data)}." for name, pause in data.handlers.items()]
        notes.append(
            "Not recorded: live runners, slots, and breakers. The screen of a task names what is unknown about it."
        )
        self.query_one("#lower", Canvas).draw(note_rows(notes, self.size.width))

    @on(Table.Selected)
    def _list_queue(self, event: Table.Selected) -> None:
        self.console.open_tasks(str(Filter((Term("queue", Operator.EQ, event.key),))))


def queue_line(queue: PastQueue, data: PastQueues, *, capped: bool) -> RenderedRow:
    """The row of a queue."""
    columns = [Shown.READY, Shown.SCHEDULED, Shown.RETRYING, Shown.BLOCKED, Shown.RUNNING]
    unsure = sum(number for word, number in queue.states.items() if word not in columns)

    def cell(number: int, role: str) -> Cell:
        unknown = capped and not number
        return Cell("" if unknown else str(Count(number, capped)), role if number else "faint")

    notes = [pause_text(queue.pause, data)] if queue.pause else []
    notes += [str(queue.limits)] if any(queue.limits) else []
    return RenderedRow(
        (
            Cell(line(queue.queue), "text"),
            *(cell(queue.states.get(shown, 0), str(shown)) for shown in columns),
            cell(unsure, "retrying"),
            Cell(str(queue.dead), "dead" if queue.dead.number else "faint"),
            Cell(f"{formatting.age(queue.oldest)}{'+' * capped}" if queue.oldest is not None else "", "text"),
            Cell(f"{queue.minute.finished:,}", "text" if queue.minute.finished else "faint"),
            Cell(f"{queue.hour.failed:,}", "text" if queue.hour.failed else "faint"),
            Cell(line(", ".join(notes)) if notes else "", "paused"),
        )
    )


def pause_text(pause: Pause, data: PastQueues) -> str:
    """A pause in words: by whom, for how long, and why."""
    why = f": {formatting.reason(pause.why)}" if pause.why else ""
    return f"paused for {formatting.since(pause.since, data.at)} by {line(pause.by or 'an unknown operator')}{why}"


class PastTasks(PastScreen):
    """The tasks of a past time, newest first."""

    ABOUT = "Tasks as they were, newest first. / filters by the values of then, and enter explains a task."
    OPENS = "why"
    AUTO_FOCUS = "#tasks"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "app.command('tasks')", "Filter", key_display="/", priority=True)
    ]

    def __init__(self) -> None:
        super().__init__()
        self._tasks: dict[int, PastTask] = {}
        self._next: int | None = None
        self._more = False

    def body(self) -> Iterable[Widget]:
        """Return the list."""
        yield Table[int](TASK_HEADS, id="tasks")

    def request(self) -> object:
        """Return the past time and the filter."""
        return (self.session.at, self.opened.filter_text)

    async def read(self) -> object:
        """Read the first or the next page."""
        session = self.session
        task_filter = parse_filter(self.opened.filter_text, self.at, session.zone)
        after, self._more = (self._next if self._more else None), False
        return after, await session.read(tasks_as_of, self.at, task_filter, after, PAGE)

    def action_reload(self) -> None:
        """Read the first page."""
        self._more = False
        super().action_reload()

    def show(self, snapshot: Any) -> None:
        """Show the pages that were read."""
        page: PastPage
        after, page = snapshot
        self._tasks = (self._tasks if after is not None else {}) | {task.task.id: task for task in page.tasks}
        self._next = page.next
        heading = f"Filter: {self.opened.filter_text}" if self.opened.filter_text else ""
        bound = f", of {CANDIDATES:,} examined" if page.capped else ""
        count = f"{Count(len(self._tasks), page.next is not None).of('task')}{bound}. {MISSING}"
        self.show_head(page.at, heading, count, "" if page.audited else UNAUDITED)
        places = columns_for(self.opened.sort, empty=empty_column([each.task for each in self._tasks.values()]))
        longest = max((len(each.word) for each in self._tasks.values()), default=0)
        places[1] = places[1]._replace(width=max(places[1].width, longest))
        table = self.query_one("#tasks", Table)
        table.columns = tuple(places.values())
        table.show(tuple(self._tasks), partial(past_line, self._tasks, page, places=tuple(places)))

    @on(Table.CursorMoved)
    def _read_next_page(self) -> None:
        table = self.query_one(Table)
        if self._next is not None and (table.position(table.cursor) or 0) >= len(self._tasks) - NEAR:
            self._more = True
            self.feed.hurry()

    @on(Table.Selected)
    def _explain(self, event: Table.Selected) -> None:
        self.console.open_task(event.key)


def past_line(tasks: dict[int, PastTask], page: PastPage, id: int, *, places: Sequence[int]) -> RenderedRow:
    """The row of a task; the word of a state that is not known exactly has no sign."""
    past, row = tasks[id], task_line(tasks[id].task, page.at)
    word = row.cells[1] if past.certain else Cell(past.word, "muted")
    return row._replace(cells=tuple(word if place == 1 else row.cells[place] for place in places))


class PastTaskScreen(PastScreen):
    """One task of a past time, and why it was not running."""

    def body(self) -> Iterable[Widget]:
        """Return the causes."""
        yield VerticalScroll(Static(Content(""), id="answer"))

    def request(self) -> object:
        """Return the past time and the task."""
        return (self.session.at, self.opened.id)

    async def read(self) -> object:
        """Read the causes; None without a task."""
        id = self.opened.id
        return () if id is None else await self.session.read(why_as_of, id, self.at, self.session.zone)

    def show(self, snapshot: Any) -> None:
        """Show the causes."""
        from tasktui.dialogs.why import why_lines

        self.show_head(
            snapshot.at if snapshot else self.at, "" if snapshot else "Select a task on the list, or :task ID."
        )
        width = max(20, self.size.width - 4)
        self.query_one("#answer", Static).update(lines(why_lines(snapshot, width)) if snapshot else "")


class PastRunners(PastScreen):
    """The runners that had tasks at a past time."""

    COLUMNS = (
        ListColumn("RUNNER", 9, right=True),
        ListColumn("RUNNING", 7, right=True),
        ListColumn("HOST", 20, grow=1, name=True),
    )

    def body(self) -> Iterable[Widget]:
        """Return the runners."""
        yield Table[tuple[int | None, str]](self.COLUMNS, id="runners")

    async def read(self) -> object:
        """Count the running tasks of each runner."""
        return await self.session.read(queues_as_of, self.at)

    def show(self, snapshot: Any) -> None:
        """Show the runners."""
        data: PastQueues = snapshot
        note = "Runners with running tasks. Not recorded: idle runners, slots and leases."
        self.show_head(data.at, note, "" if data.busy else "No task was running.")

        def row(key: tuple[int | None, str]) -> RenderedRow:
            number = Count(data.busy[key], data.capped)
            return RenderedRow(
                (Cell(str(key[0] or ""), "text"), Cell(str(number), "running"), Cell(line(key[1]), "text"))
            )

        self.query_one("#runners", Table).show(tuple(data.busy), row)


UNKNOWN = {
    "Failures": "runner failures 'since:3:00 until:4:00' lists the failed attempts of a period.",
    "Schedules": "The task list has the tasks that schedules submitted.",
    "Reports": ":incident 3:00 4:00 reports on a period.",
    "Audit": "runner audit --since 3:00 lists the changes.",
    "Workflows": "The task list has the tasks of a workflow: workflow:17.",
}
"""The screens that cannot be reconstructed, each with another way to such data."""


class UnknownPast(PastScreen):
    """A screen that cannot be reconstructed."""

    async def read(self) -> object:
        """Read nothing."""
        return ()

    def show(self, _snapshot: Any) -> None:
        """Show the reason."""
        name = self.title or ""
        note = f"{name} cannot be shown for a past time. {UNKNOWN[name]}"
        self.show_head(self.at, note, ":at now returns to the present.")


KNOWN: dict[str, type[PastScreen]] = {
    "overview": PastOverview,
    "tasks": PastTasks,
    "task": PastTaskScreen,
    "runners": PastRunners,
}


def past_screen(name: str) -> PastScreen:
    """The screen of a past time for a screen of the present, by its name."""
    return KNOWN.get(name, UnknownPast)()
