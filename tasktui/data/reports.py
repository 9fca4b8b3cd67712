"""The data of the reports screen: a summary, the same span before it, the counts over time, and the export."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.model.home import expand_home
from runner.queries.reports import Flow, MinuteFlow, per_minute, per_step, times_per_step
from runner.queries.summary import GroupBy, Summary, SummaryLine, as_csv, as_document
from runner.queries.summary import summary as read_summary
from runner.text import formatting
from runner.text.document import plain
from runner.text.new_file import write_new
from tasktui.render import plot
from tasktui.render.render import Cell, RenderedRow, handler_cell, line
from tasktui.render.rows import BLANK, Row

ALL = ""
"""Key of the total row; handlers and queues never have an empty name."""

OTHERS = " "
"""Key of the row of the handlers or queues that are not listed; no name is a space."""

DAY = timedelta(days=1)

RANGE, BAR = 22, 9
"""Cells of the range of run times, and of the share of successes."""

MOST_PULSES = 40
"""Maximum number of handlers or queues whose counts over time are read."""


class ReportSpan(NamedTuple):
    """A time span.

    Args:
        label: name for people.
        step: minutes per value of the plots.
    """

    label: str
    length: timedelta
    step: int
    cache_seconds: float


SPANS = (
    ReportSpan("1 h", timedelta(hours=1), 1, 5.0),
    ReportSpan("24 h", timedelta(days=1), 15, 30.0),
    ReportSpan("7 days", timedelta(days=7), 120, 120.0),
    ReportSpan("30 days", timedelta(days=30), 480, 300.0),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures beside a report.

    Args:
        before: the results of the period to compare with, by name.
        pulses: the counts over time of the first MOST_PULSES handlers or queues.
        base: that period in words; empty without data.
    """

    before: Mapping[str, SummaryLine]
    pulses: Mapping[str, Sequence[MinuteFlow]]
    base: str = ""


@dataclass(frozen=True, slots=True)
class ReportData:
    """A summary, the values over time of the row under the cursor, and the figures beside them.

    Args:
        plot_values: the counts of the row by step.
        times: p50 and p95 of its run times in seconds, by number of the step since 1970.
        waits: the same of the waits from the due time to the start, by the step in which the attempt ended.
        background: the figures beside the report.
    """

    summary: Summary
    name: str
    plot_values: tuple[MinuteFlow, ...]
    times: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    waits: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    background: Comparison = Comparison({}, {})

    def line(self, name: str) -> SummaryLine:
        """The results of a row; the total for a name without results."""
        return rows_by_key(self.summary).get(name, self.summary.total)

    def values(self, step: int, flows: Sequence[MinuteFlow], value: Callable[[Flow], float]) -> list[float]:
        """Values for a plot over the span of the report; see `plot_values`."""
        return plot_values(flows, self.summary.since, self.summary.until, step, value)

    def ranges(self, span: ReportSpan, *, waits: bool = False) -> list[tuple[float, float] | None]:
        """p50 and p95 of the run times, or of the waits, of each step of the report; None without attempts."""
        first, last = _steps(self.summary.since, self.summary.until, span.step)
        return [(self.waits if waits else self.times).get(step) for step in range(first, last + 1)]


ORDERS: Mapping[str, Callable[[SummaryLine], Any]] = {
    "volume": lambda row: -row.flow.finished,
    "success": lambda row: 2.0 if row.flow.success_rate is None else row.flow.success_rate,
    "run time": lambda row: -(row.p95 or 0.0),
    "wait": lambda row: -(row.wait95 or 0.0),
    "name": attrgetter("name"),
}
"""The orders of the rows, the worst first."""


def rows_by_key(summary: Summary, order: str = "volume") -> dict[str, SummaryLine]:
    """The rows of a report by their keys: the total, the rows in an order, and the others together."""
    others = {OTHERS: summary.others} if summary.others is not None else {}
    return {ALL: summary.total} | {row.name: row for row in sorted(summary.lines, key=ORDERS[order])} | others


GOOD, FAIR = 0.99, 0.95
"""Shares of successes below which a handler is amber, and red."""

WORSE, SLOWER, MANY = 0.1, 1.5, 10.0
"""Percentage points less success, and the ratio of durations, that have a colour; a ratio that is written as such."""


def rated(share: float | None, good: float = GOOD, fair: float = FAIR) -> str:
    """The role of a share of successes."""
    if share is None or share >= good:
        return "text"
    return "retrying" if share >= fair else "dead"


