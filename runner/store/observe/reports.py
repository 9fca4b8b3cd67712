"""reports: what was done, from the sums that runners keep for each minute."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from runner.columns import db_later, db_now, minute_number
from runner.policy.histogram import merged, percentile
from runner.schema import MINUTE_COUNTS
from runner.store.observe.legible import moment, words
from runner.store.transaction import Transaction

MOST_ROWS = 200_000
"""Rows of minutes whose durations are read for one report: a day of a hundred handlers on one runner."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What happened to tasks in some time; see MINUTE_COUNTS.

    Args:
        submitted: tasks that were submitted, as far as they have been claimed or have ended.
        succeeded: tasks that succeeded.
        first_try: of these, at the first attempt.
        second_try: of these, at the second attempt.
        retried: attempts that failed and were followed by another one.
        died: tasks that failed for good.
        cancelled: tasks that were cancelled while they ran.
        rescued: tasks that were taken back from lost runners.
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
        """Tasks that are over."""
        return self.succeeded + self.died + self.cancelled

    @property
    def failed(self) -> int:
        """Attempts that failed."""
        return self.retried + self.died

    @property
    def success_rate(self) -> float | None:
        """The share of ended tasks that succeeded; None when none has ended."""
        return self.share_of(self.succeeded)

    def share_of(self, number: int) -> float | None:
        """The share that so many are of the tasks that succeeded or died; None when there are none."""
        tried = self.succeeded + self.died
        return number / tried if tried else None


@dataclass(frozen=True, slots=True)
class Total:
    """What one handler did in one queue.

    Args:
        queue: the queue's name.
        handler: the handler's name.
        flow: what happened.
        durations: how many attempts took how long, see runner.policy.histogram; empty when too much was asked for.
        p50: seconds that half of the attempts did not exceed; None when not known.
        p95: seconds that 95 of 100 attempts did not exceed; None when not known.
    """

    queue: str
    handler: str
    flow: Flow
    durations: tuple[int, ...]
    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class MinuteFlow:
    """What happened in one minute, for plots.

    Args:
        minute: its beginning.
        flow: what happened.
    """

    minute: datetime
    flow: Flow


async def flows(tx: Transaction) -> tuple[dict[str, Flow], dict[str, Flow]]:
    """Sum up by queue.

    Returns:
        The last full minute, and the last sixty minutes with the present one.
    """
    minute = tx.tables.minute.c
    last = (minute.minute > db_later(db_now(), -120)) & (minute.minute <= db_later(db_now(), -60))
    in_last = [sa.func.sum(sa.case((last, minute[name]), else_=0)) for name in MINUTE_COUNTS]
    statement = sa.select(minute.queue, *_sums(tx), *in_last).group_by(minute.queue)
    rows = await tx.rows(statement.where(minute.minute > db_later(db_now(), -3600)))
    half = 1 + len(MINUTE_COUNTS)
    return {words(row[0]): _flow(row[half:]) for row in rows}, {words(row[0]): _flow(row[1:half]) for row in rows}


async def pulses(tx: Transaction, since: datetime) -> dict[str, list[MinuteFlow]]:
    """Sum up by queue and minute, in order; a minute in which nothing happened is left out.

    Args:
        tx: an open transaction.
        since: the first minute, aware.
    """
    minute = tx.tables.minute.c
    groups = (minute.queue, minute.minute)
    statement = sa.select(*groups, *_sums(tx)).where(minute.minute >= since).group_by(*groups).order_by(*groups)
    found: dict[str, list[MinuteFlow]] = defaultdict(list)
    for row in await tx.rows(statement):
        if beginning := moment(row[1]):
            found[words(row[0])].append(MinuteFlow(beginning, _flow(row[2:])))
    return dict(found)


