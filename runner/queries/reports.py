"""reports: task counts and durations, from the minute statistics."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import MINUTE_COUNTS, MINUTE_TIMES, NO_BIN, is_state
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now, minute_number
from runner.model.task import State
from runner.policy.histogram import Histogram, Times
from runner.queries.rows import as_text, moment

COUNTS_ROW: sa.ColumnElement[int] = sa.literal_column(str(NO_BIN), sa.Integer)
"""The bin of the rows with counts; the others have histograms."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Task counts of a period; see MINUTE_COUNTS.

    Args:
        submitted: submitted tasks that have been claimed or have ended.
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
    def finished(self) -> int:
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

    def __add__(self, other: "Flow") -> "Flow":
        return Flow(*(getattr(self, name) + getattr(other, name) for name in MINUTE_COUNTS))

    def __sub__(self, other: "Flow") -> "Flow":
        return Flow(*(getattr(self, name) - getattr(other, name) for name in MINUTE_COUNTS))

    def share_of(self, number: int) -> float | None:
        """The share of a number among succeeded and dead tasks; None if there are none."""
        finished = self.succeeded + self.died
        return number / finished if finished else None


class MinuteFlow(NamedTuple):
    """The counts of one minute or step, for plots."""

    minute: datetime
    flow: Flow


async def flows(
    tx: Transaction, most: int | None = None, only: Sequence[str] | None = None
) -> tuple[dict[str, Flow], dict[str, Flow]]:
    """Sum up by queue.

    Args:
        tx: an open transaction; two statements are executed.
        most: maximum number of queues, those with the most failures and then the most tasks; None for all.
        only: only these queues; None for all.

    Returns:
        The last full minute, and the last sixty minutes including the current one.
    """
    minute = tx.tables.minute.c
    failed, tasks = (sa.func.sum(minute.retried + minute.died), sa.func.sum(minute.submitted + minute.succeeded))
    order = () if most is None else (failed.desc(), tasks.desc(), minute.queue)
    # A statement of its own: it reads one minute, and not sixty with a condition for each sum.
    of_minute = (minute.minute > db_later(db_now(), -120)) & (minute.minute <= db_later(db_now(), -60))
    hour, last = await tx.gather(
        _by_queue(tx, [minute.minute > db_later(db_now(), -3600)], only, order, most),
        _by_queue(tx, [of_minute], only),
    )
    if len(hour) == most:
        last = {queue: flow for queue, flow in last.items() if queue in hour}
    return last, hour


async def flows_between(tx: Transaction, since: datetime, until: datetime) -> dict[str, Flow]:
    """Sum up a period by queue.

    Args:
        since: the first minute, aware.
        until: the end, aware and exclusive.
    """
    return await _by_queue(tx, within(tx, since, until))


async def _by_queue(
    tx: Transaction,
    conditions: Sequence[sa.ColumnElement[bool]],
    only: Sequence[str] | None = None,
    order: Sequence[Any] = (),
    most: int | None = None,
) -> dict[str, Flow]:
    queue = tx.tables.minute.c.queue
    listed = [] if only is None else [tx.dialect.one_of(queue, only)]
    return {as_text(name): flow for name, flow in await flow_rows(tx, [queue], [*conditions, *listed], order, most)}


OTHERS = ""
"""The key of the queues or handlers that are not listed one by one; no name is empty."""


