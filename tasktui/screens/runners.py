"""RunnersScreen: the registered runners and their running tasks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import on
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator, Sort, SortField
from runner.filter.parse import Filter, Term
from runner.model.task import State
from runner.queries.reports import Flow, results_by_runner, usual_times
from runner.queries.runners import RunnerRow, busy_slots
from runner.queries.runners import runners as read_runners
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.search import page
from runner.text import formatting
from tasktui.actions.action import ActionTarget, Targets
from tasktui.render.plot import compact, gauge
from tasktui.render.render import Cell, ListColumn, RenderedRow, fitted, line, widths
from tasktui.render.rows import BLANK, Part, Row, ends, fit, handler, heading, rule
from tasktui.screens.actions import action_bindings
from tasktui.screens.live import LiveScreen
from tasktui.screens.side_panels import colours_of, host_rows, legend, percent, slot_row
from tasktui.session.cache import TtlCache
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import Table

COLUMNS = (
    ListColumn("  RUNNER", 12),
    ListColumn("VERSION", 9, drop=6),
    ListColumn("UP", 6, right=True, drop=2),
    ListColumn("SLOTS BY HANDLER", 22, grow=1),
    ListColumn("USED", 8, right=True),
    ListColumn("CPU", 6, right=True, drop=3),
    ListColumn("MEMORY", 9, right=True, drop=5),
    ListColumn("DONE/MIN", 8, right=True, drop=1),
    ListColumn("FAILED", 6, right=True, drop=4),
    ListColumn("SEEN", 11, right=True),
)

USUAL_EVERY = 30.0
"""Seconds to cache the usual run times."""

LONGEST = Sort(SortField.CLAIMED_AT, descending=False)

MOST_HOSTS = 6
"""Maximum number of hosts above the table."""
WITH_KEYS = 96
"""Cells of the list of tasks that has room for keys and attempts."""

MOST_TASKS = 50
"""Maximum number of tasks of a runner to list below the table."""


@dataclass(frozen=True, slots=True)
class Workforce:
    """The runners at one moment.

    Args:
        at: the database's time.
        runners: all registered runners.
        tasks: the tasks of the runner under the cursor, longest running first.
        slots: running tasks of each runner by handler.
        results: results of the last ten minutes by runner.
        p95: 95th percentile of the run time of each handler in the last hour, in seconds.
    """

    at: datetime
    runners: tuple[RunnerRow, ...]
    tasks: tuple[TaskRow, ...]
    slots: Mapping[int, Mapping[str, int]]
    results: Mapping[int, Flow]
    p95: Mapping[str, float]


class RunnersScreen(LiveScreen):
    """The registered runners."""

    ABOUT = (
        "All registered runners, including lost ones, and the tasks that the runner under the cursor has claimed, "
        "longest running first. CPU is the share of one processor since the last heartbeat, and MEMORY the resident "
        "memory, both with the processes of handlers; the rows above the table are the sums of each host. "
        "FAILED is the share of failed attempts in the last ten minutes. Enter lists the tasks. "
        "L drains the runner: it finishes its tasks and exits. S changes how many tasks it runs concurrently."
    )
    OPENS = "tasks"
    BINDINGS: ClassVar[list[BindingType]] = action_bindings(ActionTarget.RUNNER)

    def __init__(self) -> None:
        super().__init__(Targets(runner=self.runner))
        self._table = Table[int](COLUMNS, id="runners")
        self._runners: dict[int, RunnerRow] = {}
        self._usual = TtlCache[dict[str, float]](USUAL_EVERY)

    def parts(self) -> Iterable[Widget]:
        """Return the runners, and the tasks of the runner under the cursor."""
        yield Canvas(id="about")
        yield self._table
        yield Canvas(id="legend")
        yield VerticalScroll(Canvas(id="claimed"), id="trace")

    def request(self) -> object:
        """Return the runner under the cursor."""
        return self._table.cursor

    async def read(self) -> object:
        """Read the runners."""
        usual = await self._usual.get(None, partial(self.session.read, _usual_times))
        return replace(await self.session.read(_workforce, self._table.cursor), p95=usual)

    def show(self, snapshot: Any) -> None:
        """Show the runners."""
        data: Workforce = snapshot
        self._runners = runners = {runner.id: runner for runner in data.runners}
        width, height = self.size
        colours = colours_of(data.slots)
        table = self._table
        table.columns = columns_for(data)
        bar = slot_width(table.columns, width)
        table.styles.height = max(3, min(len(runners) + 1, height - 14 if height > 30 else height // 2))
        table.show(tuple(runners), lambda id: runner_line(runners[id], data, colours, bar))
        if self.session.target.isdecimal() and int(self.session.target) in runners:
            table.move_to(int(self.session.target))
        self.session.target = ""
        hosts = host_rows(data.runners, width, MOST_HOSTS if height >= 30 else 0)
        self.query_one("#about", Canvas).draw([totals_row(data, width), *hosts, BLANK])
        self.query_one("#legend", Canvas).draw([BLANK, *legend(colours, width), BLANK] if height >= 30 else [])
        rows = claimed_rows(self.runner(), data, max(40, width - 3))
        self.query_one("#claimed", Canvas).draw(rows)

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same runners."""
        return ["runners"]

    def runner(self) -> RunnerRow | None:
        """Return the runner under the cursor."""
        return self._runners.get(self._table.cursor or 0)

    @on(Table.CursorMoved)
    def _read_tasks(self) -> None:
        self.action_reload()

    @on(Table.Selected)
    def _open_tasks(self, event: Table.Selected) -> None:
        self.session.filter_text = f"runner:{event.key} state:running"
        self.app.switch_mode("tasks")


