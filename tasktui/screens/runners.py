"""RunnersScreen: the registered runners and their running tasks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.filter.sort import Sort, SortField
from runner.model.task import State
from runner.queries.runners import RunnerRow
from runner.queries.runners import runners as read_runners
from runner.queries.task_list.page import page
from runner.queries.task_list.row import TaskRow
from runner.text import formatting
from runner.text.sanitize import count_noun
from tasktui.actions.action import ActionTarget
from tasktui.actions.targets import Targets
from tasktui.render.render import Cell, ListColumn, RenderedRow, content, line, lines
from tasktui.screens.actions import action_bindings
from tasktui.screens.live import LiveScreen
from tasktui.widgets.canvas import TextBlock
from tasktui.widgets.table import Table

COLUMNS = (
    ListColumn("RUNNER", 7, right=True),
    ListColumn("HOST", 12, grow=2),
    ListColumn("PID", 7, right=True, drop=2),
    ListColumn("STATE", 14, grow=1),
    ListColumn("SILENT", 7, right=True),
    ListColumn("SLOTS", 9, right=True),
    ListColumn("UP", 7, right=True, drop=1),
    ListColumn("VERSION", 8, drop=3),
    ListColumn("HANDLERS", 12, grow=3),
)


LONGEST = Sort(SortField.CLAIMED_AT, descending=False)

MOST_TASKS = 50
"""Maximum number of tasks of a runner to list below the table."""


@dataclass(frozen=True, slots=True)
class Workforce:
    """The runners at one moment, and the tasks of one of them, longest running first."""

    at: datetime
    runners: tuple[RunnerRow, ...]
    tasks: tuple[TaskRow, ...]


class RunnersScreen(LiveScreen):
    """The registered runners."""

    ABOUT = (
        "All registered runners, including lost ones, and the tasks that the runner under the cursor has claimed, "
        "longest running first. SILENT is the time since the last heartbeat. Enter lists the tasks. L drains the "
        "runner: it finishes its tasks and exits. S changes how many tasks it runs concurrently."
    )
    BINDINGS: ClassVar[list[BindingType]] = action_bindings(ActionTarget.RUNNER)

    def __init__(self) -> None:
        super().__init__(Targets(runner=self.runner))
        self._runners: dict[int, RunnerRow] = {}

    def parts(self) -> Iterable[Widget]:
        """Return the runners, and the tasks of the runner under the cursor."""
        yield TextBlock(id="about")
        yield Table[int](COLUMNS, id="runners")
        yield VerticalScroll(TextBlock(id="claimed"), id="trace")

    def request(self) -> object:
        """Return the runner under the cursor."""
        return self._cursor

    async def read(self) -> object:
        """Read the runners."""
        return await self.session.read(_workforce, self._cursor)

    def show(self, snapshot: Any) -> None:
        """Show the runners."""
        self._runners = runners = {runner.id: runner for runner in snapshot.runners}
        self.query_one("#runners", Table).show(tuple(runners), lambda id: runner_line(runners[id], snapshot.at))
        if self.session.target.isdecimal() and int(self.session.target) in runners:
            self.query_one("#runners", Table).move_to(int(self.session.target))
        self.session.target = ""
        alive = sum(runner.alive for runner in runners.values())
        hint = "" if runners else "; start one with: runner work -H package.module"
        about = f" {alive} alive, {len(runners) - alive} lost{hint}"
        self.query_one("#about", TextBlock).set_text(content((about, "muted")))
        self.query_one("#claimed", TextBlock).set_text(lines(claimed_lines(self.runner(), snapshot.tasks, snapshot.at)))

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same runners."""
        return ["runners"]

    def runner(self) -> RunnerRow | None:
        """Return the runner under the cursor."""
        return self._runners.get(self._cursor or 0)

    @property
    def _cursor(self) -> int | None:
        cursor: int | None = self.query_one("#runners", Table).cursor
        return cursor

    @on(Table.CursorMoved)
    def _read_tasks(self) -> None:
        self.action_reload()

    @on(Table.Selected)
    def _open_tasks(self, event: Table.Selected) -> None:
        self.session.filter_text = f"runner:{event.key} state:running"
        self.app.switch_mode("tasks")


def runner_line(runner: RunnerRow, at: datetime) -> RenderedRow:
    """Render a runner as a row."""
    state = "● alive" if runner.alive else "✖ lost"
    return RenderedRow(
        (
            Cell(str(runner.id)),
            Cell(line(runner.host)),
            Cell(str(runner.pid)),
            Cell(
                f"{state}, {line(runner.command)}" if runner.command else state,
                "succeeded" if runner.alive else "bold dead",
            ),
            Cell(formatting.age(runner.heartbeat_age)),
            Cell(f"{runner.running_tasks}/{runner.capacity}"),
            Cell(formatting.since(runner.started_at, at)),
            Cell(line(runner.version)),
            Cell(line(", ".join(runner.handlers))),
        )
    )


def claimed_lines(runner: RunnerRow | None, tasks: Sequence[TaskRow], at: datetime) -> Iterator[Content]:
    """Render the claimed tasks of a runner, with their run time so far."""
    if runner is None:
        return
    more = f", the {len(tasks)} longest running" if len(tasks) < runner.running_tasks else ""
    yield content((f"runner {runner.id}: {count_noun(runner.running_tasks, 'claimed task')}{more}", "bold"))
    for task in tasks:
        cancel = "  cancel requested" if task.cancel_requested else ""
        attempt = f"attempt {formatting.attempts(task.attempt, task.max_attempts)}"
        about = f"{line(task.handler, 40)}  {line(task.key, 40)}  {attempt}"
        yield content(f"{formatting.since(task.claimed_at, at):>8}  {task.id}  {about}{cancel}")


async def _workforce(tx: Transaction, runner_id: int | None) -> Workforce:
    runners = tuple(await read_runners(tx))
    runner_id = runners[0].id if runner_id is None and runners else runner_id
    tasks = await _claimed_tasks(tx, runner_id) if runner_id is not None else []
    return Workforce(await clock(tx), runners, tuple(tasks))


async def _claimed_tasks(tx: Transaction, runner_id: int) -> list[TaskRow]:
    running = Filter((Term("runner", Operator.EQ, runner_id), Term("state", Operator.EQ, str(State.RUNNING))))
    return (await page(tx, running, None, MOST_TASKS, LONGEST)).tasks
