"""SchedulesScreen: the schedules, with the runs of the one under the cursor."""

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from runner.policy.schedule import describe
from runner.queries.schedules import ScheduleRow
from runner.text import formatting
from runner.text.redact import decode
from tasktui.actions.action import ActionTarget, Targets
from tasktui.data.schedules import DAY, ScheduleBoard, read_board
from tasktui.panels import schedules as panels
from tasktui.panels.schedules import HOUR
from tasktui.render.render import Cell, ListColumn, RenderedRow, line
from tasktui.render.rows import Part, heading, plain, rule
from tasktui.screens.row_texts import texts_of_row
from tasktui.screens.selection import open_why
from tasktui.shell.actions import action_bindings
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import Table

if TYPE_CHECKING:
    from tasktui.data.values import Copyable

COLUMNS = (
    ListColumn("", 1),
    ListColumn("NAME", 18, grow=2, name=True),
    ListColumn("EVERY", 14, grow=1),
    ListColumn("NEXT", 12, right=True),
    ListColumn(" LAST 12", 13),
    ListColumn("LATE", 7, right=True, drop=2),
    ListColumn("TOOK", 8, right=True, drop=1),
    ListColumn(" NEXT HOUR", 13, grow=4),
)

SPANS = (("1 h", HOUR), ("24 h", DAY))
"""Lengths of the rulers."""


