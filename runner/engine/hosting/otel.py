"""export_metrics: sends metrics over OpenTelemetry during a block, if a setting asks for it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from runner.engine.exposition import Family
from runner.errors import PackageMissing


@contextmanager
def export_metrics(collect: Callable[[], Iterable[Family]], *, is_on: bool) -> Iterator[None]:
    """Export what is collected; the variables OTEL_* configure the exporter.

    Raises:
        PackageMissing: a package of OpenTelemetry is not installed.
    """
    if not is_on:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        from runner.engine.otel_export import OtelExport
    except ModuleNotFoundError as error:
        raise PackageMissing(package=error.name or "", use="otel", extra="otel", instead="") from None
    export = OtelExport(collect, OTLPMetricExporter())
    export.start()
    try:
        yield
    finally:
        export.stop()
