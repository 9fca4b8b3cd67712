"""Failures: what goes wrong, grouped by what it has in common."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from runner.people import cells
from runner.people.fields import Operator
from runner.people.filters import Filter, Term
from runner.people.redaction import masked
from runner.people.terminal import counted
from runner.store import observe
from runner.store.intervene import Kind, Place
from runner.store.observe import Failures, TaskRow
from runner.store.transaction import Transaction
from tasktui.act.actions import Action, Subject
from tasktui.draw.columns import Column
from tasktui.draw.plot import compact
from tasktui.draw.render import Cell, Line, block, brief, content, line
from tasktui.screens.acting import ActingScreen
from tasktui.screens.asking import acts
from tasktui.widgets.said import Said
from tasktui.widgets.table import Table

SPANS = (timedelta(hours=1), timedelta(days=1), timedelta(days=30))

COLUMNS = (
    Column("COUNT", 7, right=True),
    Column("NOW/m", 5, right=True),
    Column("TASKS", 6, right=True, drop=2),
    Column("BURIED", 6, right=True),
    Column("FIRST", 7, right=True, drop=1),
    Column("LAST", 7, right=True),
    Column("HANDLER", 14, grow=1),
    Column("ERROR", 24, grow=4),
)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one moment."""

    at: datetime
    found: tuple[Failures, ...]


class FailuresScreen(ActingScreen):
    """What goes wrong, grouped."""

    ABOUT = (
        "Failed attempts with numbers, ids and quotes masked, the most frequent first; NOW/m is how many there were a "
        "minute in the last ten. Enter lists the tasks of a group; R, T and D act on all of them, H pauses their "
        "handler."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *acts(Subject.TASKS, Subject.HANDLER),
        Binding("s", "span", "Span"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._span = 1
        self._groups: dict[str, Failures] = {}

    def parts(self) -> Iterable[Widget]:
        """The groups, and an example of the one under the cursor."""
        yield Said(id="about")
        yield Table[str](COLUMNS, id="groups")
        yield VerticalScroll(Said(id="example"), id="trace")

    def question(self) -> object:
        """The span of time."""
        return self._span

    async def look(self) -> object:
        """Read the groups."""
        return await self.session.read(_groups, SPANS[self._span])

    def show(self, snapshot: Any) -> None:
        """Show the groups."""
        self._groups = {group.fingerprint: group for group in snapshot.found}
        groups = self._groups
        self.query_one("#groups", Table).show(tuple(groups), lambda key: group_line(groups[key], snapshot.at))
        span = ("hour", "day", "month")[self._span]
        self.query_one("#about", Said).say(
            content((f" {counted(len(groups), 'kind')} of failures in the last {span}, s for another span", "dim"))
        )
        self._example()

    def ask_for_tasks(self, action: Action, chosen: Sequence[TaskRow]) -> None:
        """Ask about the tasks of the group under the cursor, however many."""
        group = self._group()
        if group is None:
            super().ask_for_tasks(action, chosen)
        else:
            self.ask_for_all(action, of_kind(group))

    def place(self, kind: Kind) -> Place | None:
        """The handler of the group under the cursor."""
        group = self._group()
        return Place(kind, group.handler) if group is not None and kind is Kind.HANDLER else None

    def spoken(self) -> Sequence[object]:
        """What groups the same failures."""
        return ["failures", f"since:{('1h', '1d', '30d')[self._span]}"]

    def action_span(self) -> None:
        """Look at another span of time."""
        self._span = (self._span + 1) % len(SPANS)
        self.feed.hurry()

    @on(Table.Chosen)
    def _chosen(self, event: Table.Chosen) -> None:
        group = self._groups[event.key]
        self.session.wanted = str(of_kind(group))
        self.app.switch_mode("tasks")

    @on(Table.Moved)
    def _example(self) -> None:
        group = self._group()
        text = "" if group is None else group.traceback or f"{group.error_type}: {group.message}"
        title = f"the last one, of task {group.task_id}" if group else ""
        self.query_one("#example", Said).say(content((f"{title}\n", "bold"), block(masked(text))))

    def _group(self) -> Failures | None:
        return self._groups.get(self.query_one("#groups", Table).cursor or "")


def of_kind(group: Failures) -> Filter:
    """The tasks that had a failure of this kind."""
    return Filter((Term("failure", Operator.EQ, group.fingerprint),))


def group_line(group: Failures, at: datetime) -> Line:
    """A group in the table."""
    return Line(
        (
            Cell(str(group.count)),
            Cell(compact(group.rate), "bold" if group.lately else "dim"),
            Cell(str(group.tasks)),
            Cell(str(group.buried), "red" if group.buried else "dim"),
            Cell(cells.since(group.first, at)),
            Cell(cells.since(group.last, at)),
            Cell(line(group.handler)),
            Cell(brief(f"{group.error_type}: {group.message}")),
        )
    )


async def _groups(tx: Transaction, span: timedelta) -> Groups:
    at = await observe.clock(tx)
    return Groups(at, tuple(await observe.failures(tx, since=at - span)))
