"""DatabaseCollector: the metrics of the whole queue for Prometheus, from the last reading of the database."""

import logging
import time
from collections.abc import Iterator

from runner.db.database import Database
from runner.engine.exporter import gauge, gauges
from runner.engine.exposition import Family, MetricKind
from runner.errors import StoreError
from runner.queries.gauges import Gauges, read_gauges
from runner.text.sanitize import one_line

log = logging.getLogger("runner.probes")


class DatabaseCollector:
    """Reads the database at intervals of its own, so that no scrape waits for it and scrapers do not multiply the cost.

    While the database is unavailable, `tasktui_database_up` is 0 and the other metrics are absent.
    """

    def __init__(self) -> None:
        self._reading: tuple[float, Gauges] | None = None
        self.problem = ""
        """Why the last reading failed; empty if it succeeded."""

    async def read(self, database: Database) -> None:
        """Read the numbers of the database.

        Raises:
            StoreError: the database refuses or does not answer.
        """
        self._reading, self.problem = (time.monotonic(), await database.read(read_gauges)), ""

    async def refresh(self, database: Database) -> None:
        """Read the numbers of the database; log a failure when it begins, and its end."""
        before = self.problem
        try:
            await self.read(database)
        except StoreError as error:
            self._reading, self.problem = None, one_line(str(error))
            if self.problem != before:
                log.warning("no metrics of the database: %s", self.problem)
        else:
            if before:
                log.info("metrics of the database again")

    def collect(self) -> Iterator[Family]:
        """Collect the metrics of the last reading."""
        reading = self._reading
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
