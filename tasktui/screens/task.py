"""TaskScreen and PreviewPane: everything about one task, and a short form below the task list or beside it."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import tzinfo
from functools import partial
from typing import Any, ClassVar

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
from tasktui.actions import perform
from tasktui.actions.action import Targets
from tasktui.data import task_panels as panels
from tasktui.data.task_panels import preview
from tasktui.messages import RevealRecorded
from tasktui.render.rows import BLANK, Row, beside, fit, heading, rule
from tasktui.screens.actions import TASK_TARGETS, action_bindings
from tasktui.screens.live import LiveScreen
from tasktui.screens.selection import open_why
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session
from tasktui.widgets.canvas import Canvas

TALL, PREVIEW = 34, 9
"""Rows of a screen with a preview below the list, and of the preview."""

WIDE, SIDE = 180, 72
"""Columns of a screen with a preview beside the list, and of the preview."""

NORMAL, LEAST_CHART = 98, 70
"""Cells of a page with panels side by side, and of the narrowest one with the attempts over time."""

PREVIEW_EVERY = 2.0
"""Seconds to cache the task of the preview."""


class PreviewPane:
    """The task under the cursor, where the screen has room for it."""

    def __init__(self) -> None:
        self.below = Canvas(id="below")
        self.beside = Canvas(id="preview")
        self._wanted = True
        self._detail: TaskDetail | None = None
        self._details = TtlCache[TaskDetail | None](PREVIEW_EVERY)

    def fits(self, size: Size) -> bool:
        """True if the operator has not hidden the preview and the screen has room for it."""
        return self._wanted and (size.width >= WIDE or (size.height >= TALL and size.width >= 100))

    def toggle(self) -> None:
        """Show or hide the preview."""
        self._wanted = not self._wanted

    async def read(self, session: Session, id: int) -> None:
        """Read a task; the result is cached."""
        self._detail = await self._details.get(id, partial(_read, session, id))

    def draw(self, cursor: int | None, session: Session, size: Size) -> None:
        """Show a task if it was read, and empty rows until then.

        Args:
            cursor: id of the task.
            session: the operator's session.
            size: cells of the screen.
        """
        shown, wide = self.fits(size), size.width >= WIDE
        self.below.display, self.beside.display = shown and not wide, shown and wide
        detail = self._detail if self._detail is not None and self._detail.task.id == cursor else None
        if self.below.display:
            self.below.styles.height = PREVIEW
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


class TaskScreen(LiveScreen):
    """The detail of the task that the operator opened last."""

    ABOUT = (
        "The task opened with enter or :task ID. Secrets are masked; v reveals them and records that in the audit. A "
        "long payload and the frames of libraries are folded; f unfolds them."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(*TASK_TARGETS),
        Binding("w", "why", "Why"),
        Binding("v", "reveal", "Reveal"),
        Binding("f", "fold", "Unfold"),
        Binding("escape", "back", "Back to the list", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(Targets(tasks=self.tasks, missing=self.missing))
        self._detail: TaskDetail | None = None
        self._reveal = self._unfold = False

    def parts(self) -> Iterable[Widget]:
        """Return one scrollable text."""
        canvas = Canvas(id="detail")
        canvas.rows = ([(" No task is open: press enter in the task list, or type :task ID", "muted")],)
        yield VerticalScroll(canvas, id="scroll")

    def on_screen_resume(self) -> None:
        """Show the id of the open task until its detail is read."""
        if self.session.task_id is not None and not self.tasks():
            self._detail = None
            self.query_one("#detail", Canvas).draw([[(f" Task {self.session.task_id} ...", "muted")]])

    def request(self) -> object:
        """Return the id of the open task."""
        return self.session.task_id

    async def read(self) -> object:
        """Read the detail of the open task."""
        id = self.session.task_id
        if id is None:
            await self.session.read(clock)  # Without a task, check that the database answers.
            return None
        return await self.session.read(task_detail, id)

    def show(self, snapshot: Any) -> None:
        """Show the detail."""
        if snapshot is None:
            return
        if self._detail is None or self._detail.task.id != snapshot.task.id:
            self._reveal = self._unfold = False
            self.query_one("#scroll", VerticalScroll).scroll_home(animate=False)
        self._detail = snapshot
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey out reveal while changes are not allowed: it writes to the audit."""
        if action == "reveal" and not (self.session.writable or self._reveal):
            return None
        return super().check_action(action, parameters)

    def command_words(self) -> Sequence[object]:
        """Return the command that shows the same task."""
        return ["show", self.session.task_id] if self.session.task_id is not None else ["tasks"]

    def action_why(self) -> None:
        """Explain why the task is not running."""
        open_why(self, self.session.task_id)

    def action_reveal(self) -> None:
        """Record the reveal in the audit and then show the secrets, or mask them again."""
        if self._reveal:
            self._reveal = False
            self._draw()
        elif getattr(self.app, "recorder", None) is not None:
            self.report("Nothing was revealed: this session is recorded", bad=True)
        elif self._detail is not None:
            self.actions.run(self._record_reveal(self._detail.task.id))

    def action_fold(self) -> None:
        """Fold or unfold a long payload."""
        self._unfold = not self._unfold
        self._draw()

    async def _record_reveal(self, id: int) -> None:
        await perform.record_reveal(self.session, id)
        self.post_message(RevealRecorded(id))

    @on(RevealRecorded)
    def _show_secrets(self, message: RevealRecorded) -> None:
        self._reveal = self._detail is not None and self._detail.task.id == message.task_id
        self._draw()

    def action_back(self) -> None:
        """Go back to the task list."""
        self.app.switch_mode("tasks")

    def tasks(self) -> Sequence[TaskRow]:
        """Return the task on the screen; none while another one is open and not read yet."""
        return [self._detail.task] if self._detail and self._detail.task.id == self.session.task_id else []

    def missing(self) -> str:
        """Explain why an action has no task."""
        if self.session.task_id is None:
            return "No task is open: type :task ID"
        return f"Task {self.session.task_id} is not read yet: press the key again"

    def _draw(self) -> None:
        if self._detail is not None:
            canvas = self.query_one("#detail", Canvas)
            width = max(36, self.size.width - 2)  # a margin and the scroll bar
            canvas.draw(task_rows(self._detail, self.session.zone, width, reveal=self._reveal, unfold=self._unfold))


