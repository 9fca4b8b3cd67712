"""ReportsScreen: success rates, durations and volume over a time span, by handler or queue."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta, tzinfo
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.queries.counting import Count
from runner.queries.summary import GroupBy, Summary
from runner.text import formatting
from tasktui.actions.action import Targets
from tasktui.commands.syntax import filter_of
from tasktui.data.reports import (
    ALL,
    BAR,
    MOST_PULSES,
    ORDERS,
    RANGE,
    SPANS,
    Comparison,
    Figure,
    ReportData,
    ReportSpan,
    export,
    figures_of,
    read_beside,
    read_report,
    report_line,
    rows_by_key,
    usual_name,
)
from tasktui.messages import Notice
from tasktui.panels.failure import in_front
from tasktui.panels.overview import AXIS
from tasktui.panels.side import failed_shares
from tasktui.render import plot
from tasktui.render.render import ListColumn, line
from tasktui.render.rows import BLANK, Part, Row, ends, fit, heading, rule
from tasktui.screens.row_texts import texts_of_row
from tasktui.session.cache import TtlCache
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas, FittedCanvas
from tasktui.widgets.table import HELD, Table

NORMAL, WIDE = 100, 180
"""Columns of a screen that has room for figures and two plots, and for three plots."""

RUNS, WAITS = (30.0, 60.0), (60.0, 3600.0)
"""Seconds from which a column of the plot is red, and at its upper edge."""

OTHER_ROWS, MOST_PLOT, TALL = 15, 20, 56
"""Rows beside the plots and the rows of the table, most rows of a plot, and rows from which there are further plots."""

VOLUME = 12
"""Cells of the tasks over time."""

COLUMNS = (
    ListColumn("NAME", 16, grow=1, name=True),
    ListColumn("IN", 10, right=True, drop=5),
    ListColumn("DONE", 10, right=True),
    ListColumn("", BAR, drop=4),
    ListColumn("SUCCESS", 7, right=True),
    ListColumn("1ST ATT", 7, right=True),
    ListColumn("2ND", 6, right=True, drop=6),
    ListColumn("DEAD", 6, right=True),
    ListColumn("P50", 6, right=True),
    ListColumn("P95", 6, right=True),
    ListColumn("WAIT95", 6, right=True, drop=10),
    ListColumn("10ms     1s      1m", RANGE, drop=3),
    ListColumn("VOLUME", VOLUME, drop=2),
    ListColumn("RETRIED", 8, right=True, drop=7),
    ListColumn("CANCELLED", 9, right=True, drop=8),
    ListColumn("RESCUED", 8, right=True, drop=9),
)

BESIDE_EVERY = 60.0
"""Seconds to cache the figures beside a report."""

NARROW_PLOTS = (("done", "spark", "succeeded"), ("failed", "trouble", "failed"), ("in", "spark", "submitted"))
"""The plots of a narrow screen: label, colour, and count."""


class ReportsScreen(LiveScreen):
    """Success rates, durations and volume."""

    ABOUT = (
        "IN counts tasks by submit time, the other columns by end time. SUCCESS is the share of succeeded tasks among "
        "succeeded and dead ones. 1ST ATT and 2ND are the shares that succeeded at the first and second attempt. P50 "
        "and P95 are of the run time, WAIT95 is of the wait from the due time to the start. VOLUME is the number of "
        "succeeded tasks over time. The plots and figures show the row under the cursor. The arrows compare an hour "
        "with the same hour of yesterday, a longer span with the one before. p shows WAIT in place of RUN TIME where "
        "three plots have no room. Enter lists its tasks, b switches between handlers and queues, o sorts, x exports."
    )
    OPENS = "tasks"
    COMMANDS_SHOWN = ("incident",)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "span", "Span"),
        Binding("c", "app.capacity", "Capacity"),
        Binding("b", "by", "Handler/queue"),
        Binding("o", "order", "Order"),
        Binding("p", "plot", "Wait/run time"),
        Binding("x", "export", "Export"),
    ]

    def __init__(self) -> None:
        super().__init__(
            Targets(
                copyable=lambda: texts_of_row(
                    self.session,
                    f"{self._by} {self._row_name}" if self._selected_name else f"all {self._by}s",
                    self.command_words(),
                    {"id": self._selected_name or "all"},
                )
            )
        )
        self._table = Table[str](COLUMNS, id="lines")
        self._span = 0
        self._by = GroupBy.HANDLER
        self._order = next(iter(ORDERS))
        self._waits = False
        self._report: ReportData | None = None
        self._caches = [TtlCache[ReportData](span.cache_seconds) for span in SPANS]
        self._beside_cache = TtlCache[Comparison](BESIDE_EVERY)

    def parts(self) -> Iterable[Widget]:
        """Return the figures, the plots and the table."""
        yield Canvas(id="about")
        yield Horizontal(*(FittedCanvas(id=name) for name in PLOTS), id="plots")
        yield Canvas(id="title")
        yield self._table
        yield Canvas(id="shares")

    def request(self) -> object:
        """Return the time span, the grouping, and the row to plot."""
        return (self._span, self._by, self._selected_name)

    async def read(self) -> object:
        """Read the report; longer time spans are cached for longer."""
        # The keys may change each of these before the statements run.
        span, cache, by, name = SPANS[self._span], self._caches[self._span], self._by, self._selected_name
        last = self._report
        names = tuple(row.name for row in last.summary.lines[:MOST_PULSES]) if last and last.summary.by is by else ()

        async def read_all(tx: Transaction) -> ReportData:
            ask, beside = partial(read_report, tx, span, by, name), partial(read_beside, tx, span, by, names)
            _, report, background = await tx.gather(
                clock(tx),  # A cached report must not hide that the database is away.
                cache.get((by, name), ask, self.session.distance),
                self._beside_cache.get((span, by, names), beside, self.session.distance),
            )
            return replace(report, background=background)

        return await self.session.read(read_all)

    def show(self, snapshot: Any) -> None:
        """Show the table and the plots."""
        if self._report is None or self._report.summary.by is not snapshot.summary.by:
            self.feed.hurry()  # for the counts over time of the rows
        self._report = report = snapshot
        summary, span = report.summary, SPANS[self._span]
        rows = rows_by_key(summary, self._order)
        keys = self._table.steady(rows, f"{self._by} {self._order}")
        mark = HELD * (keys != tuple(rows))
        self._table.show(keys, lambda key: report_line(rows[key], summary, _volume(report, span, key)))
        self.query_one("#about", Canvas).draw(self._upper(report))
        order: list[Part] = [(f"by {self._order}{mark}, ", "muted"), ("o", "bold accent"), (" sorts", "muted")]
        title = heading("HANDLERS" if self._by is GroupBy.HANDLER else "QUEUES")
        self.query_one("#title", Canvas).draw([BLANK, rule([title], self.size.width, order)])
        _draw_plots(self, report, span, len(rows), waits=self._waits)
        shares = failed_shares(report, span, self.size, self.session.zone)
        self._table.set_class(bool(shares), "short")
        self.query_one("#shares", Canvas).draw(shares)

    def _upper(self, report: ReportData) -> list[Row]:
        """The span and the grouping as chips, and the figures of the row under the cursor."""
        summary = report.summary
        end, zone = summary.until, self.session.zone
        since, until = (formatting.clock(moment, end, zone) for moment in (summary.since, end))
        chips: list[Part] = [(" ", "")]
        for name, value in (("span", SPANS[self._span].label), ("by", str(self._by)), ("row", self._row_name)):
            chips += [(f" {name}:", "muted on raised"), (f"{value} ", "bold strong on raised"), ("  ", "")]
        width = self.size.width
        against = f", against {report.background.base}" if report.background.base and width >= NORMAL else ""
        head = ends(chips, [(f"{since} to {until} {end.astimezone(zone):%Z}{against} ", "muted")], width)
        figures = figures_of(report.line(self._selected_name), report.background.before.get(self._selected_name))
        if width < NORMAL:
            parts = [part for figure in figures[:2] + figures[-1:] for part in _short(figure)]
            return [head, [("  ", ""), *parts], *_lines(report, SPANS[self._span], width)]
        each = width // len(figures)
        above: list[Part] = []
        below: list[Part] = []
        for index, (label, value, spec, change, role) in enumerate(figures):
            border: Part = ("│ " if index else "  ", "line")
            above += fit([border, (label, "muted")], each)
            compared = (f"  {change}", role) if change and len(f"{value}{change}") + 5 <= each else ("", "")
            below += fit([border, (value, spec), compared], each)
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

    def action_plot(self) -> None:
        """Switch between the run times and the waits, where the screen has room for one of them."""
        if NORMAL <= self.size.width < WIDE:
            self._waits = not self._waits
            self.redraw()
        elif self.size.width < NORMAL:
            self.post_message(Notice(f"The plots need {NORMAL} columns; the figure WAIT P95 has the waits", bad=True))
        else:
            self.post_message(Notice("Both plots are shown"))

    def action_by(self) -> None:
        """Switch between handlers and queues."""
        self._by = GroupBy.QUEUE if self._by is GroupBy.HANDLER else GroupBy.HANDLER
        self._table.cursor = ALL
        self.action_reload()

    def action_order(self) -> None:
        """Sort the rows by the next figure, the worst first."""
        orders = list(ORDERS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self.redraw()

    def action_export(self) -> None:
        """Ask for a file to export the table to."""
        if self._report is not None:
            summary = self._report.summary
            question = "Export to file (.csv or .json)"
            from tasktui.dialogs.one_answer import AskScreen

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
        self.console.open_tasks(filter_of(**named, **since))


def _draw_plots(screen: LiveScreen, report: ReportData, span: ReportSpan, rows: int, *, waits: bool) -> None:
    """Draw the volume, the run times and the waits side by side, or one of the last two where three do not fit.

    They take the room that the rows of the table leave.
    """
    size = screen.size
    screen.query_one("#plots").display = size.width >= NORMAL
    if size.width < NORMAL:
        return
    hidden = "" if size.width >= WIDE else "times" if waits else "waits"
    spare = size.height - OTHER_ROWS - rows - screen.frame.databases_height if size.height < TALL else 0
    high = max(3, min(16, 2 * ((size.height - 22) // 4)), min(MOST_PLOT, 2 * (spare // 2)))
    for name, draw in PLOTS.items():
        canvas = screen.query_one(f"#{name}", FittedCanvas)
        canvas.display = name != hidden
        canvas.show(partial(draw, report, span, screen.session.zone, high))


def _short(figure: Figure) -> Row:
    change = f" {figure.change}" if figure.change else ""
    return [(f"{figure.label.lower()} ", "muted"), (figure.value, figure.role), (f"{change}   ", figure.change_role)]


def _volume(report: ReportData, span: ReportSpan, key: str) -> Row:
    """The succeeded tasks of a row over time."""
    pulses = report.background.pulses
    rows = [report.values(span.step, pulses[name], attrgetter("succeeded")) for name in pulses if key in (ALL, name)]
    return plot.sparkline([sum(values) for values in zip(*rows, strict=True)], VOLUME) if rows else BLANK


def volume(report: ReportData, span: ReportSpan, zone: tzinfo, height: int, width: int) -> list[Row]:
    """Succeeded tasks per minute, and failed attempts in front of them."""
    room = max(1, width - AXIS)
    values = [
        plot.resampled(report.values(span.step, report.plot_values, attrgetter(count)), room)
        for count in ("succeeded", "failed")
    ]
    top = plot.nice(max(map(max, values), default=0))
    note: list[Part] = [("█ ", "done@24"), ("done ", "muted"), ("█ ", "failed@31"), ("failed per minute", "muted")]
    rows = plot.framed(in_front(plot.area(values[0], height, "done", top=top), values[1], top), top)
    return [_titled("VOLUME", report, note, width), *rows, _axis(report, zone, room, "0")]


def spread(
    report: ReportData, span: ReportSpan, zone: tzinfo, height: int, width: int, *, waits: bool = False
) -> list[Row]:
    """The run times, or the waits from the due time to the start, from p50 to p95."""
    ranges, room = report.ranges(span, waits=waits), max(1, width - AXIS - 1)
    columns = [ranges[column * len(ranges) // room] for column in range(room)]
    note: list[Part] = [("█ ", "done@24"), ("from p50 to p95, log scale", "muted")]
    late, top = WAITS if waits else RUNS
    labels = plot.log_labels(height, top)
    rows: list[Row] = [
        [(f"{labels.get(index, ''):>5} ", "faint"), ("┤" if index in labels else "│", "line"), *row]
        for index, row in enumerate(plot.band(columns, height, late, top))
    ]
    return [_titled("WAIT" if waits else "RUN TIME", report, note, width), *rows, _axis(report, zone, room, "")]


PLOTS: dict[str, Callable[..., list[Row]]] = {"done": volume, "times": spread, "waits": partial(spread, waits=True)}
"""The plots by the id of their canvas: each makes its rows for a height and a width."""


def _titled(text: str, report: ReportData, note: Row, width: int) -> Row:
    name = [] if report.name == ALL else [(f" {line(report.name)}", "muted")]
    return rule([heading(text), *name], width, note)


def _axis(report: ReportData, zone: tzinfo, room: int, label: str) -> Row:
    return plot.time_axis(plot.Span(report.summary.since, report.summary.until, zone), room, label)


def _lines(report: ReportData, span: ReportSpan, width: int) -> list[Row]:
    """The plots of a narrow screen: label, sparkline, peak.

    The minutes lack the tasks whose first attempt has not ended, so the peak of the submitted ones is a lower bound.
    """
    rows: list[Row] = []
    results = report.line(report.name)
    for label, role, count in NARROW_PLOTS:
        values = report.values(span.step, report.plot_values, attrgetter(count))
        more = "+" if count == "submitted" and results.submitted != Count(results.flow.submitted) else ""
        top = max(values, default=0)
        peak = f"peak {f'{plot.compact(top)}{more}' if top or not more else '?'} / min"
        plotted = plot.sparkline(values, width - 32, role)
        rows.append([(f"  {label:<9}", "muted"), *plotted, ("  ", ""), (peak, "faint")])
    return rows
