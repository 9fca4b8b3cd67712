"""AuditScreen: the operations of operators, and undo."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import Shown
from runner.queries.audit import UNCHANGED, ChangeGroup, change_groups
from runner.queries.audit_words import brief_changes, changed_values, column_words
from runner.queries.fate import GroupFate, fate
from runner.queries.task.timeline import format_entry
from runner.text import formatting
from runner.text.formatting import SIGNS
from runner.text.times import format_moment
from tasktui.actions.action import ActionTarget, Targets
from tasktui.messages import Notice
from tasktui.render.plot import gauge
from tasktui.render.render import Cell, ListColumn, RenderedRow, content, fitted, line, lines
from tasktui.render.rows import BLANK, Part, Row, fit, heading, rule, width_of, wrapped
from tasktui.screens.row_texts import texts_of_row
from tasktui.session.session import Session
from tasktui.shell.actions import action_bindings
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import Table
from tasktui.widgets.text_block import TextBlock

if TYPE_CHECKING:
    from tasktui.data.values import Copyable

BAR = 40
"""Cells of the bar of states."""

LONGEST_VALUE = 10_000
"""Maximum number of characters of a value."""

MOST_GROUPS = 200
"""Maximum number of operations to list, latest first."""

COLUMNS = (
    ListColumn("ID", 7, right=True),
    ListColumn("AGO", 7, right=True),
    ListColumn("OPERATOR", 10, name=True),
    ListColumn("HOST", 10, drop=2, name=True),
    ListColumn("OPERATION", 10, name=True),
    ListColumn("TARGET", 16, grow=3, name=True),
    ListColumn("CHANGE", 18, grow=2),
    ListColumn("REASON", 12, grow=2, drop=1),
)


@dataclass(frozen=True, slots=True)
class RecentOperations:
    """The latest operations at one moment, and the fate of the tasks of a change group."""

    at: datetime
    rows: tuple[ChangeGroup, ...]
    fate: GroupFate | None = None
    of: str | None = None
    has_new_change: bool = False


EMPTY = ("No change is recorded.", "Each change by an operator gets a row: who, when, why, before and after.")


class AuditScreen(LiveScreen):
    """The latest operations."""

    ABOUT = (
        "The operations of all operators, from this console and the command line, latest first. A change group is one "
        "row: enter lists its changes, escape goes back. Z undoes a change or a group, B the whole group of a change."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(ActionTarget.ENTRY),
        Binding("t", "tasks", "Tasks"),
        Binding("escape", "back", "Back", show=False),
    ]

    def __init__(self) -> None:
        # Nothing is selected until a read has looked for a new change of the operator.
        super().__init__(
            Targets(
                change=lambda: None if self.opened.has_new_change else self._operation(),
                copyable=lambda: texts_of_operation(self._operation(), self.session),
            )
        )
        self._table = Table[int](COLUMNS, id="entries")
        self._operations: RecentOperations | None = None
        self._change_group: str | None = None
        self._newest = 0

    def parts(self) -> Iterable[Widget]:
        """Return the operations, and the one under the cursor in full."""
        yield Canvas(id="title")
        about = TextBlock(id="about")
        about.display = False
        yield about
        yield self._table
        yield Canvas(id="below")
        yield VerticalScroll(TextBlock(id="entry"), id="trace")

    async def read(self) -> object:
        """Read the operations."""
        has_new_change = self.opened.has_new_change
        operations = await self.session.read(_operations, self._change_group, self._group_of_cursor())
        return replace(operations, has_new_change=has_new_change)

    def _group_of_cursor(self) -> str | None:
        """The change group under the cursor; None for a change without one, and for one of a listed group."""
        operation = self._operation()
        return operation.entry.change_group if operation is not None and self._change_group is None else None

    def request(self) -> object:
        """Return the change group whose changes are listed; None for all operations."""
        return self._change_group

    def show(self, snapshot: Any) -> None:
        """Show the operations."""
        before, self._operations = self._operation(), snapshot
        rows = {operation.entry.id: operation for operation in snapshot.rows}
        undone = {operation.entry.undo_of for operation in snapshot.rows}
        self._table.show(
            tuple(rows), lambda id: operation_line(rows[id], snapshot.at, self.session.zone, undone=id in undone)
        )
        number: list[Part] = [
            (f"the latest {MOST_GROUPS}" if len(rows) == MOST_GROUPS else f"{len(rows)}, latest first", "muted")
        ]
        self.query_one("#title", Canvas).draw([rule([heading("OPERATIONS")], self.size.width, number)])
        if before is not None and before.entry.id not in rows and (group := before.entry.change_group) is not None:
            # The row of a change group has the id of its latest change, and the group may still grow.
            grown = (row.entry.id for row in snapshot.rows if is_group(row) and row.entry.change_group == group)
            if (id := next(grown, None)) is not None:
                self._table.move_to(id)
        self._move_to_target(snapshot)
        self._show_group()
        self._show_entry()
        if self._group_of_cursor() not in (None, snapshot.of):  # The first read did not know the cursor.
            self.feed.hurry()

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same changes."""
        return ["audit", *(["--group", self._change_group] if self._change_group else [])]

    def _move_to_target(self, snapshot: RecentOperations) -> None:
        """Move the cursor to the operation that the operator comes for.

        It is the latest one on the target that `why` opened this screen for, or the change that the operator has just
        made on another screen, whose notice offers Z.
        """
        target, self.opened.target = self.opened.target, ""
        newest, self._newest = self._newest, max([self._newest, *(row.entry.id for row in snapshot.rows)])
        if snapshot.has_new_change:
            self.opened.has_new_change = False
            by = self.session.by(None)
            changes = (row.entry for row in snapshot.rows if row.entry.verb not in UNCHANGED)
            own = (entry.id for entry in changes if (entry.operator, entry.host) == by[:2])
            if (latest := next(own, 0)) > newest:
                self._table.move_to(latest)
        operation = next((row for row in snapshot.rows if target and line(row.entry.target) == target), None)
        if operation is not None:
            self._table.move_to(operation.entry.id)
        elif target:
            self.post_message(Notice(f"No operation on {target} among the latest {MOST_GROUPS}", bad=True))

    @on(Table.Selected)
    def _open(self) -> None:
        operation = self._operation()
        if operation is not None and is_group(operation):
            self._list(operation.entry.change_group)
        elif operation is not None and operation.entry.task_id is not None:
            self.console.open_task(operation.entry.task_id)

    async def action_back(self) -> None:
        """List all operations again; then go back to where the audit was opened."""
        if self._change_group is not None:
            self._list(None)
        else:
            await self.run_action("app.go('back')")

    def _list(self, change_group: str | None) -> None:
        self._change_group = change_group
        self.query_one("#about", TextBlock).display = change_group is not None
        table = self._table
        table.scroll_home(animate=False)
        table.show((), lambda _: RenderedRow(()))  # An empty table puts the cursor on the first of the next rows.
        self.action_reload()

    def action_tasks(self) -> None:
        """List the tasks of the change group."""
        group = self._change_group or self._group_of_cursor()
        if group is None:
            self.post_message(Notice("This is a single change; enter opens its task", bad=True))
        else:
            self.console.open_tasks(str(Filter((Term("change", Operator.EQ, group),))))

    def _show_group(self) -> None:
        title = (
            f"  change group {line(self._change_group)}, latest {MOST_GROUPS} at most (escape lists all, t its tasks)"
        )
        fate = self._operations.fate if self._operations and self._change_group else None
        about = lines([content(title), *(fate_lines(fate) if fate else ())])
        self.query_one("#about", TextBlock).set_text(about)

    @on(Table.CursorMoved)
    def _cursor_moved(self) -> None:
        self._show_entry()
        if self._group_of_cursor():
            self.feed.hurry()

    def _show_entry(self) -> None:
        operation, operations = self._operation(), self._operations
        trace, zone = self.query_one("#trace"), self.session.zone
        width = self.size.width - trace.scrollbar_size_vertical
        parts = list(change(operation, operations.at, zone, width)) if operation and operations else []
        if operations and not operations.rows:
            parts = [content((f"  {text}", "muted")) for text in EMPTY]
        if operations and operations.fate and operations.of == self._group_of_cursor():
            parts += fate_lines(operations.fate)
        scrolls = ", tab scrolls" if len(parts) > trace.size.height else ""
        title = [BLANK, _change_title(operation, self.size.width, scrolls)] if operation else []
        self.query_one("#below", Canvas).draw(title)
        self.query_one("#entry", TextBlock).set_text(lines(parts))

    def _operation(self) -> ChangeGroup | None:
        cursor = self._table.cursor
        rows = self._operations.rows if self._operations else ()
        return next((operation for operation in rows if operation.entry.id == cursor), None)


