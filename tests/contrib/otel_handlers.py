"""A process handler with spans of its own, which its worker process writes to the file SPAN_FILE."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from runner import handler
from runner.contrib.otel import instrument


class FileExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ["SPAN_FILE"]).open("a") as file:
            file.writelines(json.dumps(json.loads(span.to_json())) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


if "SPAN_FILE" in os.environ:  # in a worker process
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
    trace.set_tracer_provider(provider)
    instrument()


@handler("otel.process", executor="process", max_attempts=2, retry="1ms")
def in_process(fails: bool = False) -> None:
    with trace.get_tracer("app").start_as_current_span("work"):
        assert not fails
