"""OtelExport: sends the metrics of the exporters for Prometheus over OpenTelemetry.

The SDK has no asynchronous histogram, and recording each attempt twice would cost time of the event loop. So the counts
become data points of the SDK here.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from runner.engine.exposition import Family, MetricKind
from runner.policy.histogram import BOUNDS_MS, Buckets

log = logging.getLogger("runner.probes")

INTERVAL_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"
"""The variable with the milliseconds between two exports."""

INTERVAL = 60.0
"""Its default in seconds, as in the specification."""

JOIN_TIMEOUT = 2.0
"""Maximum wait in seconds for the last export."""


class OtelName(NamedTuple):
    """The name and unit of a metric in the conventions of OpenTelemetry."""

    name: str
    unit: str


NAMES = {
    "tasktui_attempts": OtelName("messaging.client.consumed.messages", "{message}"),
    "tasktui_attempt_run_seconds": OtelName("messaging.process.duration", "s"),
}
"""The metrics for which the conventions for messaging have a name."""

ATTRIBUTES = {"queue": "messaging.destination.name"}
"""The attribute for a label; the others have the prefix `tasktui.`."""

COMMON = {"messaging.system": "tasktui"}
"""The attributes of each data point with a queue."""

PROCESS = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
"""The further attributes of the metrics in NAMES."""

ERROR_TYPE = {"retry": "retry", "die": "die"}
"""The attribute error.type by outcome."""

UNITS = {"_seconds": "s", "_bytes": "By"}
"""The unit by the suffix of a name."""


def otel_name(name: str) -> OtelName:
    """The name in NAMES; or the own name with the namespace `tasktui`, without the unit."""
    if name in NAMES:
        return NAMES[name]
    own = name.replace("_", ".", 1)
    suffix = next((suffix for suffix in UNITS if own.endswith(suffix)), "")
    return OtelName(own.removesuffix(suffix), UNITS.get(suffix, "1"))


def metrics_data(families: Iterable[Family], resource: Resource, started_at: int) -> MetricsData:
    """Convert metrics.

    Args:
        families: from a collector.
        resource: the process.
        started_at: when the counts began, in nanoseconds since 1970.
    """
    scope, at = InstrumentationScope("tasktui"), time.time_ns()
    metrics = [_metric(family, started_at, at) for family in families if family.samples]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metric(family: Family, started_at: int, at: int) -> Metric:
    name, unit = otel_name(family.name)
    common = PROCESS if family.name in NAMES else {}
    numbers, buckets = list[NumberDataPoint](), list[HistogramDataPoint]()
    for values, sample in family.samples.items():
        attributes = common | _attributes(dict(zip(family.labels, values, strict=True)))
        if isinstance(sample, Buckets):
            buckets.append(_histogram(attributes, sample, started_at, at))
        else:
            begin = started_at if family.kind is MetricKind.COUNTER else 0
            numbers.append(NumberDataPoint(attributes, begin, at, sample))
    data: Gauge | Histogram | Sum
    match family.kind:
        case MetricKind.GAUGE:
            data = Gauge(numbers)
        case MetricKind.COUNTER:
            data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        case MetricKind.HISTOGRAM:
            data = Histogram(buckets, AggregationTemporality.CUMULATIVE)
    return Metric(name, family.text, unit, data)


def _attributes(labels: Mapping[str, Any]) -> dict[str, str]:
    common = COMMON if "queue" in labels else {}
    error = ERROR_TYPE.get(labels.get("outcome", ""))
    own = {ATTRIBUTES.get(label, f"tasktui.{label}"): str(value) for label, value in labels.items()}
    return common | own | ({"error.type": error} if error else {})


def _histogram(attributes: dict[str, str], buckets: Buckets, started_at: int, at: int) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=started_at,
        time_unix_nano=at,
        count=sum(buckets.numbers),
        sum=buckets.seconds,
        bucket_counts=buckets.numbers,
        explicit_bounds=[bound / 1_000 for bound in BOUNDS_MS],
        min=None,  # type: ignore[arg-type] # optional in the protocol: they are not counted
        max=None,  # type: ignore[arg-type]
    )


class OtelExport:
    """Exports metrics in a thread of its own, at intervals and at the end.

    The counts begin at the start of the process and not at an export, so that a collector that is unavailable loses
    none of them.

    Args:
        collect: called in the thread.
        exporter: the destination; it has its own timeout.
    """

    def __init__(self, collect: Callable[[], Iterable[Family]], exporter: MetricExporter) -> None:
        self._collect, self._exporter = collect, exporter
        own = {"service.name": "tasktui", "service.instance.id": f"{socket.gethostname()}:{os.getpid()}"}
        self._resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self._started_at = time.time_ns()
        self._interval = _interval(os.environ)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runner-otel", daemon=True)
        self._is_failing = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Export the last counts, and stop the thread."""
        self._stopped.set()
        self._thread.join(JOIN_TIMEOUT)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._export()
        if not self._is_failing:
            self._export()

    def _export(self) -> None:
        try:
            result = self._exporter.export(metrics_data(self._collect(), self._resource, self._started_at))
        except Exception as error:
            log.warning("no metrics for OpenTelemetry: %r", error)
            return
        is_failing = result is not MetricExportResult.SUCCESS
        if is_failing and not self._is_failing:
            again = f"trying again every {self._interval:g} s"
            end = "and this process ends" if self._stopped.is_set() else again
            log.warning("metrics for OpenTelemetry were not sent, %s", end)
        elif self._is_failing and not is_failing:
            log.info("metrics for OpenTelemetry are sent again")
        self._is_failing = is_failing


def _interval(environment: Mapping[str, str]) -> float:
    """The seconds between two exports."""
    milliseconds = environment.get(INTERVAL_VARIABLE, "")
    return int(milliseconds) / 1_000 if milliseconds.isdecimal() and int(milliseconds) else INTERVAL
