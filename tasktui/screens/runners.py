"""Runners: who works, and what each has in hand."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Static

from runner.people import cells
from runner.store import observe
from runner.store.observe import RunnerRow
from runner.store.transaction import Transaction
from tasktui.actions import Subject
from tasktui.columns import Column
from tasktui.render import Cell, Line, content, line
from tasktui.screens.acting import ActingScreen
from tasktui.screens.asking import acts
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


@dataclass(frozen=True, slots=True)
class Workforce:
    """The runners of one moment."""

    at: datetime
    found: tuple[RunnerRow, ...]


class RunnersScreen(ActingScreen):
    """Who works."""

    ABOUT = (
        "The registered runners, lost ones included. Enter lists what a runner has in hand; L lets it finish "
        "that and leave, S changes how many tasks it runs at once."
    )
    BINDINGS: ClassVar[list[BindingType]] = acts(Subject.RUNNER)

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, RunnerRow] = {}

    def parts(self) -> Iterable[Widget]:
        """The runners."""
        yield Static(id="about")
        yield Table[int](COLUMNS, id="runners")

    async def look(self) -> object:
        """Read the runners."""
        return await self.session.read(_workforce)

    def show(self, snapshot: Any) -> None:
        """Show the runners."""
        self._found = found = {runner.id: runner for runner in snapshot.found}
        self.query_one("#runners", Table).show(tuple(found), lambda id: runner_line(found[id], snapshot.at))
        alive = sum(runner.alive for runner in found.values())
        hint = "" if found else "; start one with: runner work -H package.module"
        about = f" {alive} alive, {len(found) - alive} lost{hint}"
        self.query_one("#about", Static).update(content((about, "dim")))

    def spoken(self) -> Sequence[object]:
        """What lists the same runners."""
        return ["runners"]

    def runner(self) -> RunnerRow | None:
        """The runner under the cursor."""
        return self._found.get(self.query_one("#runners", Table).cursor or 0)

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


async def _workforce(tx: Transaction) -> Workforce:
    return Workforce(await observe.clock(tx), tuple(await observe.runners(tx)))
