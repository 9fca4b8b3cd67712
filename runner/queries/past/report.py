"""report: the results of a period as one page: volumes, durations, failures, schedules and incidents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from runner.db.transaction import Transaction
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import State
from runner.policy.histogram import Times
from runner.queries.failures import Failures, failures
from runner.queries.past.incident import MOST_GROUPS, Happening, failure_counts, failure_title, happenings
from runner.queries.reports import Flow, MinuteFlow, per_minute, times_per_step
from runner.queries.schedules import ScheduleRow, schedules
from runner.queries.summary import SUMMARY_COLUMNS, GroupBy, Summary, SummaryLine, summary
from runner.text import formatting
from runner.text.blocks import Block, BlockTable, Code, Figures, Items, Paragraph, Section, Words
from runner.text.chart import Chart, Series
from runner.text.columns import cells
from runner.text.page import page
from runner.text.times import format_moment

STEPS = 120
"""Maximum number of steps of a chart."""

WIDTHS = (1, 5, 15, 60, 180, 360, 1_440, 10_080)
"""Minutes of a step, the least of which is used."""

MOST_NAMES = 50
"""Maximum number of handlers or queues in a table."""

MOST_SLOW = 10
"""Maximum number of slow handlers."""

MOST_HAPPENINGS = 200
"""Maximum number of lines of the timeline, the latest."""


@dataclass(frozen=True, slots=True)
class PeriodReport:
    """The data of a report.

    Args:
        step: minutes per step of a chart.
        flows: the counts of each step with activity.
        times: the run times and waits of each step with attempts that ended.
        happenings: starts of runners, openings of breakers, lost runners and rescues, in order.
    """

    handlers: Summary
    queues: Summary
    step: int
    flows: Sequence[MinuteFlow]
    times: dict[datetime, Times]
    failures: Sequence[Failures]
    schedules: Sequence[ScheduleRow]
    happenings: Sequence[Happening]


async def report(tx: Transaction, since: datetime, until: datetime | None = None) -> PeriodReport:
    """Read the data of a report.

    Args:
        tx: an open transaction; about 20 statements are executed.
        since: the start, aware; its whole minute is included.
        until: the end, aware and exclusive; None for now.
    """
    handlers = await summary(tx, since, until, GroupBy.HANDLER)
    first, end = handlers.since, handlers.until
    minutes = (end - first) / timedelta(minutes=1)
    step = next((width for width in WIDTHS if minutes / width <= STEPS), WIDTHS[-1])
    times = Filter((Term("since", Operator.GE, first), Term("until", Operator.LT, end)))
    return PeriodReport(
        handlers,
        await summary(tx, since, until, GroupBy.QUEUE),
        step,
        await per_minute(tx, first, end, step=step),
        await times_per_step(tx, first, end, step=step),
        await failures(tx, times, limit=MOST_GROUPS),
        await schedules(tx, limit=MOST_NAMES),
        await happenings(tx, first, end, await per_minute(tx, first, end)),
    )


def as_page(report: PeriodReport, name: str, zone: tzinfo) -> str:
    """Write a report as an HTML page.

    Args:
        name: of the database.
    """
    since, until = (at.astimezone(zone) for at in (report.handlers.since, report.handlers.until))
    title = f"Tasks of {name}, {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M}"
    return page(title, _blocks(report, zone))


def _blocks(report: PeriodReport, zone: tzinfo) -> list[Block]:
    until = report.handlers.until.astimezone(zone)
    return [
        _figures(report.handlers.total),
        *_charts(report, zone),
        Section("Handlers"),
        _table(report.handlers),
        Section("Queues"),
        _table(report.queues),
        Section("Slow handlers"),
        _slow(report.handlers),
        Section("Failures"),
        _failures(report, until),
        Section("Schedules"),
        _schedules(report, until),
        Section("Incidents"),
        _happenings(report, until),
        Paragraph(f"Times in {until:%Z}. Read at {format_moment(report.handlers.at, zone)}.", note=True),
    ]


def _figures(total: SummaryLine) -> Figures:
    flow, share, length = total.flow, formatting.share, formatting.duration
    return Figures(
        [
            ("Submitted", str(total.submitted), ""),
            ("Succeeded", f"{flow.succeeded:,}", f"{share(flow.success_rate)} of those that ended"),
            ("First attempt", share(total.first_try_rate), f"second: {share(total.second_try_rate)}"),
            ("Failed attempts", f"{flow.failed:,}", f"{flow.retried:,} with another one after them"),
            ("Dead", f"{flow.died:,}", f"{flow.cancelled:,} cancelled, {flow.rescued:,} rescued"),
            ("Run time", length(total.p95), f"95 % at most; half {length(total.p50)}"),
            ("Wait", length(total.wait95), f"95 % at most; half {length(total.wait50)}"),
        ]
    )


def _charts(report: PeriodReport, zone: tzinfo) -> list[Block]:
    """The volumes and durations of each step."""
    span = timedelta(minutes=report.step)
    begin = int(report.handlers.since.timestamp() // span.total_seconds())
    end = int(-(-report.handlers.until.timestamp() // span.total_seconds()))
    starts = [datetime.fromtimestamp(number * span.total_seconds(), UTC) for number in range(begin, end)]
    pattern = "%H:%M" if span * len(starts) <= timedelta(days=1) else "%b %d %H:%M"
    labels = [start.astimezone(zone).strftime(pattern) for start in starts]
    flows = {each.minute: each.flow for each in report.flows}
    every = [flows.get(start) for start in starts]
    kinds: tuple[tuple[str, str, Callable[[Flow], int]], ...] = (
        ("succeeded at first", "good", lambda flow: flow.first_try),
        ("succeeded later", "later", lambda flow: flow.succeeded - flow.first_try),
        ("retried attempts", "warn", lambda flow: flow.retried),
        ("died", "bad", lambda flow: flow.died),
    )
    volumes = [
        Series(name, color, [None if flow is None else value(flow) for flow in every]) for name, color, value in kinds
    ]
    times = [report.times.get(start) for start in starts]
    durations = [
        Series(f"{kind} p{percent}", color, [each and each[index].percentile(percent / 100) for each in times])
        for index, kind, percent, color in (
            (0, "run", 50, "good"),
            (0, "run", 95, "later"),
            (1, "wait", 95, "slow"),
        )
    ]
    width = formatting.age(span)
    return [
        Chart(f"Tasks and attempts per {width}", labels, volumes, formatting.volume),
        Chart(f"Run time and wait per {width}", labels, durations, formatting.duration, lines=True),
    ]


def _table(summary: Summary) -> Block:
    columns = SUMMARY_COLUMNS
    if not summary.lines:
        return Paragraph("No tasks were submitted or finished.")
    listed = summary.lines[:MOST_NAMES]
    rows: list[Sequence[Words]] = [[[Code(line.name)], *cells(columns, line)[1:]] for line in listed]
    if len(summary.lines) > MOST_NAMES or summary.others:
        rows.append(["(more)", *[""] * (len(columns) - 1)])
    if len(rows) > 1:
        rows.append(cells(columns, summary.total))
    return BlockTable([summary.by, *(column.title.lower() for column in columns[1:])], rows, range(1, len(columns)))


def _slow(handlers: Summary) -> Block:
    timed = [line for line in handlers.lines if line.p95 is not None]
    slowest = sorted(timed, key=lambda line: -(line.p95 or 0))[:MOST_SLOW]
    if not slowest:
        return Paragraph("No attempt ended.")
    rows: list[list[Words]] = [
        [[Code(line.name)], formatting.duration(line.p50), formatting.duration(line.p95)] for line in slowest
    ]
    return BlockTable(("handler", "half at most", "95 % at most"), rows, range(1, 3))


def _failures(report: PeriodReport, end: datetime) -> Block:
    if not report.failures:
        return Paragraph("No attempt failed.")
    rows: list[list[Words]] = []
    for group in report.failures:
        names = (group.handler, failure_title(group))
        rows.append([*failure_counts(group), _at(group.last, end), *([Code(name)] for name in names)])
    return BlockTable(("attempts", "tasks", State.DEAD, "last", "handler", "error"), rows, range(3))


def _schedules(report: PeriodReport, end: datetime) -> Block:
    if not report.schedules:
        return Paragraph("There are no schedules.")
    rows: list[list[Words]] = []
    for each in report.schedules:
        late, last = each.lateness(report.handlers.at), each.runs[0] if each.runs else None
        failed = last is not None and last.failed
        states = (each.error, "paused" if each.pause else None, f"late by {formatting.age(late)}" if late else None)
        state = next(filter(None, states), "the last run failed" if failed else "fine")
        rows.append([[Code(each.id)], _at(each.last_tick, end), _at(each.next_at, end), state])
    return BlockTable(("schedule", "last tick", "next tick", "state"), rows)


def _happenings(report: PeriodReport, end: datetime) -> Block:
    if not report.happenings:
        return Paragraph("No runner was lost, and no breaker opened.")
    return Items([f"{_at(each.at, end)} {each.text}" for each in report.happenings[-MOST_HAPPENINGS:]])


def _at(moment: datetime | None, end: datetime) -> str:
    """A time in the zone of the end of the period."""
    return formatting.clock(moment, end, end.tzinfo or UTC)
