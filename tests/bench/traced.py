"""A runner process of the bench with traces: `python -P -m tests.bench.traced`."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from runner.cli.bench.worker import main
from runner.contrib.otel import instrument
from runner.model.task import NewTask

SAMPLED = 100
"""One submit of this many is sampled."""


class Nowhere(SpanExporter):
    """An exporter that drops the spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def with_position(task: NewTask, number: int) -> NewTask:
    """Give a task the position of its submit, from its number."""
    flags = "01" if number % SAMPLED == 0 else "00"
    return task.with_headers({"traceparent": f"00-{number + 1:032x}-{number + 1:016x}-{flags}"})


if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    instrument(provider)
    main()