async def totals(
    tx: Transaction, since: datetime, until: datetime, queue: str | None = None, handler: str | None = None
) -> list[Total]:
    """Sum up by queue and handler.

    Args:
        tx: an open transaction.
        since: the first minute, aware.
        until: the minute before which to stop, aware.
        queue: only this one.
        handler: only this one.

    Returns:
        Totals, those with the most successes first.
    """
    minute = tx.tables.minute.c
    chosen = _chosen(tx, since, until, queue, handler)
    groups = (minute.queue, minute.handler)
    rows = await tx.rows(sa.select(*groups, *_sums(tx)).where(*chosen).group_by(*groups))
    durations = await _durations(tx, chosen)
    found = [_total(row, durations.get((row[0], row[1]), [])) for row in rows]
    return sorted(found, key=lambda total: (-total.flow.succeeded, total.queue, total.handler))


async def per_minute(
    tx: Transaction,
    since: datetime,
    until: datetime,
    queue: str | None = None,
    handler: str | None = None,
    step: int = 1,
) -> list[MinuteFlow]:
    """Sum up by minute, or by several of them, in order; a time in which nothing happened is left out.

    Args:
        tx: an open transaction.
        since: the first minute, aware.
        until: the minute before which to stop, aware.
        queue: only this one.
        handler: only this one.
        step: minutes that are summed up, counted from 1970.
    """
    # Whole numbers, of which databases know how often one goes into another.
    number = sa.cast(minute_number(tx.tables.minute.c.minute), sa.BigInteger)
    span = (number // sa.literal_column(str(step))).label("span")
    statement = sa.select(span, *_sums(tx)).where(*_chosen(tx, since, until, queue, handler))
    rows = await tx.rows(statement.group_by(span).order_by(span))
    return [MinuteFlow(datetime.fromtimestamp(row[0] * step * 60, UTC), _flow(row[1:])) for row in rows]


def _chosen(
    tx: Transaction, since: datetime, until: datetime, queue: str | None, handler: str | None
) -> list[sa.ColumnElement[bool]]:
    minute = tx.tables.minute.c
    chosen = [minute.minute >= since, minute.minute < until]
    if queue is not None:
        chosen.append(minute.queue == queue)
    if handler is not None:
        chosen.append(minute.handler == handler)
    return chosen


def _sums(tx: Transaction) -> list[sa.ColumnElement[Any]]:
    return [sa.func.sum(tx.tables.minute.c[name]) for name in MINUTE_COUNTS]


def _flow(sums: Sequence[Any]) -> Flow:
    return Flow(**{name: int(number) for name, number in zip(MINUTE_COUNTS, sums, strict=True)})


async def _durations(tx: Transaction, chosen: list[sa.ColumnElement[bool]]) -> dict[tuple[str, str], list[int]]:
    """Histograms by queue and handler; none at all beyond MOST_ROWS, for a part of them would mislead."""
    minute = tx.tables.minute.c
    columns = (minute.queue, minute.handler, sa.cast(minute.durations, sa.Text), sa.func.count())
    # Equal histograms, most of them of a single task, are read once.
    statement = sa.select(*columns).where(*chosen).group_by(*columns[:3]).limit(MOST_ROWS + 1)
    rows = await tx.rows(statement)
    found: dict[tuple[str, str], list[list[int]]] = defaultdict(list)
    for queue, handler, written, times in rows if len(rows) <= MOST_ROWS else ():
        found[queue, handler].append([count * times for count in _histogram(written)])
    return {place: merged(histograms) for place, histograms in found.items()}


def _histogram(written: Any) -> list[int]:
    try:
        counts = json.loads(written)
    except (ValueError, TypeError, RecursionError):
        return []
    sound = isinstance(counts, list) and all(isinstance(count, int) and count >= 0 for count in counts)
    return counts if sound else []


def _total(row: Sequence[Any], durations: list[int]) -> Total:
    p50, p95 = (percentile(durations, q) for q in (0.5, 0.95))
    return Total(words(row[0]), words(row[1]), _flow(row[2:]), tuple(durations), p50, p95)
