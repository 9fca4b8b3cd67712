"""DatabaseCollector: the metrics of the whole queue for Prometheus, from the last reading of the database."""

import logging
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

from runner.db.database import Database
from runner.db.migrations.apply import ensure
from runner.db.transaction import Transaction
from runner.engine.exposition import Family, MetricKind
from runner.engine.runner_collector import gauge, gauges, histograms
from runner.errors import StoreError
from runner.policy.histogram import ExportedTimes, Times
from runner.policy.work_keys import WorkKey, WorkKeys
from runner.queries.gauges import Gauges, new_times, read_gauges
from runner.text.sanitize import one_line
from runner.urls import parse_url

log = logging.getLogger("runner.probes")

COMPLETE = timedelta(seconds=30)
"""The time after the end of a minute at which runners have written its times."""

LONGEST_PERIOD = timedelta(hours=1)
"""The longest period whose times are read after an outage."""


class DatabaseCollector:
    """Reads the database at intervals of its own, so that no scrape waits for it and scrapers do not multiply the cost.

    While the database is unavailable, `tasktui_database_up` is 0 and the other metrics are absent.

    Args:
        earlier: the time before the first reading whose attempts the histograms have too.
    """

    def __init__(self, earlier: timedelta = timedelta(0)) -> None:
        self._earlier = earlier
        self._reading: tuple[float, Gauges] | None = None
        self._times: dict[WorkKey, ExportedTimes] = {}
        self._work_keys = WorkKeys()
        self._until: datetime | None = None
        self._is_accepted = False
        self.problem = "no reading yet"
        """Why the last reading failed; empty if it succeeded."""

    async def read(self, database: Database) -> None:
        """Read the numbers of the database.

        Raises:
            StoreError: the database refuses or does not answer, or its tables do not fit.
        """
        parse_url(database.url).require_file()
        if not self._is_accepted:
            await ensure(database)
            self._is_accepted = True
        numbers, until, recent = await database.read(self._read)
        times = self._times | {
            work_key: self._times.get(work_key, ExportedTimes()).plus(each) for work_key, each in recent.items()
        }
        self._until, self._times = until, times
        self._reading, self.problem = (time.monotonic(), numbers), ""

    async def _read(self, tx: Transaction) -> tuple[Gauges, datetime, dict[WorkKey, Times]]:
        """Read the numbers, and the times of the minutes that are complete since the last reading."""
        numbers = await read_gauges(tx)
        until = (numbers.health.at - COMPLETE).replace(second=0, microsecond=0)
        since = until - self._earlier if self._until is None else max(self._until, until - LONGEST_PERIOD)
        recent = await new_times(tx, since, until, self._work_keys) if since < until else {}
        return numbers, until, recent

    async def refresh(self, database: Database) -> None:
        """Read the numbers of the database; log a failure when it begins, and its end."""
        before = self.problem
        try:
            await self.read(database)
        except StoreError as error:
            self._reading, self.problem, self._is_accepted = None, one_line(str(error)), False
            if self.problem != before:
                log.warning("no metrics of the database: %s", self.problem)
        else:
            if before:
                log.info("metrics of the database %s", database.url)

    def collect(self) -> Iterator[Family]:
        """Collect the metrics of the last reading."""
        reading, times = self._reading, self._times
        up = "True (1) if the last reading of the database succeeded."
        yield gauge("database_up", up, int(reading is not None))
        if reading is None:
            return
        read_at, numbers = reading
        yield gauge("reading_age_seconds", "Seconds since the last reading.", time.monotonic() - read_at)
        text, labels = "Tasks; each count stops at 10,000.", ("queue", "state")
        yield Family(MetricKind.GAUGE, "tasktui_tasks", text, labels, numbers.tasks)
        oldest = "Seconds since the first ready task became due."
        yield gauges("oldest_ready_seconds", oldest, "queue", numbers.oldest.items())
        yield gauge("queues_left_out", "Queues that count together as queue other.", numbers.queues_left_out)
        yield gauges("runners", "Registered runners.", "state", numbers.runners.items())
        for name, text, (values, left_out) in (
            ("dead_tasks", "Dead tasks, of the latest 10,000.", numbers.dead),
            ("schedule_lateness_seconds", "Lateness of the latest schedule.", numbers.lateness),
            ("breaker_open", "True (1) while the breaker is open.", numbers.breakers),
            ("unclaimed_seconds", "Time due of the first task that no live runner takes.", numbers.unclaimed),
        ):
            yield gauges(name, text, "handler", values.items())
            rest = f"Handlers that count together as handler other in tasktui_{name}."
            yield gauge(f"{name}_left_out", rest, left_out)
        yield from histograms("all", times)
        rest = "Pairs of queue and handler that count together as other in these histograms."
        yield gauge("all_left_out", rest, self._work_keys.left_out)
        yield from _health(numbers)


def _health(numbers: Gauges) -> Iterator[Family]:
    """The metrics of the database itself, as far as it has them."""
    health = numbers.health
    yield gauges("table_bytes", "Size of a table with its indexes.", "table", health.tables.items())
    for name, text, value in (
        ("database_bytes", "Size of our tables, or of the file.", health.size),
        ("wal_bytes", "Size of the write-ahead log of the file.", health.wal),
        ("connections", "Open connections of the server.", health.connections and health.connections[0]),
        ("connections_allowed", "Connections that the server allows.", health.connections and health.connections[1]),
        ("replica_lag_seconds", "Seconds since the newest change that a standby shows.", health.stale),
    ):
        if value is not None:
            yield gauge(name, text, value)
