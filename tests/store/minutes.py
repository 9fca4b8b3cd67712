"""Minute statistics as test data."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema import MINUTE_COUNTS, MINUTE_TIMES
from runner.db.transaction import Transaction, clock
from runner.policy.histogram import Histogram
from runner.store.minute_statistics import add_counts

T = TypeVar("T")

Arrival = tuple[float, str, str]
"""Submit minute since 1970, queue and handler of tasks."""


@dataclass
class Minute:
    """The counts of one queue and handler in one minute.

    Args:
        minute: any time in the minute.
        queue: queue of the tasks.
        handler: handler of the tasks.
        counts: counts by column.
        durations: the run times.
        waits: the waits.
    """

    minute: datetime
    queue: str
    handler: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MINUTE_COUNTS, 0))
    durations: Histogram = field(default_factory=Histogram)
    waits: Histogram = field(default_factory=Histogram)


async def within_a_minute(database: Database, act: Callable[[datetime], Awaitable[T]]) -> T:
    """Return what a function returns for the current minute: it begins again, without its rows, if that has ended."""
    tables = database.tables
    while True:
        minute = (await database.read(clock)).replace(second=0, microsecond=0)
        answer = await act(minute)
        if (await database.read(clock)).replace(second=0, microsecond=0) == minute:
            return answer
        async with database.writing() as tx:
            for table in (tables.task, tables.minute):
                await tx.execute(sa.delete(table))


async def write_statistics(
    tx: Transaction, runner_id: int, minutes: Iterable[Minute], arrivals: Mapping[Arrival, int]
) -> None:
    """Add the counts of a runner, and submitted tasks."""
    for minute in minutes:
        at = minute.minute.replace(second=0, microsecond=0)
        place = (at, minute.queue, minute.handler)
        rows: dict[int, dict[str, float]] = defaultdict(lambda: dict.fromkeys(MINUTE_TIMES, 0))
        for bound, (number, seconds) in minute.durations.bins.items():
            rows[bound] |= {"runs": number, "run_time": seconds}
        for bound, (number, seconds) in minute.waits.bins.items():
            rows[bound] |= {"waits": number, "wait_time": seconds}
        key = {"minute": at, "queue": minute.queue, "handler": minute.handler, "runner_id": runner_id}
        if rows:
            await tx.execute(
                sa.insert(tx.tables.minute), [key | {"bin_ms": bound} | row for bound, row in rows.items()]
            )
        await add_counts(tx, runner_id, {place: minute.counts})
    for (arrival, queue, handler), tasks in arrivals.items():
        at = datetime.fromtimestamp(arrival * 60, UTC)
        await add_counts(tx, runner_id, {(at, queue, handler): {"submitted": tasks}})