class Figure(NamedTuple):
    """A figure of a report.

    Args:
        change: the change since the period before; empty if it is unknown or rounds to nothing.
        change_role: the role of the change: a colour only in the bad direction.
    """

    label: str
    value: str
    role: str
    change: str = ""
    change_role: str = "muted"


def figures_of(row: SummaryLine, before: SummaryLine | None) -> list[Figure]:
    """The figures of a row, compared with the same row of the period before."""
    flow, success, first = row.flow, row.flow.success_rate, row.first_try_rate
    past = before if before is not None and before.flow.finished else None
    changes = _changes(row, past) if past is not None else [("", "muted")] * 6
    figures = (
        ("DONE", f"{flow.succeeded:,}", "bold strong"),
        ("SUCCESS", formatting.share(success), f"bold {rated(success)}"),
        ("1ST ATTEMPT", formatting.share(first), f"bold {rated(first, FAIR, 0.0)}"),
        ("RUN TIME P95", formatting.duration(row.p95), "bold strong"),
        ("WAIT P95", formatting.duration(row.wait95), "bold strong"),
        ("DEAD", f"{flow.died:,}", "bold dead" if flow.died else "bold strong"),
    )
    return [Figure(*figure, *change) for figure, change in zip(figures, changes, strict=True)]


def _changes(row: SummaryLine, past: SummaryLine) -> list[tuple[str, str]]:
    """The changes of the figures of a row, with the role of each."""
    died = row.flow.died - past.flow.died
    return [
        (_grown(row.flow.succeeded, past.flow.succeeded), "muted"),
        _points(row.flow.success_rate, past.flow.success_rate, "dead"),
        _points(row.first_try_rate, past.first_try_rate, "retrying"),
        _slower(row.p95, past.p95),
        _slower(row.wait95, past.wait95),
        (_arrow(died, f"{abs(died):,}"), "dead" if died > 0 else "muted"),
    ]


def _arrow(change: float, text: str) -> str:
    return f"{'▲' if change > 0 else '▼'} {text}" if change else ""


def _grown(now: float, before: float) -> str:
    """A ratio as a change: `▲ 3 %`, `▲ 12 times`; empty if it rounds to nothing or has no base."""
    if not before:
        return ""
    change = round((now / before - 1) * 100)
    return _arrow(change, f"{now / before:,.0f} times" if now / before >= MANY else f"{abs(change)} %")


def _points(now: float | None, before: float | None, role: str) -> tuple[str, str]:
    """The change of a share in percentage points, with a role if it fell."""
    if now is None or before is None:
        return "", "muted"
    change = round((now - before) * 100, 2)
    text = f"{abs(change):.2f}" if abs(change) < 1 else f"{abs(change):.1f}"
    return _arrow(change, text), role if change <= -WORSE else "muted"


def _slower(now: float | None, before: float | None) -> tuple[str, str]:
    if now is None or not before:
        return "", "muted"
    return _grown(now, before), "retrying" if now > SLOWER * before else "muted"