def texts_of_operation(operation: ChangeGroup | None, session: Session) -> "Copyable | None":
    """Return the texts of an operation to copy; None without one."""
    if operation is None:
        return None
    entry = operation.entry
    words: list[object] = ["audit", "--task", entry.task_id]
    if entry.change_group and is_group(operation):
        words = ["audit", "--group", entry.change_group]
    elif entry.target:
        words = ["audit", "--of", entry.target]
    texts = {"id": str(entry.id), "target": entry.target or str(entry.task_id), "reason": entry.reason}
    return texts_of_row(session, f"operation {entry.id}", words, texts)


def is_group(operation: ChangeGroup) -> bool:
    """True if a row covers several changes."""
    return operation.number.number > 1


def operation_line(operation: ChangeGroup, at: datetime, zone: tzinfo, *, undone: bool) -> RenderedRow:
    """Render an operation as a row."""
    entry, group = operation.entry, is_group(operation)
    verb, target = _verb_and_target(operation)
    changed = "enter lists changes" if group else "; ".join(brief_changes(entry, zone))
    return RenderedRow(
        (
            Cell(str(entry.id), "muted"),
            Cell(formatting.since(entry.at, at), "muted"),
            Cell(line(entry.operator), "strong"),
            Cell(line(entry.host), "muted"),
            Cell(line(verb), "strong"),
            Cell(line(target), "text"),
            Cell(line(changed) if changed else "", "muted"),
            Cell(line(entry.reason) if entry.reason else "", "text"),
        ),
        struck=undone and not group,
    )


