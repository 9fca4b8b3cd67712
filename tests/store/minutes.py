"""Minute statistics as test data."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import sqlalchemy as sa

from runner.db.schema import MINUTE_COUNTS, MINUTE_TIMES
from runner.db.transaction import Transaction
from runner.policy.histogram import Histogram
from runner.store.minute_statistics import add_counts

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