def task_rows(detail: TaskDetail, zone: tzinfo, width: int, *, reveal: bool, unfold: bool) -> list[Row]:
    """Everything about a task."""
    rows: list[Row] = [
        panels.headline(detail, width),
        *panels.said(detail, width),
        *panels.progress(detail, width),
        BLANK,
    ]
    fields = panels.facts(detail, zone, width)
    rows += [panels.line_of_facts(detail, width)] if width < NORMAL else fields
    rows += [BLANK]
    chart = panels.attempts(detail, zone, width) if width >= LEAST_CHART else []
    rows += [*chart, BLANK] if chart else []
    half = (width - 2) * 2 // 5 if width >= NORMAL else width
    other = width - half - 2 if width >= NORMAL else width
    left = panels.payload(detail, half, reveal=reveal, unfold=unfold)
    right = panels.error(detail, other, reveal=reveal, unfold=unfold)
    if width < NORMAL or not right:
        left = panels.payload(detail, width, reveal=reveal, unfold=unfold)
        rows += [*right, *([BLANK] if right else []), *left]
    else:
        rows += beside(left, right, half)
    rows += [BLANK, *fields] if width < NORMAL else []
    related = panels.dependencies(detail, width)
    rows += [BLANK, *related] if related else []
    noted = panels.notes(detail, zone, width, reveal=reveal)
    rows += [BLANK, *noted] if noted else []
    rows += [BLANK, *panels.history(detail, zone, width, reveal=reveal)]
    if detail.next_runs:
        rows += [BLANK, rule([heading("NEXT RUNS")], width, [("if every attempt fails immediately", "muted")])]
        rows += [fit([(f"  {formatting.exact(run, detail.at, zone)}", "text")], width) for run in detail.next_runs]
    return rows
