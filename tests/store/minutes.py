"""Minute statistics as test data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from runner.db.schema import MINUTE_COUNTS, TOOK_MS, UNKNOWN_MS
from runner.db.transaction import Transaction
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
        durations: histogram of the durations, see runner.policy.histogram.
    """

    minute: datetime
    queue: str
    handler: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MINUTE_COUNTS, 0))
    durations: list[int] = field(default_factory=list)


async def write_statistics(
    tx: Transaction, runner_id: int, minutes: Iterable[Minute], arrivals: Mapping[Arrival, int]
) -> None:
    """Add the counts of a runner, and submitted tasks."""
    for minute in minutes:
        at, unknown = minute.minute.replace(second=0, microsecond=0), dict(minute.counts)
        place = (at, minute.queue, minute.handler)
        for took_ms, runs in zip(TOOK_MS, minute.durations, strict=False):
            unknown["succeeded"] -= runs
            await add_counts(tx, runner_id, {(*place, took_ms): {"succeeded": runs}})
        await add_counts(tx, runner_id, {(*place, UNKNOWN_MS): unknown})
    for (number, queue, handler), tasks in arrivals.items():
        at = datetime.fromtimestamp(number * 60, UTC)
        await add_counts(tx, runner_id, {(at, queue, handler, UNKNOWN_MS): {"submitted": tasks}})
