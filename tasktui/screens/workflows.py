"""WorkflowsScreen: the workflows, with the graph of the one under the cursor."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import Shown, State
from runner.queries.counting import Count
from runner.queries.workflows.critical import CriticalPath
from runner.queries.workflows.lines import CRITICAL, GraphLine, graph_lines
from runner.queries.workflows.list import WorkflowRow
from runner.text import formatting
from runner.text.formatting import SIGNS, stored_state_text
from tasktui.actions.action import ActionTarget, Targets
from tasktui.data.workflows import MOST_WORKFLOWS, WorkflowBoard, read_workflows
from tasktui.render.render import Cell, ListColumn, RenderedRow, line
from tasktui.render.rows import Part, Row, heading, rule
from tasktui.screens.row_texts import texts_of_row
from tasktui.screens.selection import open_why
from tasktui.shell.actions import action_bindings
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import Table

if TYPE_CHECKING:
    from tasktui.data.values import Copyable

COLUMNS = (
    ListColumn("ID", 7, right=True),
    ListColumn("NAME", 14, grow=2, name=True),
    ListColumn("STATE", 12),
    ListColumn("DONE", 11, right=True),
    ListColumn("FAILED", 6, right=True),
    ListColumn("OLDEST", 7, right=True, drop=1),
    ListColumn("AGO", 7, right=True, drop=2),
    ListColumn(" CRITICAL PATH", 20, grow=2),
)


class WorkflowsScreen(LiveScreen):
    """The workflows."""

    ABOUT = (
        "The workflows, the newest first, and the graph of the one under the cursor. DONE counts its finished tasks, "
        "FAILED the dead and cancelled ones, OLDEST is the time since its oldest waiting or running task was due. * "
        "marks the critical path, the chain of tasks that takes longest. Enter lists the tasks, s shows all workflows "
        "or the unfinished ones, w explains why tasks do not run. R, T and D act on the tasks of the workflow. "
        ":workflows book* lists those with a name."
    )
    OPENS = "tasks"
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(ActionTarget.TASKS),
        Binding("w", "why", "Why"),
        Binding("s", "unfinished", "Unfinished"),
    ]

    def __init__(self) -> None:
        super().__init__(Targets(task_filter=self._task_filter, copyable=self._texts))
        self._table = Table[int](COLUMNS, id="workflows")
        self._board: WorkflowBoard | None = None
        self._unfinished = False
        self._also: int | None = None
        """The workflow that another screen has opened."""

    def parts(self) -> Iterable[Widget]:
        """Return the workflows, and the graph of the one under the cursor."""
        yield Canvas(id="title")
        yield self._table
        yield Canvas(id="name")
        yield VerticalScroll(Canvas(id="graph"), id="trace")

    def request(self) -> object:
        """Return the workflow under the cursor, and whether the list has unfinished ones only."""
        return self._table.cursor, self.opened.target, self.opened.name, self._unfinished

    async def read(self) -> object:
        """Read the workflows."""
        if target := self.opened.target:
            self._also, self.opened.name = int(target), ""
        id, name = self._also if target else self._table.cursor, self.opened.name or None
        also = self._also if name is None else None
        return await self.session.read(read_workflows, id, also, name=name, unfinished=self._unfinished)

    def show(self, snapshot: Any) -> None:
        """Show the workflows."""
        board: WorkflowBoard = snapshot
        self._board = board
        rows = {row.id: row for row in board.rows}
        kind = "unfinished workflow" if self._unfinished else "workflow"
        named = f" named {line(self.opened.name)}" if self.opened.name else ""
        figure: list[Part] = [(Count(len(rows), len(rows) >= MOST_WORKFLOWS).of(kind) + named, "muted")]
        self.query_one("#title", Canvas).draw([rule([heading("WORKFLOWS")], self.size.width, figure)])
        self._table.show(tuple(rows), lambda id: workflow_line(rows[id], board.paths.get(id), board.at))
        target, self.opened.target = self.opened.target, ""
        if target and int(target) in rows:
            self._table.move_to(int(target))
        self._draw_graph(board)

    def _draw_graph(self, board: WorkflowBoard) -> None:
        graph, name = board.graph, self.query_one("#name", Canvas)
        if graph is None:
            named = f" named {line(self.opened.name)}" if self.opened.name else ""
            name.draw([[(f"  No workflows{named}.", "text")]])
            self.query_one("#graph", Canvas).draw([])
            return
        title = line(f"{graph.workflow.id} {graph.workflow.name or ''}".rstrip())
        name.draw([rule([heading("GRAPH"), (f" {title}", "strong")], self.size.width, [])])
        self.query_one("#graph", Canvas).draw([graph_row(each) for each in graph_lines(graph)])

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same workflows."""
        return ["workflows", *filter(None, [self.opened.name]), *(["--unfinished"] * self._unfinished)]

    def action_unfinished(self) -> None:
        """Switch between all workflows and the unfinished ones."""
        self._unfinished = not self._unfinished
        self.feed.hurry()

    def action_why(self) -> None:
        """Explain why the tasks of the workflow under the cursor do not run."""
        open_why(self, self._task_filter())

    @on(Table.CursorMoved)
    def _read_graph(self) -> None:
        self.action_reload()

    @on(Table.Selected)
    def _open_tasks(self, event: Table.Selected) -> None:
        self.console.open_tasks(f"workflow:{event.key}")

    def _task_filter(self) -> Filter | None:
        id = self._table.cursor
        return None if id is None else Filter((Term("workflow", Operator.EQ, id),))

    def _texts(self) -> "Copyable | None":
        rows = self._board.rows if self._board is not None else ()
        row = next((row for row in rows if row.id == self._table.cursor), None)
        if row is None:
            return None
        return texts_of_row(
            self.session, f"workflow {row.id}", ["workflow", row.id], {"id": str(row.id), "name": row.name}
        )


def workflow_line(row: WorkflowRow, path: CriticalPath | None, at: datetime) -> RenderedRow:
    """Render a workflow as a row."""
    role = _role(row.state)
    return RenderedRow(
        (
            Cell(str(row.id), "text"),
            Cell(line(row.name or ""), "text"),
            Cell(stored_state_text(row.state), role),
            Cell(f"{row.done:,}/{row.total:,}", "text"),
            Cell(f"{row.failed:,}", "dead" if row.failed else "muted"),
            Cell(formatting.since(row.oldest, at), "text"),
            Cell(formatting.since(row.submitted_at, at), "muted"),
            Cell(f" {line(path.text)}" if path is not None else "", "muted"),
        )
    )


def graph_row(each: GraphLine) -> Row:
    """Render a line of a graph; a succeeded task is quiet, apart from its sign."""
    bold = "bold " if each.text.startswith(CRITICAL) else ""
    if each.task is None:
        return [(each.text, f"{bold}muted")]
    role = _role(each.task.shown)
    branch, sign, text = each.text.partition(SIGNS[each.task.shown])
    quiet = "muted" if each.task.shown is Shown.SUCCEEDED else role
    return [(branch, f"{bold}muted"), (sign, f"{bold}{role}"), (text, f"{bold}{quiet}")]


def _role(state: State | Shown) -> str:
    return "ready" if state == State.WAITING else str(state)
