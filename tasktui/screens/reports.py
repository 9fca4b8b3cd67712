"""ReportsScreen: success rates, durations and volume over a time span, by handler or queue."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.queries.incident import write_new
from runner.queries.reports import Flow, MinuteFlow, per_minute
from runner.queries.summary import GroupBy, Summary, SummaryLine, as_csv, as_document
from runner.queries.summary import summary as read_summary
from runner.text import formatting
from tasktui.commands.syntax import filter_of
from tasktui.messages import Notice
from tasktui.render.plot import Span, area, framed, gauge, log_range, nice, resampled, time_axis
from tasktui.render.render import Cell, ListColumn, RenderedRow, handler_cell, line
from tasktui.render.rows import BLANK, Part, Row, ends, fit, heading, rule
from tasktui.screens.live import LiveScreen
from tasktui.session.cache import TtlCache
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import Table

ALL = ""
"""Key of the total row; handlers and queues never have an empty name."""

OTHERS = " "
"""Key of the row of the handlers or queues that are not listed; no name is a space."""


class ReportSpan(NamedTuple):
    """A time span.

    Args:
        label: name for people.
        length: duration.
        step: minutes per value of the plots.
        cache_seconds: seconds to cache a report.
        time_format: `strftime` format for the ends of the plots.
    """

    label: str
    length: timedelta
    step: int
    cache_seconds: float
    time_format: str


SPANS = (
    ReportSpan("1 h", timedelta(hours=1), 1, 5.0, "%H:%M"),
    ReportSpan("24 h", timedelta(days=1), 15, 30.0, "%H:%M"),
    ReportSpan("7 days", timedelta(days=7), 120, 120.0, "%b %d"),
    ReportSpan("30 days", timedelta(days=30), 480, 300.0, "%b %d"),
)

RANGE, BAR = 22, 9
"""Cells of the range of run times, and of the share of successes."""

COLUMNS = (
    ListColumn("NAME", 12, grow=1),
    ListColumn("IN", 10, right=True, drop=4),
    ListColumn("DONE", 10, right=True),
    ListColumn("", BAR, drop=5),
    ListColumn("SUCCESS", 7, right=True),
    ListColumn("1ST ATT", 7, right=True),
    ListColumn("2ND", 6, right=True, drop=6),
    ListColumn("DEAD", 6, right=True),
    ListColumn("P50", 6, right=True),
    ListColumn("P95", 6, right=True),
    ListColumn("WAIT95", 6, right=True, drop=10),
    ListColumn("10ms     1s      1m", RANGE, drop=3),
    ListColumn("RETRIED", 8, right=True, drop=7),
    ListColumn("CANCELLED", 9, right=True, drop=8),
    ListColumn("RESCUED", 8, right=True, drop=9),
)

GOOD, FAIR = 0.99, 0.95
"""Shares of successes below which a handler is amber, and red."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """A summary, and the values over time of the row under the cursor."""

    summary: Summary
    name: str
    plot_values: tuple[MinuteFlow, ...]


class ReportsScreen(LiveScreen):
    """Success rates, durations and volume."""

    ABOUT = (
        "IN counts tasks by submit time, the other columns by end time. SUCCESS is the share of succeeded tasks among "
        "succeeded and dead ones. 1ST ATT and 2ND are the shares that succeeded at the first and second attempt. P50 "
        "and P95 are of the run time, WAIT95 is of the wait from the due time to the start. The plots show the row "
        "under the cursor. Enter lists its tasks, b switches between handlers and queues, x exports the table."
    )
    OPENS = "tasks"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "span", "Span"),
        Binding("c", "app.capacity", "Capacity"),
        Binding("b", "by", "Handler/queue"),
        Binding("x", "export", "Export"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._table = Table[str](COLUMNS, id="lines")
        self._span = 0
        self._by = GroupBy.HANDLER
        self._report: ReportData | None = None
        self._caches = [TtlCache[ReportData](span.cache_seconds) for span in SPANS]

    def parts(self) -> Iterable[Widget]:
        """Return the figures, two plots and the table."""
        yield Canvas(id="about")
        yield Horizontal(Canvas(id="done"), Canvas(id="failed"), id="plots")
        yield Canvas(id="title")
        yield self._table

    def request(self) -> object:
        """Return the time span, the grouping, and the row to plot."""
        return (self._span, self._by, self._selected_name)

    async def read(self) -> object:
        """Read the report; longer time spans are cached for longer."""
        await self.session.read(clock)  # A cached report must not hide that the database is away.
        span, by, name = SPANS[self._span], self._by, self._selected_name
        ask = partial(self.session.read, read_report, span, by, name)
        return await self._caches[self._span].get((by, name), ask)

    def show(self, snapshot: Any) -> None:
        """Show the table and the plots."""
        self._report = report = snapshot
        summary: Summary = report.summary
        rows = {ALL: summary.total} | {row.name or OTHERS: row for row in summary.rows}
        self._table.show(tuple(rows), lambda key: report_line(rows[key], summary))
        self.query_one("#about", Canvas).draw(self._upper(summary))
        order = [("s", "bold accent"), (" span, ", "muted"), ("b", "bold accent"), (" by queue or handler", "muted")]
        title = heading("HANDLERS" if self._by is GroupBy.HANDLER else "QUEUES")
        self.query_one("#title", Canvas).draw([BLANK, rule([title], self.size.width, order)])
        self._plot("#done", "done", lambda flow: flow.succeeded)
        self._plot("#failed", "failed attempts", lambda flow: flow.failed)

    def _upper(self, summary: Summary) -> list[Row]:
        """The span and the grouping as chips, and the figures of the row under the cursor."""
        since, until = (self._local(moment, "%d %b %H:%M") for moment in (summary.since, summary.until))
        chips: list[Part] = [(" ", "")]
        for name, value in (("span", SPANS[self._span].label), ("by", str(self._by)), ("row", self._row_name)):
            chips += [(f" {name}:", "muted on raised"), (f"{value} ", "bold strong on raised"), ("  ", "")]
        width = self.size.width
        head = ends(chips, [(f"{since} to {until} {summary.until.astimezone(self.session.zone):%Z} ", "muted")], width)
        if width < 100:
            return [head]
        rows = {ALL: summary.total} | {row.name or OTHERS: row for row in summary.rows}
        row = rows.get(self._selected_name, summary.total)
        flow, each = row.flow, width // 7
        success, first = flow.success_rate, row.first_try_rate
        figures = (
            ("DONE", f"{flow.succeeded:,}", "bold strong"),
            ("SUCCESS", formatting.share(success), f"bold {_rated(success)}"),
            ("1ST ATTEMPT", formatting.share(first), f"bold {_rated(first, FAIR, 0.0)}"),
            ("RUN TIME P50", formatting.duration(row.p50), "bold strong"),
            ("RUN TIME P95", formatting.duration(row.p95), "bold strong"),
            ("WAIT P95", formatting.duration(row.wait95), "bold strong"),
            ("DEAD", f"{flow.died:,}", "bold dead" if flow.died else "bold strong"),
        )
        above: list[Part] = []
        below: list[Part] = []
        for index, (label, value, spec) in enumerate(figures):
            border: Part = ("│ " if index else "  ", "line")
            above += fit([border, (label, "muted")], each)
            below += fit([border, (value, spec)], each)
        return [head, BLANK, above, below, BLANK]

    @property
    def _row_name(self) -> str:
        return line(self._selected_name) if self._selected_name else "all"

    def command_words(self) -> Sequence[object]:
        """Return the command that reports the same."""
        since = SPANS[self._span].label.replace(" ", "").replace("days", "d")
        return ["reports", "--since", since, *([] if self._by is GroupBy.HANDLER else ["--by", self._by])]

    def action_span(self) -> None:
        """Switch to the next time span."""
        self._span = (self._span + 1) % len(SPANS)
        self.action_reload()

    def action_by(self) -> None:
        """Switch between handlers and queues."""
        self._by = GroupBy.QUEUE if self._by is GroupBy.HANDLER else GroupBy.HANDLER
        self._table.cursor = ALL
        self.action_reload()

    def action_export(self) -> None:
        """Ask for a file to export the table to."""
        if self._report is not None:
            summary = self._report.summary
            question = "Export to file (.csv or .json)"
            from tasktui.dialogs.ask import AskScreen

            self.app.push_screen(AskScreen(question, usual_name(summary)), partial(self._export, summary))

    def _export(self, summary: Summary, name: str | None) -> None:
        if name is None:
            return
        try:
            self.post_message(Notice(f"Exported to {export(summary, name)}"))
        except InvalidInput as error:
            self.post_message(Notice(str(error), bad=True))

    @property
    def _selected_name(self) -> str:
        return self._table.cursor or ALL

    @on(Table.CursorMoved)
    def _read_row(self) -> None:
        self.action_reload()

    @on(Table.Selected)
    def _open_tasks(self, event: Table.Selected) -> None:
        since = {"since": f"{SPANS[self._span].length // timedelta(minutes=1)}m"}
        named = {str(self._by): event.key} if event.key != ALL else {}
        self.session.filter_text = filter_of(**named, **since)
        self.app.switch_mode("tasks")

    def _plot(self, id: str, title: str, value: Callable[[Flow], int]) -> None:
        assert self._report is not None  # noqa: S101 - called after a read
        span, summary = SPANS[self._span], self._report.summary
        values = plot_values(self._report.plot_values, summary.since, summary.until, span.step, value)
        half = (self.size.width - 2) // 2
        width = half - 2 if id == "#done" else self.size.width - half - 2
        height = max(3, min(12, 2 * ((self.size.height - 22) // 4)))
        columns = resampled(values, width - 7)
        top = nice(max(columns, default=0))
        role = "failed" if id == "#failed" else "done"
        note: list[Part] = [(f"per minute, {span.label}: {self._row_name}", "muted")]
        drawn: list[Row] = [rule([heading(title.upper())], width, note)]
        drawn += framed(area(columns, height, role, top=top), top)
        drawn.append(time_axis(Span(summary.since, summary.until, self.session.zone), width - 7))
        self.query_one(id, Canvas).draw(drawn)

    def _local(self, at: datetime, time_format: str) -> str:
        return at.astimezone(self.session.zone).strftime(time_format)


def _rated(share: float | None, good: float = GOOD, fair: float = FAIR) -> str:
    """The role of a share of successes."""
    if share is None or share >= good:
        return "text"
    return "retrying" if share >= fair else "dead"


def report_line(row: SummaryLine, summary: Summary) -> RenderedRow:
    """Render a row of the table; the total is bold."""
    flow, rate = row.flow, row.flow.success_rate
    bar = gauge([(rate or 0.0, "spark" if _rated(rate) == "text" else _rated(rate))], BAR)
    times = log_range(row.p50, row.p95, RANGE)
    success = f"bold {_rated(rate)}" if _rated(rate) == "dead" else _rated(rate)
    name = Cell(f"(other {summary.by}s)", "muted") if row is summary.others else handler_cell(line(row.name))
    return RenderedRow(
        (
            Cell("all", "bold strong") if row is summary.total else name,
            Cell(str(row.submitted), "muted"),
            Cell(f"{flow.succeeded:,}", "text" if flow.succeeded else "faint"),
            Cell("".join(text for text, _ in bar), "spark", tuple(bar)),
            Cell(formatting.share(rate), success),
            Cell(formatting.share(row.first_try_rate), _rated(row.first_try_rate, FAIR, 0.0)),
            Cell(formatting.share(row.second_try_rate), "muted"),
            Cell(f"{flow.died:,}", "dead" if flow.died else "faint"),
            Cell(formatting.duration(row.p50), "text"),
            Cell(formatting.duration(row.p95), "retrying" if (row.p95 or 0) >= 30 else "text"),
            Cell(formatting.duration(row.wait95), "text"),
            Cell("".join(text for text, _ in times), "spark", tuple(times)),
            Cell(f"{flow.retried:,}", "muted" if flow.retried else "faint"),
            Cell(f"{flow.cancelled:,}", "muted" if flow.cancelled else "faint"),
            Cell(f"{flow.rescued:,}", "muted" if flow.rescued else "faint"),
        )
    )


def plot_values(
    flows: Sequence[MinuteFlow], since: datetime, until: datetime, step: int, value: Callable[[Flow], int]
) -> list[float]:
    """Return values for a plot, the mean per minute over each step; steps without data are zero.

    Args:
        flows: sums by step.
        since: the first minute.
        until: the end.
        step: minutes per value.
        value: returns the number to plot.
    """
    first, last = (int(moment.timestamp() // 60) // step for moment in (since, until))
    sums = {int(flow.minute.timestamp() // 60) // step: value(flow.flow) for flow in flows}
    return [sums.get(index, 0) / step for index in range(first, last + 1)]


async def read_report(tx: Transaction, span: ReportSpan, by: GroupBy, name: str) -> ReportData:
    """Read a report, and the values over time of one of its rows."""
    now = await clock(tx)
    since = now - span.length
    row = {str(by): name} if name != ALL else {}
    flows = await per_minute(tx, since, now, step=span.step, **row)
    return ReportData(await read_summary(tx, since, None, by), name, tuple(flows))


def usual_name(summary: Summary) -> str:
    """The suggested file name, with times in UTC because the reader may live in another time zone."""
    return f"report-by-{summary.by}-{summary.since:%Y%m%d-%H%MZ}-{summary.until:%Y%m%d-%H%MZ}.csv"


def export(summary: Summary, name: str) -> Path:
    """Write a report to a new file.

    Args:
        summary: the report.
        name: path of the file; the suffix .json or .csv selects the format.

    Returns:
        The absolute path.

    Raises:
        InvalidInput: the file exists, cannot be written, or has another suffix.
    """
    path = Path(name).expanduser()
    match path.suffix.lower():
        case ".json":
            text = json.dumps(as_document(summary), indent=2, default=_plain) + "\n"
        case ".csv":
            text = as_csv(summary)
        case _:
            raise InvalidInput(why=f"the file name must end with .csv or .json, not {path.suffix or name!r}")
    return write_new(name, text)


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
