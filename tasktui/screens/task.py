"""TaskScreen and PreviewPane: one task, on a screen of its own or beside the list."""

from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.widget import Widget

from runner.db.transaction import clock
from runner.errors import TaskNotFound
from runner.queries.task.detail import TaskDetail, task_detail
from runner.queries.task_list.row import TaskRow
from runner.text import formatting
from runner.text.redact import decode
from runner.text.runner_name import process_name
from tasktui.actions import perform
from tasktui.actions.action import Targets
from tasktui.actions.as_command import command_line
from tasktui.messages import RevealRecorded
from tasktui.panels import task as panels
from tasktui.render.code import payload_line
from tasktui.render.render import line, when_text
from tasktui.render.rows import BLANK, Part, Row, beside, fit, handler, heading, pill, rule, state
from tasktui.screens.selection import open_why
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session
from tasktui.shell.actions import TASK_TARGETS, action_bindings
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas

if TYPE_CHECKING:
    from tasktui.data.values import Copyable

TALL, PREVIEW = 34, 9
"""Rows of a screen with a preview below the list, and of the preview."""

WIDE, SIDE = 180, 72
"""Columns of a screen with a preview beside the list, and of the preview."""

NORMAL, LEAST_CHART = 98, 70
"""Cells of a page with panels side by side, and of the narrowest one with the attempts over time."""

BIG, FRAME = 56, 6
"""Rows of a wide screen on which nothing is folded if all has room, and of its heading and footer."""

PREVIEW_EVERY, PREVIEW_SHARE = 2.0, 5
"""Seconds to cache the task of the preview, and in multiples of its query: its ages must not stay behind the list."""


class PreviewPane:
    """The task under the cursor, where the screen has room for it."""

    def __init__(self) -> None:
        self.below = Canvas(id="below")
        self.beside = Canvas(id="preview")
        self._enabled = True
        self._detail: TaskDetail | None = None
        self._details = TtlCache[TaskDetail | None](PREVIEW_EVERY, share=PREVIEW_SHARE)

    def fits(self, size: Size) -> bool:
        """True if the operator has not hidden the preview and the screen has room for it."""
        return self._enabled and (size.width >= WIDE or (size.height >= TALL and size.width >= 100))

    def toggle(self) -> None:
        """Show or hide the preview."""
        self._enabled = not self._enabled

    async def read(self, session: Session, id: int, listed: object) -> None:
        """Read a task; the result is cached while the row of the list stays as it is.

        Args:
            listed: the version and the state in the list.
        """
        self._detail = await self._details.get((id, listed), partial(_read, session, id), session.distance)

    def draw(self, cursor: int | None, session: Session, size: Size) -> None:
        """Show a task if it was read, and empty rows until then.

        Args:
            size: cells of the screen.
        """
        shown, wide = self.fits(size), size.width >= WIDE
        self.below.display, self.beside.display = shown and not wide, shown and wide
        detail = self._detail if self._detail is not None and self._detail.task.id == cursor else None
        if self.below.display:
            rows = preview(detail, session.zone, size.width, PREVIEW, tall=False) if detail else []
            self.below.draw([*rows, *[BLANK] * (PREVIEW - len(rows))])
        elif self.beside.display:
            height = size.height - 8
            rows = preview(detail, session.zone, SIDE, height, tall=True) if detail else []
            self.beside.draw([*rows, *[BLANK] * (height - len(rows))])


async def _read(session: Session, id: int) -> TaskDetail | None:
    with suppress(TaskNotFound):
        return await session.read(task_detail, id)
    return None


def texts_of_task(session: Session, id: int | None) -> "Coroutine[Any, Any, Copyable] | None":
    """Return a read of the texts of a task to copy; None without a task."""
    return None if id is None else _texts(session, id)


async def _texts(session: Session, id: int) -> "Copyable":
    from tasktui.data.values import of_task

    return of_task(await session.read(task_detail, id), command_line(["--task", id], session.settings, "tasktui"))


