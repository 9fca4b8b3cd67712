"""The data of the reports screen: a summary, the same span before it, the counts over time, and the export."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.queries.incident import write_new
from runner.queries.reports import Flow, MinuteFlow, per_minute, per_step, times_per_step
from runner.queries.summary import GroupBy, Summary, SummaryLine, as_csv, as_document
from runner.queries.summary import summary as read_summary
from runner.text import formatting

ALL = ""
"""Key of the total row; handlers and queues never have an empty name."""

OTHERS = " "
"""Key of the row of the handlers or queues that are not listed; no name is a space."""

MOST_PULSES = 40
"""Maximum number of handlers or queues whose counts over time are read."""


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures beside a report.

    Args:
        before: the results of the span before, by name.
        pulses: the counts over time of the first MOST_PULSES handlers or queues.
    """

    before: Mapping[str, SummaryLine]
    pulses: Mapping[str, Sequence[MinuteFlow]]


@dataclass(frozen=True, slots=True)
class ReportData:
    """A summary, the values over time of the row under the cursor, and the figures beside them.

    Args:
        summary: the report.
        name: the row.
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


def rows_by_key(summary: Summary) -> dict[str, SummaryLine]:
    """The rows of a report by their keys, the total first."""
    return {ALL: summary.total} | {row.name or OTHERS: row for row in summary.rows}


GOOD, FAIR = 0.99, 0.95
"""Shares of successes below which a handler is amber, and red."""


def rated(share: float | None, good: float = GOOD, fair: float = FAIR) -> str:
    """The role of a share of successes."""
    if share is None or share >= good:
        return "text"
    return "retrying" if share >= fair else "dead"


def figures_of(row: SummaryLine, before: SummaryLine | None) -> list[tuple[str, str, str, str]]:
    """The figures of a row: label, value, role, and the value of the span before."""
    flow, success, first = row.flow, row.flow.success_rate, row.first_try_rate
    figures = [
        ("DONE", f"{flow.succeeded:,}", "bold strong"),
        ("SUCCESS", formatting.share(success), f"bold {rated(success)}"),
        ("1ST ATTEMPT", formatting.share(first), f"bold {rated(first, FAIR, 0.0)}"),
        ("RUN TIME P95", formatting.duration(row.p95), "bold strong"),
        ("WAIT P95", formatting.duration(row.wait95), "bold strong"),
        ("DEAD", f"{flow.died:,}", "bold dead" if flow.died else "bold strong"),
    ]
    past = [value for _, value, *_ in figures_of(before, None)] if before is not None and before.flow.ended else []
    unknown = formatting.NOTHING
    return [
        (*figure, f"was {past[place]}" if past and past[place] not in (figure[1], unknown) else "")
        for place, figure in enumerate(figures)
    ]


def plot_values(
    flows: Sequence[MinuteFlow], since: datetime, until: datetime, step: int, value: Callable[[Flow], float]
) -> list[float]:
    """Return values for a plot, the mean per minute over each step; steps without data are zero.

    Args:
        flows: sums by step.
        since: the first minute.
        until: the end.
        step: minutes per value.
        value: returns the number to plot.
    """
    first, last = _steps(since, until, step)
    sums = {int(flow.minute.timestamp() // 60) // step: value(flow.flow) for flow in flows}
    return [sums.get(index, 0) / step for index in range(first, last + 1)]


def _steps(since: datetime, until: datetime, step: int) -> tuple[int, int]:
    """The numbers of the first and the last step of a period since 1970."""
    return int(since.timestamp() // 60) // step, int(until.timestamp() // 60) // step


async def read_report(tx: Transaction, span: ReportSpan, by: GroupBy, name: str) -> ReportData:
    """Read a report, and the values over time of one of its rows."""
    now = await clock(tx)
    since = now - span.length
    row = {str(by): name} if name != ALL else {}
    flows = await per_minute(tx, since, now, step=span.step, **row)
    times: dict[int, tuple[float, float]] = {}
    waits: dict[int, tuple[float, float]] = {}
    for at, each in (await times_per_step(tx, since, now, step=span.step, **row)).items():
        for ranges, histogram in ((times, each.runs), (waits, each.waits)):
            low, high = histogram.percentile(0.5), histogram.percentile(0.95)
            if low is not None and high is not None:
                ranges[int(at.timestamp() // 60) // span.step] = (low, high)
    return ReportData(await read_summary(tx, since, None, by), name, tuple(flows), times, waits)


async def read_beside(tx: Transaction, span: ReportSpan, by: GroupBy, names: Sequence[str]) -> Comparison:
    """Read the span before a report, and the counts over time of its first rows."""
    now = await clock(tx)
    since = now - span.length
    before = await read_summary(tx, since - span.length, since, by)
    pulses = await per_step(tx, str(by), names[:MOST_PULSES], since, now, span.step)
    return Comparison(rows_by_key(before), pulses)


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
