"""RunnerCollector: the metrics of a runner for Prometheus, collected when they are scraped."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from runner.engine.hosting.probe_server import Answer, Reply
from runner.engine.metrics import WorkKey
from runner.policy.histogram import Histogram

if TYPE_CHECKING:  # the exporter of a database needs no runner
    from runner.engine.runner import Engine

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Upper bounds in seconds of the buckets of run times and waits; the last bucket has no bound."""

BOUNDS = (*map(floatToGoString, BUCKETS), "+Inf")


def exposition(collector: Collector) -> Answer:
    """Answer scrapes with the metrics of one collector, in the format that the scraper accepts."""
    registry = CollectorRegistry()
    registry.register(collector)

    def answer(accept: str) -> Reply:
        encode, kind = choose_encoder(accept)
        return Reply(200, encode(registry), kind)

    return answer


def gauges(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """A gauge with one label."""
    metric = GaugeMetricFamily(name, text, labels=(label,))
    for value, number in values:
        metric.add_metric((value,), number)
    return metric


class RunnerCollector(Collector):
    """Reads what the parts of a runner count anyway; any thread may collect."""

    def __init__(self, runner: "Engine") -> None:
        self._runner = runner

    def collect(self) -> Iterator[Metric]:
        """Collect the metrics."""
        runner = self._runner
        text = "Attempts that ended, by outcome: the move of the task."
        ended = CounterMetricFamily("tasktui_attempts", text, labels=("queue", "handler", "outcome"))
        for labels, number in tuple(runner.metrics.ended.items()):
            ended.add_metric([*map(str, labels)], number)
        yield ended
        pools = runner.worker.in_flight.pools
        yield gauges("tasktui_slots", "Slots, by pool.", "pool", [(pool.name, pool.size) for pool in pools])
        used = [(pool.name, pool.in_use) for pool in pools]
        yield gauges("tasktui_slots_used", "Slots in which a task runs, by pool.", "pool", used)
        waiting = [(pool.name, len(pool.waiting)) for pool in pools]
        yield gauges("tasktui_tasks_prefetched", "Claimed tasks that wait for a slot, by pool.", "pool", waiting)
        for name, text, value in (
            ("outcomes_buffered", "Outcomes that wait for the database.", len(runner.worker.buffer)),
            ("stuck_rows", "Rows of tasks that the runner could not change.", len(runner.stuck)),
            ("lease_renewal_age_seconds", "Seconds since the last renewal of the lease.", self._renewal_age),
            ("event_loop_blocked_seconds", "Seconds without a response of the loop.", runner.watchdog.blocked_for),
        ):
            yield GaugeMetricFamily(f"tasktui_{name}", text, value=value)
        times = runner.metrics.all_times()
        runs = {work_key: each.runs for work_key, each in times.items()}
        yield _histograms("tasktui_attempt_run_seconds", "Run times of attempts.", runs)
        waits = {work_key: each.waits for work_key, each in times.items()}
        yield _histograms("tasktui_attempt_wait_seconds", "Times from the due time to the start of attempts.", waits)

    @property
    def _renewal_age(self) -> float:
        return self._runner.lease.renewal_age if self._runner.lease.id else 0.0


def _histograms(name: str, text: str, histograms: Mapping[WorkKey, Histogram]) -> Metric:
    metric = HistogramMetricFamily(name, text, labels=("queue", "handler"))
    for work_key, histogram in histograms.items():
        numbers = [0] * len(BOUNDS)
        for bound, each in histogram.bins.items():
            numbers[bisect_left(BUCKETS, bound / 1_000)] += each.number
        metric.add_metric([*map(str, work_key)], list(zip(BOUNDS, accumulate(numbers), strict=True)), histogram.seconds)
    return metric
