"""reports: task counts and durations, from the minute statistics."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from runner.db.schema import MINUTE_COUNTS, MINUTE_TIMES, NO_BIN
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now, minute_number
from runner.policy.histogram import Histogram, Times
from runner.queries.rows import as_text, moment

_NO_BIN: sa.ColumnElement[int] = sa.literal_column(str(NO_BIN), sa.Integer)


@dataclass(frozen=True, slots=True)
class Flow:
    """Task counts of a period; see MINUTE_COUNTS.

    Args:
        submitted: submitted tasks that have been claimed or have ended.
        succeeded: succeeded tasks.
        first_try: of these, on the first attempt.
        second_try: of these, on the second attempt.
        retried: failed attempts that were followed by another one.
        died: tasks that became dead.
        cancelled: tasks that were cancelled while running.
        rescued: tasks that were rescued from lost runners.
    """

    submitted: int = 0
    succeeded: int = 0
    first_try: int = 0
    second_try: int = 0
    retried: int = 0
    died: int = 0
    cancelled: int = 0
    rescued: int = 0

    @property
    def ended(self) -> int:
        """Tasks that ended."""
        return self.succeeded + self.died + self.cancelled

    @property
    def failed(self) -> int:
        """Failed attempts."""
        return self.retried + self.died

    @property
    def success_rate(self) -> float | None:
        """The share of succeeded tasks among succeeded and dead ones; None if there are none."""
        return self.share_of(self.succeeded)

    def share_of(self, number: int) -> float | None:
        """The share of a number among succeeded and dead tasks; None if there are none."""
        finished = self.succeeded + self.died
        return number / finished if finished else None


@dataclass(frozen=True, slots=True)
class Total:
    """The results of one handler in one queue.

    Args:
        queue: the name of the queue.
        handler: the name of the handler.
        flow: the counts.
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


@dataclass(frozen=True, slots=True)
class MinuteFlow:
    """The counts of one minute or step, for plots.

    Args:
        minute: its start.
        flow: the counts.
    """

    minute: datetime
    flow: Flow


async def flows(
    tx: Transaction, most: int | None = None, only: Sequence[str] | None = None
) -> tuple[dict[str, Flow], dict[str, Flow]]:
    """Sum up by queue.

    Args:
        tx: an open transaction; one statement is executed.
        most: maximum number of queues, those with the most failures and then the most tasks; None for all.
        only: only these queues; None for all.

    Returns:
        The last full minute, and the last sixty minutes including the current one.
    """
    minute = tx.tables.minute.c
    last = (minute.minute > db_later(db_now(), -120)) & (minute.minute <= db_later(db_now(), -60))
    in_last = [sa.func.sum(sa.case((last, minute[name]), else_=0)) for name in MINUTE_COUNTS]
    statement = sa.select(minute.queue, *_sums(tx), *in_last).group_by(minute.queue)
    statement = statement.where(minute.minute > db_later(db_now(), -3600), minute.bin_ms == _NO_BIN)
    if most is not None:
        failed, tasks = minute.retried + minute.died, minute.submitted + minute.succeeded
        statement = statement.order_by(sa.func.sum(failed).desc(), sa.func.sum(tasks).desc(), minute.queue).limit(most)
    if only is not None:
        statement = statement.where(tx.dialect.one_of(minute.queue, only))
    rows = await tx.rows(statement)
    half = 1 + len(MINUTE_COUNTS)
    return {as_text(row[0]): _flow(row[half:]) for row in rows}, {as_text(row[0]): _flow(row[1:half]) for row in rows}


OTHER_QUEUES = ""
"""The key of the queues that are not listed one by one; no queue has an empty name."""


