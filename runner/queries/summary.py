"""summary: counts, success rates and durations of a period, by handler or by queue."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.policy.histogram import Histogram, Times, merged
from runner.queries.counting import Count
from runner.queries.counts import uncounted
from runner.queries.reports import COUNTS_ROW, OTHERS, Flow, flow_rows, histograms, within
from runner.queries.rows import as_text, moment
from runner.text import formatting
from runner.text.columns import Column, figure, thousands
from runner.text.sanitize import csv_text


@dataclass(frozen=True, slots=True)
class Total:
    """The results of one handler in one queue.

    Args:
        durations: the run times of attempts.
        waits: the times from the due times of attempts to their starts.
    """

    queue: str
    handler: str
    flow: Flow
    durations: Histogram
    waits: Histogram

    @property
    def p50(self) -> float | None:
        """The median duration of attempts in seconds; None if unknown."""
        return self.durations.percentile(0.5)

    @property
    def p95(self) -> float | None:
        """The 95th percentile in seconds; None if unknown."""
        return self.durations.percentile(0.95)


class GroupResult(NamedTuple):
    """The results of a group of tasks: the counts, and the times of attempts."""

    flow: Flow
    times: Times


NOTHING = GroupResult(Flow(), Times(Histogram(), Histogram()))


async def waits_by_queue(tx: Transaction, since: datetime, queues: Sequence[str]) -> dict[str, dict[datetime, float]]:
    """Read the mean wait of attempts from their due time to their start, in seconds, by queue and minute of their end.

    Args:
        tx: an open transaction; one statement is executed.
        since: the first minute, aware.
    """
    minute = tx.tables.minute.c
    groups, number = (minute.queue, minute.minute), sa.func.sum(minute.waits)
    conditions = (minute.minute >= since, minute.bin_ms > COUNTS_ROW, tx.dialect.one_of(minute.queue, queues))
    statement = sa.select(*groups, number, sa.func.sum(minute.wait_time)).where(*conditions).group_by(*groups)
    waits: dict[str, dict[datetime, float]] = defaultdict(dict)
    for queue, at, attempts, seconds in await tx.rows(statement.having(number > 0)):
        if beginning := moment(at):
            waits[as_text(queue)][beginning] = float(seconds) / int(attempts)
    return dict(waits)


async def totals(
    tx: Transaction,
    since: datetime,
    until: datetime,
    queue: str | None = None,
    handler: str | None = None,
    most: int | None = None,
) -> list[Total]:
    """Sum up by queue and handler.

    Args:
        tx: an open transaction; two statements are executed.
        since: the first minute, aware.
        until: the end, aware and exclusive.
        queue: only this queue.
        handler: only this handler.
        most: maximum number of totals, those with the most ended tasks; None for all.

    Returns:
        The totals, most successes first.
    """
    conditions = within(tx, since, until, queue, handler)
    results = await _results(tx, ("queue", "handler"), conditions, most)
    rows = [Total(name[0], name[1], result.flow, *result.times) for name, result in results.items()]
    return sorted(rows, key=lambda total: (-total.flow.succeeded, total.queue, total.handler))


async def results_by(
    tx: Transaction, name: str | None, since: datetime, until: datetime, most: int | None = None
) -> dict[str, GroupResult]:
    """Sum up by queue, by handler, or everything.

    Args:
        tx: an open transaction; two statements are executed.
        name: "queue" or "handler"; None for one result of everything, with the key OTHERS.
        since: the first minute, aware.
        until: the end, aware and exclusive.
        most: maximum number of results, those with the most ended tasks; None for all.
    """
    conditions = within(tx, since, until)
    results = await _results(tx, () if name is None else (name,), conditions, most)
    return {"".join(names): result for names, result in results.items()}


async def _results(
    tx: Transaction, names: Sequence[str], conditions: list[sa.ColumnElement[bool]], most: int | None
) -> dict[tuple[str, ...], GroupResult]:
    minute = tx.tables.minute.c
    groups = [minute[name] for name in names]
    finished = sa.func.sum(minute.succeeded) + sa.func.sum(minute.died) + sa.func.sum(minute.cancelled)
    order = () if most is None else (finished.desc(), *groups)
    reading, times = flow_rows(tx, groups, conditions, order, most), None
    if most is None:
        rows, times = await tx.gather(reading, histograms(tx, groups, conditions))
    else:
        rows = await reading
    flows = {tuple(map(as_text, key)): flow for *key, flow in rows}
    if times is None:
        if len(rows) == most:
            # Each column for itself: a join by pairs depends on the planner. More than these is read, and left out.
            conditions += [
                tx.dialect.one_of(column, sorted({key[index] for key in flows})) for index, column in enumerate(groups)
            ]
        times = await histograms(tx, groups, conditions)
    return {key: GroupResult(flow, times[key]) for key, flow in flows.items()}


async def mean_durations(tx: Transaction, since: datetime, until: datetime, most: int) -> dict[tuple[str, str], float]:
    """The mean run times of attempts in seconds, by queue and handler.

    Args:
        tx: an open transaction; one statement is executed.
        since: the first minute, aware.
        until: the end, aware and exclusive.
        most: maximum number of means, those of the most attempts.
    """
    minute = tx.tables.minute.c
    groups, runs = (minute.queue, minute.handler), sa.func.sum(minute.runs)
    conditions = [*within(tx, since, until), minute.bin_ms > COUNTS_ROW]
    statement = sa.select(*groups, runs, sa.func.sum(minute.run_time)).where(*conditions).group_by(*groups)
    rows = await tx.rows(statement.having(runs > 0).order_by(runs.desc(), *groups).limit(most))
    return {(as_text(row[0]), as_text(row[1])): float(row[3]) / int(row[2]) for row in rows}


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


MOST_LINES = 1_000
"""Maximum number of handlers or queues in a summary."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a period.

    Args:
        since: the first minute.
        until: the end, exclusive.
        total: the sum of everything.
        lines: one line per handler or queue, most ended tasks first; at most MOST_LINES.
        others: the sum of the unlisted ones; None if all are listed.
        times: the times of all attempts.
    """

    at: datetime
    since: datetime
    until: datetime
    by: GroupBy
    total: SummaryLine
    lines: tuple[SummaryLine, ...]
    others: SummaryLine | None = None
    times: Times = NOTHING.times

    @property
    def rows(self) -> list[SummaryLine]:
        """The lines, and that of the others with the name OTHERS."""
        return [*self.lines, *([self.others] if self.others else [])]


async def summary(
    tx: Transaction,
    since: datetime,
    until: datetime | None = None,
    by: GroupBy = GroupBy.HANDLER,
    most: int = MOST_LINES,
) -> Summary:
    """Summarize a period.

    Args:
        tx: an open transaction; four or five statements are executed, and two more if not everything is listed.
        since: the start, aware; its whole minute is included.
        until: the end, aware and exclusive; None for now.
        most: maximum number of lines, those with the most ended tasks.
    """
    at = await clock(tx)
    first, last = since.replace(second=0, microsecond=0), until or at
    results, uncounted_tasks = await tx.gather(results_by(tx, by, first, last, most), uncounted(tx, first, last))
    waiting: dict[str, int] = defaultdict(int)
    for work_key, number in uncounted_tasks.work_keys.items():
        waiting[work_key[by is GroupBy.HANDLER]] += number
    is_cut = len(results) == most
    whole = (await results_by(tx, None, first, last))[OTHERS] if is_cut else _sum(results.values())
    total = _line(ALL, whole, sum(waiting.values()), uncounted_tasks.more)
    rank = {name: (-result.flow.finished, name) for name, result in results.items()}
    # Behind a cut, a queue that only has new tasks may have results too: it belongs to the others.
    names = sorted(rank if is_cut else {*rank, *waiting}, key=lambda name: rank.get(name, (0, name)))[:most]
    lines = [_line(name, results.get(name, NOTHING), waiting[name], uncounted_tasks.more) for name in names]
    listed = _sum(results[name] for name in names if name in results)
    return Summary(at, first, last, by, total, tuple(lines), _others(total, whole, listed, lines), whole.times)


def total_of(summaries: Sequence[Summary]) -> SummaryLine:
    """Sum up summaries, such as those of several shards."""
    whole = _sum(GroupResult(each.total.flow, each.times) for each in summaries)
    submitted = [each.total.submitted for each in summaries]
    waiting = sum(count.number for count in submitted) - whole.flow.submitted
    return _line(ALL, whole, waiting, any(count.more for count in submitted))


def _sum(results: Iterable[GroupResult]) -> GroupResult:
    results = list(results)
    runs, waits = (merged(each.times[index] for each in results) for index in (0, 1))
    return GroupResult(sum((each.flow for each in results), Flow()), Times(runs, waits))


def _others(
    total: SummaryLine, whole: GroupResult, listed: GroupResult, lines: Sequence[SummaryLine]
) -> SummaryLine | None:
    """The total without the listed lines; None if nothing is left."""
    submitted = total.submitted.number - sum(line.submitted.number for line in lines)
    flow = whole.flow - listed.flow
    if not submitted and flow == Flow():
        return None
    times = Times(*(all_times.without(part) for all_times, part in zip(whole.times, listed.times, strict=True)))
    return _line(OTHERS, GroupResult(flow, times), submitted - flow.submitted, total.submitted.more)


def _line(name: str, result: GroupResult, waiting: int, more: bool) -> SummaryLine:
    percentiles = (times.percentile(q) for times in result.times for q in (0.5, 0.95))
    return SummaryLine(name, Count(result.flow.submitted + waiting, more), result.flow, *percentiles)


DIGITS = 6
"""Decimal places."""


class SummaryFigures(NamedTuple):
    """The figures of one line of a summary, for programs.

    Args:
        name: the name of the handler or queue; empty for the others.
        submitted: the tasks submitted in the period, claimed or not.
        first_try: the tasks that succeeded on the first attempt.
        second_try: the tasks that succeeded on the second attempt.
        retried: failed attempts that were followed by another one.
        died: tasks that became dead.
        cancelled: tasks that were cancelled while running.
        rescued: tasks that were rescued from lost runners.
        success: the share of succeeded tasks among succeeded and dead ones, 0 to 1; None if there are none.
        first: the share that succeeded on the first attempt, 0 to 1.
        second: the share that succeeded on the second attempt, 0 to 1.
        p50: the median duration of attempts in seconds; None if unknown.
        p95: the 95th percentile in seconds; None if unknown.
        wait50: the median wait of attempts from the due time to the start in seconds; None if unknown.
        wait95: the 95th percentile of the wait in seconds; None if unknown.
    """

    name: str
    submitted: int
    succeeded: int
    first_try: int
    second_try: int
    retried: int
    died: int
    cancelled: int
    rescued: int
    success: float | None
    first: float | None
    second: float | None
    p50: float | None
    p95: float | None
    wait50: float | None
    wait95: float | None


class SummaryDocument(NamedTuple):
    """The results of a period by handler or queue, for programs.

    Args:
        since: the first minute.
        until: the end, exclusive.
        at: the database's time.
        lines: one line per handler or queue, most ended tasks first.
        others: the sum of the unlisted ones; None if all are listed.
    """

    since: datetime
    until: datetime
    at: datetime
    by: GroupBy
    total: SummaryFigures
    lines: Sequence[SummaryFigures]
    others: SummaryFigures | None


def as_document(summary: Summary) -> SummaryDocument:
    """A report for programs."""
    others = figures_of(summary.others) if summary.others else None
    lines = [*map(figures_of, summary.lines)]
    total = figures_of(summary.total)
    return SummaryDocument(summary.since, summary.until, summary.at, summary.by, total, lines, others)


def as_csv(summary: Summary) -> str:
    """A report as CSV, without the total line; the line of the others has an empty name."""
    return csv_text(SummaryFigures._fields, [figures_of(line) for line in summary.rows])


def figures_of(line: SummaryLine) -> SummaryFigures:
    """A line for programs."""
    counts = {field.name: getattr(line.flow, field.name) for field in fields(Flow)}
    rates = (line.flow.success_rate, line.first_try_rate, line.second_try_rate)
    numbers = (*rates, line.p50, line.p95, line.wait50, line.wait95)
    rounded = [None if number is None else round(number, DIGITS) for number in numbers]
    return SummaryFigures(line.name, *(counts | {"submitted": line.submitted.number}).values(), *rounded)


SUMMARY_COLUMNS: tuple[Column[SummaryLine], ...] = (
    Column("NAME", lambda line: line.name),
    figure("IN", lambda line: line.submitted),
    figure("DONE", lambda line: line.flow.succeeded, thousands),
    figure("SUCCESS", lambda line: line.flow.success_rate, formatting.share),
    figure("1ST ATT", lambda line: line.first_try_rate, formatting.share),
    figure("2ND", lambda line: line.second_try_rate, formatting.share),
    figure("RETRY", lambda line: line.flow.retried, thousands),
    figure("DEAD", lambda line: line.flow.died, thousands),
    figure("P50", lambda line: line.p50, formatting.duration),
    figure("P95", lambda line: line.p95, formatting.duration),
    figure("WAIT P95", lambda line: line.wait95, formatting.duration),
)
"""The columns of a handler or a queue in a table for people."""