def _verb_and_target(operation: ChangeGroup) -> tuple[str, str]:
    entry, group = operation.entry, is_group(operation)
    target = f"task {entry.task_id}" if entry.task_id is not None else entry.target or ""
    undo = "undo" if group else f"undo of {entry.undo_of}"
    verb = undo if entry.undo_of else formatting.verb(entry.verb)
    return verb, operation.number.of("task") if group and entry.task_id is not None else target


async def _operations(tx: Transaction, change_group: str | None, cursor: str | None) -> RecentOperations:
    of = change_group or cursor
    at, rows, fate_of = await tx.gather(clock(tx), change_groups(tx, MOST_GROUPS, change_group), _fate(tx, of))
    return RecentOperations(at, tuple(rows), fate_of, of)


async def _fate(tx: Transaction, change_group: str | None) -> GroupFate | None:
    return None if change_group is None else await fate(tx, change_group)


def fate_lines(fate: GroupFate) -> Iterator[Content]:
    """The fate of the tasks of a change group: a bar with counts, and the failures since."""
    total = max(fate.total.number, 1)
    bar = gauge([(number / total, str(shown)) for shown, number in fate.states.items()], BAR)
    parts: list[Part] = [("  ", ""), *bar]
    for name, count in fate.counts.items():
        parts += [(f"  {SIGNS[Shown(name)]} ", name)] if name in fate.states else [("  ", "")]
        parts += [(str(count), "strong"), (f" {name}", "muted")]
    yield content(*parts)
    for cause in fate.causes:
        how = "as before the change" if cause.repeated else "a new failure"
        text = f"  {fate.counted(cause.tasks).of('task')} failed since, {how}: {line(cause.error, 80)}"
        yield content((text, "dead" if cause.repeated else "retrying"))


def _change_title(operation: ChangeGroup, width: int, scrolls: str) -> Row:
    text = line(" ".join(_verb_and_target(operation)))
    note: list[Part] = [(f"operation {operation.entry.id}{scrolls}", "muted")]
    return rule(fit([(text, "bold strong")], min(cell_len(text), max(1, width - width_of(note) - 8))), width, note)


def change(operation: ChangeGroup, at: datetime, zone: tzinfo, width: int) -> Iterator[Content]:
    """An operation: who did what and when, and the changed values; of a change group those of its latest task."""
    entry = operation.entry
    when = f"{format_moment(entry.at, zone)}, {formatting.distance(entry.at, at)}" if entry.at else formatting.NOTHING
    yield content((f"  {line(format_entry(entry))}", "bold strong"))
    yield content((f"  {when}", "muted"))
    yield content()
    if is_group(operation) and entry.task_id is not None:
        yield content((f"  task {entry.task_id}, one of {operation.number}:", "muted"))
    values = list(changed_values(entry.before, entry.after, zone))
    names = [line(column_words(name)) for name, *_ in values]
    room = max(map(cell_len, names), default=0)
    for name, (_, before, after) in zip(names, values, strict=True):
        old = f"{line(before, LONGEST_VALUE)} -> " if before else ""
        inside: Part = (" " * (room + 4), "")
        first, *more = wrapped([inside, (old, "muted"), (line(after, LONGEST_VALUE), "strong")], width)
        yield content((f"  {fitted(name, room)}  ", "muted"), *first[1:])
        yield from (content(*row) for row in more)