class SchedulesScreen(LiveScreen):
    """The schedules."""

    ABOUT = (
        "All schedules, the next one first. LAST 12 are the results of the last runs, the latest at the right: "
        "✗ failed, ◇ skipped because an earlier run was unfinished, ‖ missed because no runner was up. LATE is the "
        "time from the tick to the start of the last run. Enter lists the tasks of a schedule, w explains its last "
        "task, s switches the ruler to a day. A adds one. N runs it now, P pauses or resumes it, E changes its rule, X "
        "deletes it, Z undoes its last change."
    )
    OPENS = "runs"
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(ActionTarget.SCHEDULE),
        Binding("w", "why", "Why"),
        Binding("s", "span", "Span"),
    ]

    def __init__(self) -> None:
        super().__init__(Targets(schedule=self.schedule, copyable=self._texts))
        self._table = Table[str](COLUMNS, id="schedules")
        self._board: ScheduleBoard | None = None
        self._span = 0

    def parts(self) -> Iterable[Widget]:
        """Return the schedules, and the panels of the one under the cursor."""
        yield Canvas(id="title")
        yield self._table
        yield Canvas(id="lower")

    def request(self) -> object:
        """Return the schedule under the cursor."""
        return self._table.cursor

    async def read(self) -> object:
        """Read the schedules."""
        return await self.session.read(read_board, self._table.cursor)

    def show(self, snapshot: Any) -> None:
        """Show the schedules."""
        board: ScheduleBoard = snapshot
        self._board = board
        if board.id is None and board.rows:
            self.feed.hurry()  # for the runs of the one under the cursor
        width, height = self.size
        zone, length = self.session.zone, SPANS[self._span][1]
        table = self._table
        columns = COLUMNS if not self._span else (*COLUMNS[:-1], COLUMNS[-1]._replace(title=" NEXT 24 HOURS"))
        table.columns = columns
        rows = {row.id: row for row in board.rows}
        ruler = table.span(-1)
        table.show(tuple(rows), lambda id: schedule_line(rows[id], board, length, ruler[1], zone))
        if ruler != table.span(-1):  # The names have changed its width.
            ruler = table.span(-1)
            table.show(tuple(rows), lambda id: schedule_line(rows[id], board, length, ruler[1], zone))
        target, self.opened.target = self.opened.target, ""
        if target in rows:
            table.move_to(target)
        self.query_one("#title", Canvas).draw([rule([heading("SCHEDULES")], width, panels.count_figure(board))])
        above = (4 if width >= panels.NORMAL else 3) + self.frame.databases_height
        room = height - above - 2
        lower = panels.lower(board, length, (width, height), room - min(len(rows) + 1, room // 2), ruler, zone)
        table.styles.height = max(2, min(len(rows) + 1, room - len(lower)))
        self.query_one("#lower", Canvas).draw(lower)

    def schedule(self) -> ScheduleRow | None:
        """Return the schedule under the cursor."""
        return self._board.row(self._table.cursor) if self._board is not None else None

    def _texts(self) -> "Copyable | None":
        row = self.schedule()
        if row is None:
            return None
        texts = {
            "id": row.id,
            "rule": row.spec.rule,
            "payload": json.dumps(decode(row.spec.payload), ensure_ascii=False),
            "error": row.error,
        }
        return texts_of_row(self.session, f"schedule {row.id}", ["schedules", "show", row.id], texts)

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same schedules."""
        return ["schedules", "list"]

    def action_span(self) -> None:
        """Switch the length of the rulers."""
        self._span = (self._span + 1) % len(SPANS)
        self.redraw()

    def action_why(self) -> None:
        """Explain the lateness of the schedule under the cursor, or else the state of its last task."""
        row, board = self.schedule(), self._board
        runs = [run for run in row.runs if run.task_id is not None] if row is not None else []
        if row is not None and board is not None and row.lateness(board.at) is not None:
            runs = [run for run in runs if run.waits][-1:]
            if not runs:
                self.report(plain([panels.sentence(board, row, self.session.zone)]).strip())
                return
        open_why(self, runs[0].task_id if runs else None)

    @on(Table.CursorMoved)
    def _read_runs(self) -> None:
        self.action_reload()

    @on(Table.Selected)
    def _open_runs(self, event: Table.Selected) -> None:
        row = self.schedule()
        ids = [str(run.task_id) for run in row.runs if run.task_id is not None] if row is not None else []
        if row is None or not ids:
            self.report(f"Schedule {line(event.key)} has no task yet", bad=True)
            return
        self.console.open_tasks(f"id:{','.join(ids)}")


def schedule_line(row: ScheduleRow, board: ScheduleBoard, length: timedelta, width: int, zone: tzinfo) -> RenderedRow:
    """Render a schedule as a row.

    Args:
        width: cells of the ruler.
    """
    late = row.lateness(board.at)
    sign: Part = ("●", "succeeded")
    role = "text"
    if row.error is not None:
        sign, role = ("✗", "bold dead"), "text"
    elif row.pause is not None:
        sign, role = ("‖", "paused"), "muted"
    elif late is not None:
        sign, role = ("!", "bold retrying"), "bold strong"
    last = next((run for run in row.runs if run.task is not None), None)
    shown = late if late is not None else last.late if last is not None else None
    results: list[Part] = [(" ", ""), *panels.last_runs(row)]
    ruler = [(" ", ""), *panels.ruler(row, board.at, length, width - 1, zone)]
    took = last.task.duration if last is not None and last.task is not None else None
    return RenderedRow(
        (
            Cell(*sign),
            Cell(line(row.id), role),
            Cell(describe(line(row.spec.rule, 60)), "muted"),
            _next(row, board),
            Cell.of(results, "text"),
            Cell("" if shown is None else formatting.duration(shown), "bold retrying" if late else "muted"),
            Cell("" if took is None else formatting.duration(took), "text"),
            Cell.of(ruler, "line"),
        )
    )


def _next(row: ScheduleRow, board: ScheduleBoard) -> Cell:
    late = row.lateness(board.at)
    if row.error is not None:
        return Cell("invalid", "bold dead")
    if row.pause is not None:
        return Cell("paused", "paused")
    if late is not None:
        return Cell(f"late {formatting.age(late)}", "bold retrying")
    if not row.upcoming:
        return Cell("after run", "muted")
    return Cell(formatting.age(max(row.upcoming[0] - board.at, timedelta(0))), "text")
