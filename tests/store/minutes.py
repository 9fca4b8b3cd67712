"""Minute statistics as test data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from runner.db.schema import MINUTE_COUNTS, NO_BIN
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
        for bound, (number, seconds) in minute.durations.bins.items():
            await add_counts(tx, runner_id, {(*place, bound): {"runs": number, "run_time": seconds}})
        for bound, (number, seconds) in minute.waits.bins.items():
            await add_counts(tx, runner_id, {(*place, bound): {"waits": number, "wait_time": seconds}})
        await add_counts(tx, runner_id, {(*place, NO_BIN): minute.counts})
    for (arrival, queue, handler), tasks in arrivals.items():
        at = datetime.fromtimestamp(arrival * 60, UTC)
        await add_counts(tx, runner_id, {(at, queue, handler, NO_BIN): {"submitted": tasks}})