async def pulses(tx: Transaction, since: datetime, only: Sequence[str] | None = None) -> dict[str, list[MinuteFlow]]:
    """Sum up by queue and minute, in order; minutes without activity are left out.

    Args:
        tx: an open transaction.
        since: the first minute, aware.
        only: the queues to list one by one, the others together as OTHER_QUEUES; None for each queue.
    """
    minute = tx.tables.minute.c
    queue: sa.ColumnElement[str] = minute.queue
    if only is not None:
        queue = sa.case((tx.dialect.one_of(queue, only), queue), else_=sa.literal_column(f"'{OTHER_QUEUES}'", sa.Text))
    named = sa.select(queue.label("name"), minute.minute, *(minute[name] for name in MINUTE_COUNTS))
    row = named.where(*_counts(tx, since)).subquery("named").c
    groups, sums = (row.name, row.minute), [sa.func.sum(row[name]) for name in MINUTE_COUNTS]
    statement = sa.select(*groups, *sums).group_by(*groups).order_by(*groups)
    minutes: dict[str, list[MinuteFlow]] = defaultdict(list)
    for each in await tx.rows(statement):
        if beginning := moment(each[1]):
            minutes[as_text(each[0])].append(MinuteFlow(beginning, _flow(each[2:])))
    return dict(minutes)


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
        tx: an open transaction.
        since: the first minute, aware.
        until: the end, aware and exclusive.
        queue: only this queue.
        handler: only this handler.
        most: maximum number of totals, those with the most successes; None for all.

    Returns:
        The totals, most successes first.
    """
    minute = tx.tables.minute.c
    conditions = _conditions(tx, since, until, queue, handler)
    groups = (minute.queue, minute.handler)
    statement = sa.select(*groups, *_sums(tx)).where(*conditions, minute.bin_ms == _NO_BIN).group_by(*groups)
    if most is not None:
        statement = statement.order_by(sa.func.sum(minute.succeeded).desc(), *groups).limit(most)
    rows = await tx.rows(statement)
    if most is not None and len(rows) == most:
        largest = statement.with_only_columns(*groups).subquery("largest")
        conditions.append(sa.tuple_(*groups).in_(sa.select(largest)))
    times = await _times(tx, groups, conditions)
    result = []
    for row in rows:
        queue_name, handler_name = as_text(row[0]), as_text(row[1])
        result.append(Total(queue_name, handler_name, _flow(row[2:]), *times[queue_name, handler_name]))
    return sorted(result, key=lambda total: (-total.flow.succeeded, total.queue, total.handler))


async def per_minute(
    tx: Transaction,
    since: datetime,
    until: datetime,
    queue: str | None = None,
    handler: str | None = None,
    step: int = 1,
) -> list[MinuteFlow]:
    """Sum up by minute, or by several minutes, in order; steps without activity are left out.

    Args:
        tx: an open transaction.
        since: the first minute, aware.
        until: the end, aware and exclusive.
        queue: only this queue.
        handler: only this handler.
        step: minutes per entry, aligned to 1970-01-01.
    """
    # Integers, because databases agree on integer division.
    number = sa.cast(minute_number(tx.tables.minute.c.minute), sa.BigInteger)
    span = (number // sa.literal_column(str(step))).label("span")
    conditions = [*_conditions(tx, since, until, queue, handler), tx.tables.minute.c.bin_ms == _NO_BIN]
    statement = sa.select(span, *_sums(tx)).where(*conditions)
    rows = await tx.rows(statement.group_by(span).order_by(span))
    return [MinuteFlow(datetime.fromtimestamp(row[0] * step * 60, UTC), _flow(row[1:])) for row in rows]


def _conditions(
    tx: Transaction, since: datetime, until: datetime, queue: str | None, handler: str | None
) -> list[sa.ColumnElement[bool]]:
    minute = tx.tables.minute.c
    conditions = [minute.minute >= since, minute.minute < until]
    if queue is not None:
        conditions.append(minute.queue == queue)
    if handler is not None:
        conditions.append(minute.handler == handler)
    return conditions


def _sums(tx: Transaction) -> list[sa.ColumnElement[Any]]:
    return [sa.func.sum(tx.tables.minute.c[name]) for name in MINUTE_COUNTS]


def _flow(sums: Sequence[Any]) -> Flow:
    return Flow(**{name: int(number) for name, number in zip(MINUTE_COUNTS, sums, strict=True)})


def _counts(tx: Transaction, since: datetime) -> list[sa.ColumnElement[bool]]:
    """The rows with counts, without histograms."""
    minute = tx.tables.minute.c
    return [minute.minute >= since, minute.bin_ms == _NO_BIN]


async def _times(
    tx: Transaction, groups: Sequence[Any], conditions: Sequence[sa.ColumnElement[bool]]
) -> dict[tuple[Any, ...], Times]:
    """Read histograms by groups of rows; the keys are tuples of text, or of times for the column `minute`."""
    minute = tx.tables.minute.c
    sums = [sa.func.sum(minute[name]) for name in MINUTE_TIMES]
    statement = sa.select(*groups, minute.bin_ms, *sums).where(*conditions, minute.bin_ms > _NO_BIN)
    histograms: dict[tuple[Any, ...], Times] = defaultdict(lambda: Times(Histogram(), Histogram()))
    for *key, bound, runs, run_time, waits, wait_time in await tx.rows(statement.group_by(*groups, minute.bin_ms)):
        times = histograms[tuple(part if isinstance(part, datetime) else as_text(part) for part in key)]
        if runs > 0:
            times.runs.put(bound, int(runs), float(run_time))
        if waits > 0:
            times.waits.put(bound, int(waits), float(wait_time))
    return histograms


async def times_by_minute(tx: Transaction, since: datetime) -> dict[datetime, Times]:
    """Read the run times and waits of all attempts by minute.

    Args:
        tx: an open transaction; one statement is executed.
        since: the first minute, aware.

    Returns:
        The histograms of each minute with attempts that ended.
    """
    minute = tx.tables.minute.c
    histograms = await _times(tx, (minute.minute,), [minute.minute >= since])
    return {at: times for (beginning,), times in histograms.items() if (at := moment(beginning))}


async def results_by_runner(tx: Transaction, since: datetime) -> dict[int, Flow]:
    """Sum up by runner, also for runners that are no longer registered.

    Args:
        tx: an open transaction; one statement is executed.
        since: the first minute, aware.
    """
    minute = tx.tables.minute.c
    statement = sa.select(minute.runner_id, *_sums(tx)).where(*_counts(tx, since)).group_by(minute.runner_id)
    return {row[0]: _flow(row[1:]) for row in await tx.rows(statement)}


async def failing_handlers(tx: Transaction, since: datetime) -> int:
    """Count the handlers with failed attempts.

    Args:
        tx: an open transaction; one statement is executed.
        since: the first minute, aware.
    """
    minute = tx.tables.minute.c
    failed = (minute.retried > 0) | (minute.died > 0)
    statement = sa.select(sa.func.count(minute.handler.distinct())).where(*_counts(tx, since), failed)
    return int((await tx.rows(statement))[0][0])