def plot_values(
    flows: Sequence[MinuteFlow], since: datetime, until: datetime, step: int, value: Callable[[Flow], float]
) -> list[float]:
    """Return values for a plot, the mean per minute over each step; steps without data are zero.

    The step that is not over yet has the mean of its minutes so far, and is left out in its first minute.

    Args:
        flows: sums by step.
        since: the first minute.
        until: the end.
        step: minutes per value.
    """
    first, last = _steps(since, until, step)
    sums = {int(flow.minute.timestamp() // 60) // step: value(flow.flow) for flow in flows}
    values = [sums.get(index, 0) / step for index in range(first, last)]
    over = until.timestamp() / 60 - last * step
    return [*values, sums.get(last, 0) / over] if over >= 1 else values


def _steps(since: datetime, until: datetime, step: int) -> tuple[int, int]:
    """The numbers of the first and the last step of a period since 1970."""
    return int(since.timestamp() // 60) // step, int(until.timestamp() // 60) // step


async def read_report(tx: Transaction, span: ReportSpan, by: GroupBy, name: str) -> ReportData:
    """Read a report, and the values over time of one of its rows."""
    now = await clock(tx)
    since = now - span.length
    row = {str(by): name} if name != ALL else {}
    flows, times_by_step, summary = await tx.gather(
        per_minute(tx, since, now, step=span.step, **row),
        times_per_step(tx, since, now, step=span.step, **row),
        read_summary(tx, since, None, by),
    )
    times: dict[int, tuple[float, float]] = {}
    waits: dict[int, tuple[float, float]] = {}
    for at, each in times_by_step.items():
        for ranges, histogram in ((times, each.runs), (waits, each.waits)):
            low, high = histogram.percentile(0.5), histogram.percentile(0.95)
            if low is not None and high is not None:
                ranges[int(at.timestamp() // 60) // span.step] = (low, high)
    return ReportData(summary, name, tuple(flows), times, waits)


async def read_beside(tx: Transaction, span: ReportSpan, by: GroupBy, names: Sequence[str]) -> Comparison:
    """Read the period to compare a report with, and the counts over time of its first rows."""
    now = await clock(tx)
    since = now - span.length
    (before, base), pulses = await tx.gather(
        _before(tx, span, by, since), per_step(tx, str(by), names[:MOST_PULSES], since, now, span.step)
    )
    return Comparison(rows_by_key(before), pulses, base if before.total.flow.finished else "")


async def _before(tx: Transaction, span: ReportSpan, by: GroupBy, since: datetime) -> tuple[Summary, str]:
    """The same hour of yesterday if it has data, because a day has its own rhythm; else the span before."""
    before = read_summary(tx, since - span.length, since, by)
    if span.length < DAY:
        yesterday, earlier = await tx.gather(read_summary(tx, since - DAY, since - DAY + span.length, by), before)
        return (yesterday, "yesterday") if yesterday.total.flow.finished else (earlier, f"the {span.label} before")
    return await before, "yesterday" if span.length == DAY else f"the {span.label} before"


def usual_name(summary: Summary) -> str:
    """The suggested file name, with times in UTC because the reader may live in another time zone."""
    return f"report-by-{summary.by}-{summary.since:%Y%m%d-%H%MZ}-{summary.until:%Y%m%d-%H%MZ}.csv"


def export(summary: Summary, name: str) -> Path:
    """Write a report to a new file.

    Args:
        name: path of the file; the suffix .json or .csv selects the format.

    Returns:
        The absolute path.

    Raises:
        InvalidInput: the file exists, cannot be written, or has another suffix.
    """
    path = expand_home(name)
    match path.suffix.lower():
        case ".json":
            text = json.dumps(plain(as_document(summary)), indent=2) + "\n"
        case ".csv":
            text = as_csv(summary)
        case _:
            raise InvalidInput(why=f"the file name must end with .csv or .json, not {path.suffix or name!r}")
    return write_new(name, text)


def report_line(row: SummaryLine, summary: Summary, volume: Row = BLANK) -> RenderedRow:
    """Render a row of the table; the total is bold.

    Args:
        volume: its tasks over time.
    """
    flow, rate = row.flow, row.flow.success_rate
    bar = plot.gauge([(rate or 0.0, "spark" if rated(rate) == "text" else rated(rate))], BAR)
    times = plot.log_range(row.p50, row.p95, RANGE)
    success = f"bold {rated(rate)}" if rated(rate) == "dead" else rated(rate)
    name = Cell(f"(other {summary.by}s)", "muted") if row is summary.others else handler_cell(line(row.name))
    return RenderedRow(
        (
            Cell("all", "bold strong") if row is summary.total else name,
            Cell(str(row.submitted), "muted"),
            Cell(f"{flow.succeeded:,}", "text" if flow.succeeded else "faint"),
            Cell.of(bar, "spark"),
            Cell(formatting.share(rate), success),
            Cell(formatting.share(row.first_try_rate), rated(row.first_try_rate, FAIR, 0.0)),
            Cell(formatting.share(row.second_try_rate), "muted"),
            Cell(f"{flow.died:,}", "dead" if flow.died else "faint"),
            Cell(formatting.duration(row.p50), "text"),
            Cell(formatting.duration(row.p95), "retrying" if (row.p95 or 0) >= 30 else "text"),
            Cell(formatting.duration(row.wait95), "text"),
            Cell.of(times, "spark"),
            Cell.of(volume, "spark"),
            Cell(f"{flow.retried:,}", "muted" if flow.retried else "faint"),
            Cell(f"{flow.cancelled:,}", "muted" if flow.cancelled else "faint"),
            Cell(f"{flow.rescued:,}", "muted" if flow.rescued else "faint"),
        )
    )