def columns_for(data: Workforce) -> tuple[ListColumn, ...]:
    """The columns: as wide as their texts, and without figures that no runner has."""
    measured = any(runner.cpu is not None or runner.memory is not None for runner in data.runners)
    names = [cell_len(line(runner.host)) + len(f"● :{runner.pid}") for runner in data.runners]
    remarks = [cell_len(seen(runner).text) for runner in data.runners]
    texts = {"  RUNNER": (names, 34), "SEEN": (remarks, 44)}
    columns = [column for column in COLUMNS if measured or column.title not in ("CPU", "MEMORY")]
    for place, column in enumerate(columns):
        lengths, most = texts.get(column.title, ([], 0))
        columns[place] = column._replace(width=min(max([column.width, *lengths]), max(most, column.width)))
    return tuple(columns)


def slot_width(columns: Sequence[ListColumn], width: int) -> int:
    """The cells of the column of slots on a screen of a width."""
    place = [column.title for column in columns].index("SLOTS BY HANDLER")
    return widths(columns, width - 3)[place]


def totals_row(data: Workforce, width: int) -> Row:
    """Runners alive and silent, and the slots in use."""
    alive = [runner for runner in data.runners if runner.alive]
    lost = len(data.runners) - len(alive)
    if not data.runners:
        hint: list[Part] = [(" 0 alive, 0 lost", "muted"), ("; start one with: ", "muted")]
        return fit([*hint, ("runner work -H package.module", "bold strong")], width)
    busy, capacity = (sum(getattr(runner, name) for runner in alive) for name in ("running_tasks", "capacity"))
    share = busy / capacity if capacity else 0.0
    left: list[Part] = [(f"  {len(alive)}", "bold succeeded"), (" alive, ", "muted")]
    left += [(str(lost), "bold lost" if lost else "muted"), (" lost   ", "muted")]
    left += [(f"{busy:,}", "bold running"), (f" of {capacity:,} slots busy   ", "muted")]
    left += [
        *gauge([(share, "retrying" if share >= 1 else "running")], 30),
        (f"  {round(share * 100)} %", "bold strong"),
    ]
    late = [runner for runner in alive if runner.silent]
    right: list[Part] = []
    if late:
        soonest = min(runner.lease for runner in late)
        right = [(f"next lease ends in {formatting.age(soonest)} ", "lost")]
    return ends(left, right, width)


def runner_line(runner: RunnerRow, data: Workforce, colours: Mapping[str, int], bar: int) -> RenderedRow:
    """Render a runner as a row.

    Args:
        runner: the runner.
        data: the figures of all runners.
        colours: colour of each handler.
        bar: cells of the slots.
    """
    flow = data.results.get(runner.id, Flow())
    name = f"{line(runner.host)}:{runner.pid}"
    well = runner.alive and not runner.silent
    sign, role = ("●", "succeeded") if well else ("◌", "bold lost")
    title: tuple[Part, ...] = ((f"{sign} ", role), (name, "text" if well else "bold lost"))
    blocks = slot_row(data.slots.get(runner.id, {}), runner.capacity, bar, colours)
    attempts = flow.failed + flow.succeeded
    failing = attempts >= 10 and flow.failed >= attempts * 0.9
    failed = f"{round(flow.failed / attempts * 100)} %" if attempts else ""
    return RenderedRow(
        (
            Cell(f"{sign} {name}", "text", title),
            Cell(line(runner.version), "muted"),
            Cell(formatting.since(runner.started_at, data.at), "muted"),
            Cell("".join(text for text, _ in blocks), "running", tuple(blocks)),
            Cell(f"{runner.running_tasks}/{runner.capacity}", "text"),
            Cell(percent(runner.cpu), "text" if runner.alive else "faint"),
            Cell(formatting.size(runner.memory), "muted" if runner.alive else "faint"),
            Cell(compact(flow.ended / 10), "text" if flow.ended else "faint"),
            Cell(failed, "bold dead" if failing else "muted" if flow.failed else "faint"),
            seen(runner),
        )
    )


