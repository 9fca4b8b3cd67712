"""Reports: how well it went over some time, by handler or by queue."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from runner.errors import InvalidInput
from runner.people import cells
from runner.store import observe
from runner.store.observe import By, Flow, MinuteFlow, Summary, SummaryLine
from runner.store.transaction import Transaction
from tasktui import screens
from tasktui.draw.columns import Column
from tasktui.draw.plot import plot
from tasktui.draw.render import Cell, Line, content, fitted, line
from tasktui.look.exporting import export, usual_name
from tasktui.operator.recall import Recall
from tasktui.screens.live import LiveScreen
from tasktui.typed.query import filter_of
from tasktui.widgets.said import Said
from tasktui.widgets.table import Table

PLOT_HEIGHT = 4

ALL = ""
"""Stands for all lines together: no handler and no queue has an empty name."""


class Span(NamedTuple):
    """A time to look at.

    Args:
        words: for people.
        length: how long.
        step: minutes of one value of the plots.
        every: seconds for which an answer is kept.
        marks: how the ends of the plots are written.
    """

    words: str
    length: timedelta
    step: int
    every: float
    marks: str


SPANS = (
    Span("1 h", timedelta(hours=1), 1, 5.0, "%H:%M"),
    Span("24 h", timedelta(days=1), 15, 30.0, "%H:%M"),
    Span("7 days", timedelta(days=7), 120, 120.0, "%b %d"),
    Span("30 days", timedelta(days=30), 480, 300.0, "%b %d"),
)

COLUMNS = (
    Column("NAME", 12, grow=1),
    Column("IN", 8, right=True),
    Column("DONE", 8, right=True),
    Column("SUCCESS", 7, right=True),
    Column("1ST TRY", 7, right=True),
    Column("2ND", 6, right=True),
    Column("DEAD", 6, right=True),
    Column("P50", 6, right=True),
    Column("P95", 6, right=True),
    Column("RETRIED", 8, right=True, drop=1),
    Column("CANCELLED", 9, right=True, drop=2),
    Column("RESCUED", 8, right=True, drop=3),
)


@dataclass(frozen=True, slots=True)
class Report:
    """A summary, and the course of the line under the cursor."""

    summary: Summary
    name: str
    course: tuple[MinuteFlow, ...]


class ReportsScreen(LiveScreen):
    """How well it went."""

    ABOUT = (
        "IN counts tasks by when they were submitted, the others by when they ended. SUCCESS is the share that "
        "succeeded of those that succeeded or died; 1ST TRY and 2ND are the shares that did so at the first and at the "
        "second attempt. The plots are of the line under the cursor. Enter lists its tasks, s takes another span of "
        "time, b handlers or queues, x writes the table into a file."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "span", "Span"),
        Binding("b", "by", "By handler, queue"),
        Binding("x", "export", "Export"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._span = 0
        self._by = By.HANDLER
        self._report: Report | None = None
        self._recall = [Recall[Report](span.every) for span in SPANS]

    def parts(self) -> Iterable[Widget]:
        """The table, and two plots."""
        yield Said(id="about")
        yield Table[str](COLUMNS, id="lines")
        yield Horizontal(Said(id="done"), Said(id="failed"), id="plots")

    def question(self) -> object:
        """The span, what the lines are, and the line whose course is plotted."""
        return (self._span, self._by, self._chosen_name)

    async def look(self) -> object:
        """Sum up; what costs more is kept for longer."""
        await self.session.read(observe.clock)  # tells how the database does, and whether it is there
        span, by, name = SPANS[self._span], self._by, self._chosen_name
        ask = partial(self.session.read, read_report, span, by, name)
        return await self._recall[self._span].get((by, name), ask)

    def show(self, snapshot: Any) -> None:
        """Show the table and the plots."""
        self._report = report = snapshot
        summary: Summary = report.summary
        found = {ALL: summary.total} | {each.name: each for each in summary.lines}
        self.query_one("#lines", Table).show(tuple(found), lambda key: report_line(found[key], summary))
        span = SPANS[self._span]
        since, until = (self._local(moment, "%Y-%m-%d %H:%M") for moment in (summary.since, summary.until))
        self.query_one("#about", Said).say(content((f" {span.words}: {since} to {until}, by {self._by}", "dim")))
        self._plot("#done", "done", lambda flow: flow.succeeded)
        self._plot("#failed", "failed attempts", lambda flow: flow.failed)

    def action_span(self) -> None:
        """Look at another span of time."""
        self._span = (self._span + 1) % len(SPANS)
        self.action_reload()

    def action_by(self) -> None:
        """Make a line of each handler, or of each queue."""
        self._by = By.QUEUE if self._by is By.HANDLER else By.HANDLER
        self.query_one("#lines", Table).cursor = ALL
        self.action_reload()

    def action_export(self) -> None:
        """Ask for a file to write the table to."""
        if self._report is not None:
            summary = self._report.summary
            question = "Write the table into which file? .csv or .json"
            self.app.push_screen(screens.AskScreen(question, usual_name(summary)), partial(self._export, summary))

    def _export(self, summary: Summary, name: str | None) -> None:
        if name is None:
            return
        try:
            self.tell(f"Written to {export(summary, name)}")
        except InvalidInput as error:
            self.tell(str(error), bad=True)

    @property
    def _chosen_name(self) -> str:
        return self.query_one("#lines", Table).cursor or ALL

    @on(Table.Moved)
    def _moved(self) -> None:
        self.action_reload()

    @on(Table.Chosen)
    def _chosen(self, event: Table.Chosen) -> None:
        since = {"since": f"{SPANS[self._span].length // timedelta(minutes=1)}m"}
        named = {str(self._by): event.key} if event.key != ALL else {}
        self.session.wanted = filter_of(**named, **since)
        self.app.switch_mode("tasks")

    def _plot(self, id: str, title: str, number: Callable[[Flow], int]) -> None:
        assert self._report is not None  # noqa: S101 - called after it was read
        span, summary = SPANS[self._span], self._report.summary
        values = course(self._report.course, summary.since, summary.until, span.step, number)
        ends = (self._local(summary.since, span.marks), self._local(summary.until, span.marks))
        name = line(self._report.name) if self._report.name else "all"
        width = max(24, self.size.width // 2 - 2)
        drawn = [fitted(f" {title} a minute, {span.words}: {name}", width), *plot(values, width, PLOT_HEIGHT, ends)]
        self.query_one(id, Said).say(content("\n".join(drawn)))

    def _local(self, moment: datetime, form: str) -> str:
        return moment.astimezone(self.session.zone).strftime(form)


def report_line(each: SummaryLine, summary: Summary) -> Line:
    """A line of the table; the one for all of them stands out."""
    flow, dead = each.flow, "red" if each.flow.died else "dim"
    return Line(
        (
            Cell("all", "bold") if each is summary.total else Cell(line(each.name)),
            Cell(str(each.submitted)),
            Cell(f"{flow.succeeded:,}"),
            Cell(cells.share(flow.success_rate)),
            Cell(cells.share(each.first)),
            Cell(cells.share(each.second), "dim"),
            Cell(f"{flow.died:,}", dead),
            Cell(cells.duration(each.p50)),
            Cell(cells.duration(each.p95)),
            Cell(f"{flow.retried:,}", "yellow" if flow.retried else "dim"),
            Cell(f"{flow.cancelled:,}", "dim"),
            Cell(f"{flow.rescued:,}", "dim"),
        )
    )


def course(
    flows: Sequence[MinuteFlow], since: datetime, until: datetime, step: int, number: Callable[[Flow], int]
) -> list[float]:
    """Values for a plot, each the mean of a minute over one step, those without anything being zero.

    Args:
        flows: summed up by step.
        since: the first minute.
        until: the end.
        step: minutes.
        number: what to tell of a flow.
    """
    first, last = (int(moment.timestamp() // 60) // step for moment in (since, until))
    found = {int(flow.minute.timestamp() // 60) // step: number(flow.flow) for flow in flows}
    return [found.get(place, 0) / step for place in range(first, last + 1)]


async def read_report(tx: Transaction, span: Span, by: By, name: str) -> Report:
    """Read a report, and the course of one of its lines."""
    now = await observe.clock(tx)
    since = now - span.length
    chosen = {str(by): name} if name != ALL else {}
    found = await observe.per_minute(tx, since, now, step=span.step, **chosen)
    return Report(await observe.summary(tx, since, None, by), name, tuple(found))
