"""summary: counts, success rates and durations of a period, by handler or by queue."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum

from runner.db.transaction import Transaction, clock
from runner.policy.histogram import merged
from runner.queries.counting import Count
from runner.queries.queues import uncounted
from runner.queries.reports import Flow, Total, totals
from runner.text.sanitize import csv_text

ALL = "all"
"""The name of the total line."""


class GroupBy(StrEnum):
    """The grouping of a summary."""

    HANDLER = "handler"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """The results of one handler or one queue.

    Args:
        name: the name of the handler or queue.
        submitted: the tasks submitted in the period, claimed or not.
        flow: the results.
        p50: the median duration of attempts in seconds; None if unknown.
        p95: the 95th percentile in seconds; None if unknown.
        wait50: the median wait of attempts from the due time to the start in seconds; None if unknown.
        wait95: the 95th percentile of the wait in seconds; None if unknown.
    """

    name: str
    submitted: Count
    flow: Flow
    p50: float | None
    p95: float | None
    wait50: float | None
    wait95: float | None

    @property
    def first_try_rate(self) -> float | None:
        """The share of succeeded and dead tasks that succeeded on the first attempt."""
        return self.flow.share_of(self.flow.first_try)

    @property
    def second_try_rate(self) -> float | None:
        """The share of succeeded and dead tasks that succeeded on the second attempt."""
        return self.flow.share_of(self.flow.second_try)


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a period.

    Args:
        at: the database's time.
        since: the first minute.
        until: the end, exclusive.
        by: the grouping.
        total: the sum of all lines.
        lines: one line per handler or queue, most ended tasks first.
    """

    at: datetime
    since: datetime
    until: datetime
    by: GroupBy
    total: SummaryLine
    lines: tuple[SummaryLine, ...]


async def summary(
    tx: Transaction, since: datetime, until: datetime | None = None, by: GroupBy = GroupBy.HANDLER
) -> Summary:
    """Summarize a period.

    Args:
        tx: an open transaction; four or five statements are executed.
        since: the start, aware; its whole minute is included.
        until: the end, aware and exclusive; None for now.
        by: the grouping.
    """
    at = await clock(tx)
    first, last = since.replace(second=0, microsecond=0), until or at
    all_totals = await totals(tx, first, last)
    uncounted_tasks = await uncounted(tx, first, last)
    position = 1 if by is GroupBy.HANDLER else 0
    groups: dict[str, list[Total]] = defaultdict(list)
    waiting: dict[str, int] = defaultdict(int)
    for total in all_totals:
        groups[(total.queue, total.handler)[position]].append(total)
    for key, number in uncounted_tasks.places.items():
        waiting[key[position]] += number
    names = sorted({*groups, *waiting})
    lines = [_line(name, groups[name], waiting[name], uncounted_tasks.more) for name in names]
    lines.sort(key=lambda line: -line.flow.ended)
    return Summary(
        at, first, last, by, _line(ALL, all_totals, sum(waiting.values()), uncounted_tasks.more), tuple(lines)
    )


def _line(name: str, totals: Sequence[Total], waiting: int, more: bool) -> SummaryLine:
    flow = Flow(**{field.name: sum(getattr(total.flow, field.name) for total in totals) for field in fields(Flow)})
    durations = merged([total.durations for total in totals])
    waits = merged([total.waits for total in totals])
    percentiles = (times.percentile(q) for times in (durations, waits) for q in (0.5, 0.95))
    return SummaryLine(name, Count(flow.submitted + waiting, more), flow, *percentiles)


DIGITS = 6
"""Decimal places."""


def as_document(summary: Summary) -> dict[str, object]:
    """A report for JSON: shares from 0 to 1, durations in seconds."""
    times = {"since": summary.since, "until": summary.until, "at": summary.at}
    return {**times, "by": summary.by, "total": _figures(summary.total), "lines": [*map(_figures, summary.lines)]}


def as_csv(summary: Summary) -> str:
    """A report as CSV, without the total line."""
    return csv_text([*_figures(summary.total)], [[*_figures(line).values()] for line in summary.lines])


def _figures(line: SummaryLine) -> dict[str, object]:
    counts = {field.name: getattr(line.flow, field.name) for field in fields(Flow)}
    rates = {"success": line.flow.success_rate, "first": line.first_try_rate, "second": line.second_try_rate}
    numbers = {**rates, "p50": line.p50, "p95": line.p95, "wait50": line.wait50, "wait95": line.wait95}
    rounded = {name: None if number is None else round(number, DIGITS) for name, number in numbers.items()}
    return {"name": line.name, **counts, "submitted": line.submitted.number, **rounded}