def seen(runner: RunnerRow) -> Cell:
    """The last sign of life of a runner, or the reason why there is none; else its remarks."""
    age = formatting.age(runner.heartbeat_age)
    if not runner.alive:
        return Cell(f"lost, silent {age}", "bold lost")
    if runner.blocked_for:
        return Cell(line(runner.obstruction), "bold dead")
    if runner.silent:
        return Cell(f"silent {age}, lease {formatting.age(runner.lease)}", "bold lost")
    if runner.remarks:
        trouble = runner.command or runner.abandoned
        return Cell(", ".join(map(line, runner.remarks)), "bold retrying" if trouble else "faint")
    return Cell(f"{age} ago", "faint")


def claimed_rows(runner: RunnerRow | None, data: Workforce, width: int) -> list[Row]:
    """The claimed tasks of a runner, with their run time against the 95th percentile of their handlers."""
    if runner is None:
        return []
    tasks = data.tasks
    more = f", the {len(tasks)} longest" if len(tasks) < runner.running_tasks else ""
    title: list[Part] = [heading(f"{line(runner.host, 30)}:{runner.pid} RUNS {runner.running_tasks}")]
    queues = ", ".join(runner.queues) if runner.queues else "all"
    about = "".join(f", {text}" for text in runner.remarks)
    facts = line(f"runner {runner.id}, queues {queues}{about}{more}", width * 2 // 3)
    rows: list[Row] = [rule(title, width, [(facts, "muted")])]
    narrow = width < WITH_KEYS
    bar = max(15, width - (58 if narrow else 87))
    if tasks:
        names = (
            f"{'ID':>10}  {'HANDLER':<24}{'' if narrow else 'KEY':<{0 if narrow else 20}}{'AGAINST ITS P95':<{bar + 2}}"
        )
        attempt = "" if narrow else f"{'ATTEMPT':>9}"
        rows.append(fit([(f"{names}{'RUNNING':>9}{'P95':>9}{attempt}", "muted")], width))
    for task in tasks:
        length = (data.at - task.claimed_at).total_seconds() if task.claimed_at else 0.0
        p95 = data.p95.get(task.handler)
        slow = p95 is not None and length > p95
        share = min(length / p95, 1.0) if p95 else 0.0
        cancel: list[Part] = [("  cancel requested", "retrying")] if task.cancel_requested else []
        tried = formatting.attempts(task.attempt, task.max_attempts)
        key: list[Part] = [(fitted(line(task.key) if task.key else "", 19), "text"), (" ", "")]
        rows.append(
            fit(
                [
                    *[(f"{task.id:>10}  ", "muted"), *handler(task.handler, 23), (" ", "")],
                    *[*([] if narrow else key), *gauge([(share, "retrying" if slow else "running")], bar), ("  ", "")],
                    (f"{formatting.age(length):>9}", "retrying" if slow else "text"),
                    (f"{formatting.duration(p95) if p95 is not None else '':>9}", "faint"),
                    ("" if narrow else f"{tried:>9}", "muted"),
                    *cancel,
                ],
                width,
            )
        )
    return rows


async def _workforce(tx: Transaction, runner_id: int | None) -> Workforce:
    runners = tuple(await read_runners(tx))
    runner_id = runners[0].id if runner_id is None and runners else runner_id
    tasks = await _claimed_tasks(tx, runner_id) if runner_id is not None else []
    at = await clock(tx)
    results = await results_by_runner(tx, at - timedelta(minutes=10))
    return Workforce(at, runners, tuple(tasks), await busy_slots(tx), results, {})


async def _usual_times(tx: Transaction) -> dict[str, float]:
    """The 95th percentile of the run time of each handler in the last hour, in seconds."""
    at = await clock(tx)
    return await usual_times(tx, at - timedelta(hours=1), at + timedelta(minutes=1))


async def _claimed_tasks(tx: Transaction, runner_id: int) -> list[TaskRow]:
    running = Filter((Term("runner", Operator.EQ, runner_id), Term("state", Operator.EQ, str(State.RUNNING))))
    return (await page(tx, running, None, MOST_TASKS, LONGEST)).tasks
