"""The metrics of a runner reach a collector of OpenTelemetry, under the names of its conventions."""

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.semconv._incubating.metrics import messaging_metrics

from runner.engine.exposition import Family, MetricKind
from runner.engine.hosting.probes import serve_probes
from runner.engine.otel_export import NAMES, OtelExport, otel_name
from runner.errors import PackageMissing
from runner.model.outcome import Dead
from tests.engine.harness import WAIT_SECONDS, Harness, at_work, until

GAUGE = Family(MetricKind.GAUGE, "tasktui_slots", "Slots.", ("pool",), {("async",): 4})


@contextmanager
def collector(kind: Any = ExportMetricsServiceRequest, status: int = 200) -> Iterator[tuple[str, Queue[Any]]]:
    """An OTLP receiver on loopback: its URL, and the requests that it received."""
    requests = Queue[Any]()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.put(kind.FromString(body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


class InMemory(MetricExporter):
    """Keeps what is exported; fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.exports, self.failures = Queue[MetricsData](), failures

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **_: object) -> MetricExportResult:
        self.exports.put(metrics_data)
        self.failures -= 1
        return MetricExportResult.FAILURE if self.failures >= 0 else MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 0, **_: object) -> None: ...

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True


def texts(attributes: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in attributes}


async def test_a_collector_receives_known_tasks_when_a_runner_ends(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    @harness.handler("good")
    async def good() -> None: ...

    @harness.handler("bad")
    async def bad() -> Dead:
        return Dead("no such address")

    tasks = [await harness.submit("good", queue="mail"), await harness.submit("bad", queue="mail")]
    with collector() as (url, requests):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
        runner = harness.runner(otel=True)
        with serve_probes(runner):
            async with at_work(runner):
                await harness.wait_for(tasks[0])
                await until(lambda: runner.metrics.verbs == {"succeed": 1, "die": 1})
        request = await asyncio.to_thread(requests.get, timeout=WAIT_SECONDS)
    (resource,) = request.resource_metrics
    assert texts(resource.resource.attributes)["service.name"] == "shop"
    (scope,) = resource.scope_metrics
    metrics = {metric.name: metric for metric in scope.metrics}
    ended = {
        texts(point.attributes)["tasktui.outcome"]: point
        for point in metrics["messaging.client.consumed.messages"].sum.data_points
    }
    assert {outcome: point.as_int for outcome, point in ended.items()} == {"succeed": 1, "die": 1}
    assert texts(ended["die"].attributes) == {
        "messaging.system": "tasktui",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "tasktui.handler": "bad",
        "tasktui.outcome": "die",
        "error.type": "die",
    }
    assert "error.type" not in texts(ended["succeed"].attributes)
    runs = metrics["messaging.process.duration"]
    assert (runs.unit, {point.count for point in runs.histogram.data_points}) == ("s", {1})
    for point in runs.histogram.data_points:
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        assert 0 < point.start_time_unix_nano < point.time_unix_nano
    slots = {texts(each.attributes)["tasktui.pool"]: each.as_int for each in metrics["tasktui.slots"].gauge.data_points}
    assert slots["async"] == 4


def test_names_follow_the_conventions_for_messaging() -> None:
    conventions = {value for name, value in vars(messaging_metrics).items() if name.startswith("MESSAGING_")}
    assert {each.name for each in NAMES.values()} <= conventions
    assert otel_name("tasktui_attempt_wait_seconds") == ("tasktui.attempt_wait", "s")
    assert otel_name("tasktui_table_bytes") == ("tasktui.table", "By")


def test_a_collector_that_fails_is_logged_once_and_loses_no_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "runner.probes")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    exporter = InMemory(failures=3)
    export = OtelExport(lambda: [GAUGE], exporter)
    export.start()
    for _ in range(5):
        exporter.exports.get(timeout=WAIT_SECONDS)
    export.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "metrics for OpenTelemetry were not sent, trying again every 0.001 s",
        "metrics for OpenTelemetry are sent again",
    ]


def test_a_collector_that_fails_at_the_end_is_logged_without_a_next_try(caplog: pytest.LogCaptureFixture) -> None:
    export = OtelExport(lambda: [GAUGE], InMemory(failures=1))
    export.start()
    export.stop()
    assert caplog.messages == ["metrics for OpenTelemetry were not sent, and this process ends"]


def test_an_error_of_a_collection_ends_no_export(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    families = iter([[Family(MetricKind.GAUGE, "tasktui_slots", "Slots.", (), {("one", "too many"): 1})]])
    exporter = InMemory()
    export = OtelExport(lambda: next(families, [GAUGE]), exporter)
    export.start()
    exporter.exports.get(timeout=WAIT_SECONDS)
    export.stop()
    assert caplog.records[0].getMessage().startswith("no metrics for OpenTelemetry: ValueError(")


async def test_the_package_to_install_is_named(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(PackageMissing, match=r"tasktui\[otel\]"), serve_probes(harness.runner(otel=True)):
        pass
