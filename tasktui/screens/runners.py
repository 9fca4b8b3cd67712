"""Runners: who works, and what each has in hand."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from runner.people import cells
from runner.people.fields import Operator
from runner.people.filters import Filter, Term
from runner.people.sorts import By, Sort
from runner.people.terminal import counted
from runner.store import observe
from runner.store.observe import RunnerRow, TaskRow
from runner.store.transaction import Transaction
from runner.task import State
from tasktui.act.actions import Subject
from tasktui.draw.columns import Column
from tasktui.draw.render import Cell, Line, content, line, lines
from tasktui.screens.acting import ActingScreen
from tasktui.screens.asking import acts
from tasktui.widgets.said import Said
from tasktui.widgets.table import Table

COLUMNS = (
    Column("RUNNER", 7, right=True),
    Column("HOST", 12, grow=2),
    Column("PID", 7, right=True, drop=2),
    Column("STATE", 14, grow=1),
    Column("SILENT", 7, right=True),
    Column("SLOTS", 9, right=True),
    Column("UP", 7, right=True, drop=1),
    Column("VERSION", 8, drop=3),
    Column("HANDLERS", 12, grow=3),
)


LONGEST = Sort(By.CLAIMED_AT, descending=False)

MOST_HELD = 50
"""Tasks in hand that are listed below; enter lists all."""


@dataclass(frozen=True, slots=True)
class Workforce:
    """The runners of one moment, and what one of them has in hand, the longest first."""

    at: datetime
    found: tuple[RunnerRow, ...]
    held: tuple[TaskRow, ...]


class RunnersScreen(ActingScreen):
    """Who works."""

    ABOUT = (
        "The registered runners, lost ones included, and what the one under the cursor has in hand, the longest "
        "first. Enter lists that; L lets it finish that and leave, S changes how many tasks it runs at once."
    )
    BINDINGS: ClassVar[list[BindingType]] = acts(Subject.RUNNER)

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, RunnerRow] = {}

    def parts(self) -> Iterable[Widget]:
        """The runners, and what one of them has in hand."""
        yield Said(id="about")
        yield Table[int](COLUMNS, id="runners")
        yield VerticalScroll(Said(id="held"), id="trace")

    def question(self) -> object:
        """The runner under the cursor."""
        return self._cursor

    async def look(self) -> object:
        """Read the runners."""
        return await self.session.read(_workforce, self._cursor)

    def show(self, snapshot: Any) -> None:
        """Show the runners."""
        self._found = found = {runner.id: runner for runner in snapshot.found}
        self.query_one("#runners", Table).show(tuple(found), lambda id: runner_line(found[id], snapshot.at))
        if self.session.sought.isdecimal() and int(self.session.sought) in found:
            self.query_one("#runners", Table).put(int(self.session.sought))
        self.session.sought = ""
        alive = sum(runner.alive for runner in found.values())
        hint = "" if found else "; start one with: runner work -H package.module"
        about = f" {alive} alive, {len(found) - alive} lost{hint}"
        self.query_one("#about", Said).say(content((about, "dim")))
        self.query_one("#held", Said).say(lines(held(self.runner(), snapshot.held, snapshot.at)))

    def spoken(self) -> Sequence[object]:
        """What lists the same runners."""
        return ["runners"]

    def runner(self) -> RunnerRow | None:
        """The runner under the cursor."""
        return self._found.get(self._cursor or 0)

    @property
    def _cursor(self) -> int | None:
        cursor: int | None = self.query_one("#runners", Table).cursor
        return cursor

    @on(Table.Moved)
    def _moved(self) -> None:
        self.action_reload()

    @on(Table.Chosen)
    def _chosen(self, event: Table.Chosen) -> None:
        self.session.wanted = f"runner:{event.key} state:running"
        self.app.switch_mode("tasks")


def runner_line(runner: RunnerRow, at: datetime) -> Line:
    """A runner in the table."""
    state = "● alive" if runner.alive else "✖ lost"
    return Line(
        (
            Cell(str(runner.id)),
            Cell(line(runner.host)),
            Cell(str(runner.pid)),
            Cell(f"{state}, {line(runner.wish)}" if runner.wish else state, "green" if runner.alive else "bold red"),
            Cell(cells.age(runner.silent)),
            Cell(f"{runner.holds}/{runner.capacity}"),
            Cell(cells.since(runner.started_at, at)),
            Cell(line(runner.version)),
            Cell(line(", ".join(runner.handlers))),
        )
    )


def held(runner: RunnerRow | None, tasks: Sequence[TaskRow], at: datetime) -> Iterator[Content]:
    """What a runner has in hand, and for how long."""
    if runner is None:
        return
    more = f", the {len(tasks)} longest of them" if len(tasks) < runner.holds else ""
    yield content((f"runner {runner.id} has {counted(runner.holds, 'task')} in hand{more}", "bold"))
    for task in tasks:
        progress = f"  {task.progress:.0%}" if task.progress is not None else ""
        asked = "  its end has been asked for" if task.cancel_requested else ""
        about = f"{line(task.handler, 40)}  {line(task.key, 40)}  try {cells.tries(task.attempt, task.max_attempts)}"
        yield content(f"{cells.since(task.claimed_at, at):>8}  {task.id}  {about}{progress}{asked}")


async def _workforce(tx: Transaction, chosen: int | None) -> Workforce:
    found = tuple(await observe.runners(tx))
    chosen = found[0].id if chosen is None and found else chosen
    tasks = await _held(tx, chosen) if chosen is not None else []
    return Workforce(await observe.clock(tx), found, tuple(tasks))


async def _held(tx: Transaction, runner: int) -> list[TaskRow]:
    """The tasks that it has had in hand for longest."""
    wanted = Filter((Term("runner", Operator.EQ, runner), Term("state", Operator.EQ, str(State.RUNNING))))
    return (await observe.page(tx, wanted, None, MOST_HELD, LONGEST)).tasks