class TaskScreen(LiveScreen):
    """The detail of the task that the operator opened last."""

    ABOUT = (
        "The task opened with enter or :task ID. Secrets are masked; v reveals them and records that in the audit. A "
        "long payload and the frames of libraries are folded, unless a big screen has room for all; f unfolds them. g "
        "shows the graph of its workflow."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(*TASK_TARGETS),
        Binding("w", "why", "Why"),
        Binding("v", "reveal", "Reveal"),
        Binding("f", "fold", "Unfold"),
        Binding("g", "graph", "Graph"),
        Binding("n", "neighbour(1)", "Next task of the list", show=False),
        Binding("p", "neighbour(-1)", "Previous task of the list", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(
            Targets(
                tasks=self.tasks,
                missing=self.missing,
                copyable=lambda: texts_of_task(self.session, self.opened.id),
            )
        )
        self._detail: TaskDetail | None = None
        self._opened: TaskDetail | None = None
        """The detail with the encrypted values that the operator reveals."""
        self._reveal = self._is_unfolded = False
        self._unfold: bool | None = None

    def parts(self) -> Iterable[Widget]:
        """Return one scrollable text."""
        canvas = Canvas(id="detail")
        canvas.rows = ([(" No task is open: press enter in the task list, or type :task ID", "muted")],)
        yield VerticalScroll(canvas, id="scroll")

    def on_screen_resume(self) -> None:
        """Show the id of the open task until its detail is read."""
        if self.opened.id is not None and not self.tasks():
            self._detail = None
            self.query_one("#detail", Canvas).draw([[(f" reading task {self.opened.id}", "muted")]])

    def request(self) -> object:
        """Return the id of the open task."""
        return self.opened.id

    async def read(self) -> object:
        """Read the detail of the open task."""
        id = self.opened.id
        if id is None:
            await self.session.read(clock)  # Without a task, check that the database answers.
            return None
        detail = await self.session.read(task_detail, id)
        if self._reveal:
            self._opened, _ = await perform.opened(self.session, detail)
        return detail

    def show(self, snapshot: Any) -> None:
        """Show the detail."""
        if snapshot is None:
            return
        if self._detail is None or self._detail.task.id != snapshot.task.id:
            self._reveal, self._unfold = False, None
            self.query_one("#scroll", VerticalScroll).scroll_home(animate=False)
        self._detail = snapshot
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey out reveal while changes are not allowed: it writes to the audit. Hide the graph without a workflow."""
        if action == "graph":
            return self._detail is not None and self._detail.workflow is not None
        if action == "reveal" and not (self.session.writable or self._reveal):
            return None
        return super().check_action(action, parameters)

    def command_words(self) -> Sequence[object]:
        """Return the command that shows the same task."""
        return ["show", self.opened.id] if self.opened.id is not None else ["tasks"]

    def action_why(self) -> None:
        """Explain why the task is not running."""
        open_why(self, self.opened.id)

    def action_reveal(self) -> None:
        """Record the reveal in the audit and then show the secrets, or mask them again."""
        if self._reveal:
            self._reveal = False
            self._draw()
        elif getattr(self.app, "recorder", None) is not None:
            self.report("Nothing was revealed: this session is recorded", bad=True)
        elif self._detail is not None:
            self.actions.run(_record_reveal(self, self._detail))

    def action_graph(self) -> None:
        """Open the workflow of the task, with its graph."""
        if self._detail is not None and self._detail.workflow is not None:
            self.console.open_at("workflows", str(self._detail.workflow.id))

    def action_fold(self) -> None:
        """Fold or unfold a long payload and the frames of libraries."""
        self._unfold = not self._is_unfolded
        self._draw()

    @on(RevealRecorded)
    def _show_secrets(self, message: RevealRecorded) -> None:
        self._reveal = self._detail is not None and self._detail.task.id == message.detail.task.id
        self._opened = message.detail
        self._draw()
        for reason in message.reasons[:1]:
            self.report(reason, bad=True)

    def action_neighbour(self, step: int) -> None:
        """Open the next or the previous task of the list that this one was opened from.

        Args:
            step: 1 for the next task, -1 for the previous one.
        """
        ids = self.opened.ids
        place = ids.index(self.opened.id) + step if self.opened.id in ids else None
        if place is None:
            self.report("This task was not opened from the task list: press escape")
        elif 0 <= place < len(ids):
            self.opened.id = ids[place]
            self.on_screen_resume()
            self.action_reload()
        else:
            self.report(f"This is the {'last' if step > 0 else 'first'} task that the list has read")

    def tasks(self) -> Sequence[TaskRow]:
        """Return the task on the screen; none while another one is open and not read yet."""
        return [self._detail.task] if self._detail and self._detail.task.id == self.opened.id else []

    def missing(self) -> str:
        """Explain why an action has no task."""
        if self.opened.id is None:
            return "No task is open: type :task ID"
        return f"Task {self.opened.id} is not read yet: press the key again"

    def _draw(self) -> None:
        if self._detail is not None:
            canvas = self.query_one("#detail", Canvas)
            width = max(36, self.size.width - 2)  # a margin and the scroll bar
            shown = self._opened if self._reveal and self._opened is not None else self._detail
            render = partial(task_rows, shown, self.session.zone, width, reveal=self._reveal)
            rows, self._is_unfolded = render(unfold=bool(self._unfold)), bool(self._unfold)
            if self._unfold is None and self.size.width >= WIDE and self.size.height >= BIG:
                whole = render(unfold=True)
                if len(whole) <= self.size.height - FRAME:
                    rows, self._is_unfolded = whole, True
            canvas.draw(rows)


async def _record_reveal(screen: TaskScreen, detail: TaskDetail) -> None:
    await perform.record_reveal(screen.session, detail.task.id)
    screen.post_message(RevealRecorded(*await perform.opened(screen.session, detail)))


def task_rows(detail: TaskDetail, zone: tzinfo, width: int, *, reveal: bool, unfold: bool) -> list[Row]:
    """Everything about a task: in one column, in two below the attempts, or in two with the timeline at the right."""
    top: list[Row] = [panels.headline(detail, width), *panels.summary(detail, width), *panels.progress(detail, width)]
    fields = panels.facts(detail, zone, width)
    top += [BLANK, *([panels.line_of_facts(detail, width)] if width < NORMAL else fields)]
    chart = panels.attempts(detail, zone, width) if width >= LEAST_CHART else []
    values = partial(panels.payload, detail, reveal=reveal, unfold=unfold)
    trouble = partial(panels.error, detail, reveal=reveal, unfold=unfold)
    events = partial(panels.history, detail, zone, reveal=reveal)
    noted, saved = partial(panels.log, detail, zone, reveal=reveal), partial(panels.checkpoints, detail, reveal=reveal)
    steps = partial(panels.steps, detail, reveal=reveal)
    related, same = partial(panels.dependencies, detail), partial(same_key, detail)
    runs = partial(_next_runs, detail, zone)
    if width < NORMAL:
        one = [
            chart,
            trouble(width),
            values(width),
            fields,
            steps(width),
            related(width),
            same(width),
            saved(width),
            noted(width),
        ]
        return spaced([top, *one, events(width), runs(width)])
    left, right = (width - 2) * 2 // 5, width - (width - 2) * 2 // 5 - 2
    if width >= WIDE - 2:
        first = spaced([values(left), steps(left), related(left), same(left), saved(left), [] if chart else runs(left)])
        second = spaced([trouble(right), noted(right), events(right)])
        return spaced([top, chart, beside(first, second, left)])
    first, second = spaced([values(left), same(left)]), trouble(right)
    if not second:
        first, second = values(left), same(right)
    both = beside(first, second, left) if second else values(width)
    rest = [steps(width), related(width), saved(width), noted(width), events(width), [] if chart else runs(width)]
    return spaced([top, chart, both, *rest])


def spaced(parts: Sequence[Iterable[Row]]) -> list[Row]:
    """Panels below each other with a blank row between them; empty ones are left out."""
    rows: list[Row] = []
    for part in map(list, parts):
        rows += [BLANK, *part] if rows and part else part
    return rows


def same_key(detail: TaskDetail, width: int) -> list[Row]:
    """The newest other tasks of the handler with the key of a task."""
    if not detail.same_key:
        return []
    rows: list[Row] = [rule([heading("SAME KEY")], width, [(line(detail.task.key, max(8, width // 2)), "muted")])]
    for task in detail.same_key:
        sign, spec = state(task.shown)
        when, role = when_text(task, detail.at)
        remark = formatting.brief(task.remark)
        parts: list[Part] = [(f"  {task.id:<8} ", "text"), (f"{sign:<12} ", spec), (f"{when:>11}  ", role)]
        rows.append(fit([*parts, (remark, "muted")], width))
    return rows


def _next_runs(detail: TaskDetail, zone: tzinfo, width: int) -> list[Row]:
    if not detail.next_runs:
        return []
    note: list[Part] = [("if every attempt fails immediately", "muted")]
    runs = (formatting.exact(run, detail.at, zone).replace(" UTC (+00:00)", " UTC") for run in detail.next_runs)
    return [rule([heading("NEXT RUNS")], width, note), *(fit([(f"  {run}", "text")], width) for run in runs)]


def preview(detail: TaskDetail, zone: tzinfo, width: int, height: int, *, tall: bool) -> list[Row]:
    """The task under the cursor of a list, below it or beside it."""
    hint: list[Part] = [("enter", "bold accent"), (" opens, ", "muted"), ("p", "bold accent"), (" hides", "muted")]
    task = detail.task
    title: list[Part] = [
        (f"{task.id} ", "bold strong"),
        *handler(task.handler, min(30, len(line(task.handler))), "muted"),
    ]
    rows: list[Row] = [
        rule(title, width, hint),
        fit([(" ", ""), pill(task.shown), (" ", ""), *panels.sentence(detail)], width),
        BLANK,
    ]
    details: list[Row] = [
        [(f"  {name:<11}", "muted"), (text, "text")] for name, text in _brief_facts(detail, zone) if text
    ]
    value = decode(detail.payload)
    last = panels.trouble(detail, width if tall else width // 2 - 3, reveal=False, unfold=False)
    if tall:
        rows += [*details, BLANK, *panels.attempts(detail, zone, width), BLANK]
        rows += [rule([heading("ERROR")], width), *last, BLANK] if last else []
        rows += panels.payload(detail, width, reveal=False, unfold=False)
        related = panels.dependencies(detail, width)
        rows += [BLANK, *related] if related else []
        return rows[:height]
    half = width // 2 - 1
    right = [*last[: height - 5], payload_line(value, half - 3)] if value is not None else last
    bordered = [[("│ ", "line"), *row] for row in right[: height - 3]]
    return [*rows, *beside(details[: height - 3], bordered, half)][:height]


def _moment(moment: datetime, at: datetime, zone: tzinfo) -> str:
    return f"{formatting.clock(moment, at, zone, seconds=True)}, {formatting.distance(moment, at)}"


def _brief_facts(detail: TaskDetail, zone: tzinfo) -> Iterator[tuple[str, str]]:
    task, at = detail.task, detail.at
    source = detail.source("retry")
    own = f", plan {line(detail.handler_retry, 30)} from {source}" if detail.handler_retry else ""
    plan = f", plan {line(detail.retry, 30)}" if detail.retry else own
    yield "key", line(task.key, 60) if task.key else ""
    yield "queue", f"{line(task.queue, 30)}, priority {task.priority}, bucket {detail.bucket}"
    yield "attempts", f"{formatting.attempts(task.attempt, task.max_attempts).replace('/', ' of ')}{plan}"
    by = f" by {line(detail.submitted_by, 30)}" if detail.submitted_by else ""
    yield "submitted", f"{_moment(task.submitted_at, at, zone)}{by}" if task.submitted_at else ""
    if detail.attempts:
        last = detail.attempts[-1]
        ran = _moment(last.started_at, at, zone) if last.started_at else ""
        took = formatting.duration(detail.run_time(last))
        yield "last ran", f"{ran} for {took} on {line(process_name(last.host, last.pid), 30)}"
    yield "timeout", formatting.age(detail.timeout) if detail.timeout is not None else ""
