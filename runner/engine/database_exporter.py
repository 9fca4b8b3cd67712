"""DatabaseCollector: the metrics of the whole queue for Prometheus, from the last reading of the database."""

import logging
import time
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from runner.db.database import Database
from runner.engine.exporter import gauges
from runner.errors import StoreError
from runner.queries.gauges import Gauges, read_gauges
from runner.text.sanitize import one_line

log = logging.getLogger("runner.probes")


class DatabaseCollector(Collector):
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

    def collect(self) -> Iterator[Metric]:
        """Collect the metrics of the last reading."""
        reading = self._reading
        up = "True (1) if the last reading of the database succeeded."
        yield GaugeMetricFamily("tasktui_database_up", up, value=reading is not None)
        if reading is None:
            return
        read_at, numbers = reading
        age = time.monotonic() - read_at
        yield GaugeMetricFamily("tasktui_reading_age_seconds", "Seconds since the last reading.", value=age)
        tasks = GaugeMetricFamily("tasktui_tasks", "Tasks; each count stops at 10,000.", labels=("queue", "state"))
        for labels, number in numbers.tasks.items():
            tasks.add_metric(labels, number)
        yield tasks
        oldest = "Seconds since the first ready task became due."
        yield gauges("tasktui_oldest_ready_seconds", oldest, "queue", numbers.oldest.items())
        rest = "Queues that count together as queue other."
        yield GaugeMetricFamily("tasktui_queues_left_out", rest, value=numbers.queues_left_out)
        yield gauges("tasktui_runners", "Registered runners.", "state", numbers.runners.items())
        for name, text, (values, left_out) in (
            ("dead_tasks", "Dead tasks, of the latest 10,000.", numbers.dead),
            ("schedule_lateness_seconds", "Lateness of the latest schedule.", numbers.lateness),
            ("breaker_open", "True (1) while the breaker is open.", numbers.breakers),
            ("unclaimed_seconds", "Time due of the first task that no live runner takes.", numbers.unclaimed),
        ):
            yield gauges(f"tasktui_{name}", text, "handler", values.items())
            rest = f"Handlers that count together as handler other in tasktui_{name}."
            yield GaugeMetricFamily(f"tasktui_{name}_left_out", rest, value=left_out)