async def pulses(tx: Transaction, since: datetime, only: Sequence[str] | None = None) -> dict[str, list[MinuteFlow]]:
    """Sum up by queue and minute, in order; minutes without activity are left out.

    Args:
        tx: an open transaction; one statement is executed, two with `only`.
        since: the first minute, aware.
        only: the queues to list one by one, the others together as OTHERS; None for each queue.
    """
    minute = tx.tables.minute.c
    begun, groups = minute.minute >= since, (minute.queue, minute.minute)
    conditions = [begun, *([] if only is None else [tx.dialect.one_of(minute.queue, only)])]
    minutes: dict[str, list[MinuteFlow]] = defaultdict(list)
    listed: dict[datetime, Flow] = defaultdict(Flow)
    for queue, at, flow in await flow_rows(tx, groups, conditions, groups):
        if beginning := moment(at):
            minutes[as_text(queue)].append(MinuteFlow(beginning, flow))
            listed[beginning] += flow
    if only is not None:
        # The sums of all, less those of the listed: a condition on each row's queue would cost more than both.
        for at, flow in await flow_rows(tx, [minute.minute], [begun], [minute.minute]):
            if (beginning := moment(at)) and (rest := flow - listed[beginning]) != Flow():
                minutes[OTHERS].append(MinuteFlow(beginning, rest))
    return dict(minutes)


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
        since: the first minute, aware.
        until: the end, aware and exclusive.
        queue: only this queue.
        handler: only this handler.
        step: minutes per entry, aligned to 1970-01-01.
    """
    span = _span(tx, step)
    rows = await flow_rows(tx, [span], within(tx, since, until, queue, handler), [span])
    return [MinuteFlow(_begin_of(number, step), flow) for number, flow in rows]


def _span(tx: Transaction, step: int) -> sa.Label[int]:
    # Integers, because databases agree on integer division.
    number = sa.cast(minute_number(tx.tables.minute.c.minute), sa.BigInteger)
    return (number // sa.literal_column(str(step))).label("span")


def _begin_of(span: float, step: int) -> datetime:
    return datetime.fromtimestamp(float(span) * step * 60, UTC)


async def per_step(
    tx: Transaction, by: str, names: Sequence[str | int], since: datetime, until: datetime, step: int
) -> dict[str, list[MinuteFlow]]:
    """Sum up queues, handlers or runners by several minutes, in order; steps without activity are left out.

    Args:
        tx: an open transaction; one statement is executed.
        by: "queue", "handler" or "runner_id".
        names: the queues, handlers or ids of runners.
        since: the first minute, aware.
        until: the end, aware and exclusive.
        step: minutes per entry, aligned to 1970-01-01.
    """
    column, span = tx.tables.minute.c[by], _span(tx, step)
    conditions = [*within(tx, since, until), tx.dialect.one_of(column, names)]
    result: dict[str, list[MinuteFlow]] = defaultdict(list)
    for name, number, flow in await flow_rows(tx, (column, span), conditions, (column, span)):
        result[as_text(name)].append(MinuteFlow(_begin_of(number, step), flow))
    return dict(result)


def within(
    tx: Transaction, since: datetime, until: datetime, queue: str | None = None, handler: str | None = None
) -> list[sa.ColumnElement[bool]]:
    """The conditions of a period, exclusive of its end, and of a queue and a handler."""
    minute = tx.tables.minute.c
    conditions = [minute.minute >= since, minute.minute < until]
    if queue is not None:
        conditions.append(minute.queue == queue)
    if handler is not None:
        conditions.append(minute.handler == handler)
    return conditions


async def flow_rows(
    tx: Transaction,
    groups: Sequence[Any],
    conditions: Sequence[sa.ColumnElement[bool]],
    order: Sequence[Any] = (),
    most: int | None = None,
) -> list[tuple[Any, ...]]:
    """Sum up the counts of the minutes that meet conditions, by groups of columns.

    Returns:
        The values of the columns, and the flow, of each group.
    """
    minute = tx.tables.minute.c
    sums = [sa.func.sum(minute[name]) for name in MINUTE_COUNTS]
    statement = sa.select(*groups, *sums).where(*conditions, minute.bin_ms == COUNTS_ROW).group_by(*groups)
    rows = await tx.rows(statement.order_by(*order).limit(most))
    return [(*row[: len(groups)], Flow(*(int(number or 0) for number in row[len(groups) :]))) for row in rows]


async def histograms(
    tx: Transaction, groups: Sequence[Any], conditions: Sequence[sa.ColumnElement[bool]]
) -> dict[tuple[Any, ...], Times]:
    """Read histograms by groups of rows; the keys are tuples of text, or of times for the column `minute`."""
    minute = tx.tables.minute.c
    numbers = [sa.func.sum(minute[name]) for name in MINUTE_TIMES]
    statement = sa.select(*groups, minute.bin_ms, *numbers).where(*conditions, minute.bin_ms > COUNTS_ROW)
    result: dict[tuple[Any, ...], Times] = defaultdict(lambda: Times(Histogram(), Histogram()))
    for *key, bound, runs, run_time, waits, wait_time in await tx.rows(statement.group_by(*groups, minute.bin_ms)):
        times = result[tuple(part if isinstance(part, datetime) else as_text(part) for part in key)]
        if runs > 0:
            times.runs.put(bound, int(runs), float(run_time))
        if waits > 0:
            times.waits.put(bound, int(waits), float(wait_time))
    return result


async def times_by_minute(tx: Transaction, since: datetime) -> dict[datetime, Times]:
    """Read the run times and waits of all attempts by minute.

    Args:
        tx: an open transaction; one statement is executed.
        since: the first minute, aware.

    Returns:
        The histograms of each minute with attempts that ended.
    """
    minute = tx.tables.minute.c
    result = await histograms(tx, (minute.minute,), [minute.minute >= since])
    return {at: times for (beginning,), times in result.items() if (at := moment(beginning))}


async def times_per_step(
    tx: Transaction,
    since: datetime,
    until: datetime,
    queue: str | None = None,
    handler: str | None = None,
    step: int = 1,
) -> dict[datetime, Times]:
    """Read the run times and waits by several minutes; see `per_minute`."""
    result = await histograms(tx, (_span(tx, step),), within(tx, since, until, queue, handler))
    return {_begin_of(number, step): times for (number,), times in result.items()}


async def usual_times(tx: Transaction, since: datetime, until: datetime) -> dict[str, float]:
    """Read the 95th percentile of the run time of each handler, over all of its queues, in seconds.

    Args:
        tx: an open transaction; one statement is executed.
        since: the first minute, aware.
        until: the end, aware and exclusive.
    """
    result = await histograms(tx, (tx.tables.minute.c.handler,), within(tx, since, until))
    percentiles = {handler: times.runs.percentile(0.95) for (handler,), times in result.items()}
    return {handler: seconds for handler, seconds in percentiles.items() if seconds is not None}


async def results_by_runner(tx: Transaction, since: datetime) -> dict[int, dict[str, Flow]]:
    """Sum up by runner and handler, also for runners that are no longer registered.

    Args:
        tx: an open transaction; one statement is executed.
        since: the first minute, aware.
    """
    minute = tx.tables.minute.c
    names = (minute.runner_id, minute.handler)
    results: dict[int, dict[str, Flow]] = {}
    for runner_id, handler, flow in await flow_rows(tx, names, [minute.minute >= since]):
        results.setdefault(runner_id, {})[as_text(handler)] = flow
    return results


MOST_FLOWS = 1_000
"""Maximum number of pairs of queue and handler whose flows are read, those with the most failures first."""


async def flows_by_work_key(tx: Transaction, since: datetime, until: datetime) -> dict[tuple[str, str], Flow]:
    """Sum up by queue and handler.

    Args:
        tx: an open transaction; one statement is executed.
        since: the first minute, aware.
        until: the end, aware and exclusive.

    Returns:
        The flows of at most MOST_FLOWS pairs.
    """
    minute = tx.tables.minute.c
    names, failed = (minute.queue, minute.handler), sa.func.sum(minute.retried + minute.died)
    rows = await flow_rows(tx, names, within(tx, since, until), (failed.desc(), *names), MOST_FLOWS)
    return {(as_text(queue), as_text(handler)): flow for queue, handler, flow in rows}


async def running_since(tx: Transaction) -> dict[datetime, int]:
    """Count the running tasks, at most 10,000, by the minute in which their attempt began.

    Args:
        tx: an open transaction; one statement is executed.
    """
    task = tx.tables.task.c
    running = sa.select(task.claimed_at).where(is_state(task.state, State.RUNNING)).limit(10_000).subquery()
    minute = sa.cast(minute_number(running.c.claimed_at), sa.BigInteger).label("minute")
    rows = await tx.rows(sa.select(minute, sa.func.count()).group_by(minute))
    return {datetime.fromtimestamp(row[0] * 60, UTC): row[1] for row in rows if row[0] is not None}
