"""Spans of submits and attempts: one trace from a request to the work of its handler."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.trace import SpanKind

from runner import Context, Dead, Snooze, TaskHandler, batch, handler
from runner.contrib import otel
from runner.contrib.otel import instrument
from tests.conftest import on_sqlite, sqlite_first
from tests.contrib import otel_handlers
from tests.engine.harness import WAIT_SECONDS, Harness
from tests.engine.test_otel_export import collector, texts

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Traces:
    """A tracer provider that keeps its spans."""

    def __init__(self, sampler: Sampler = ALWAYS_ON, *processors: SpanProcessor) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        for processor in (*processors, SimpleSpanProcessor(self.exporter)):
            self.provider.add_span_processor(processor)
        self.tracer = self.provider.get_tracer("app")
        instrument(self.provider)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of a name, by their start."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start_time or 0)


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture
def client(harness: Harness, connected: None, own_handlers: None) -> Callable[[TaskHandler[Any, Any, Any]], None]:
    """The client of the database; call it with the handlers to run."""

    def add(task_handler: TaskHandler[Any, Any, Any]) -> None:
        harness.handlers[task_handler.name] = task_handler

    return add


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


@pytest.mark.slow
@sqlite_first
@pytest.mark.parametrize("kind", ["async", "plain", "process"])
async def test_one_trace_leads_from_a_request_to_the_work_of_its_handler(
    harness: Harness,
    client: Callable[[TaskHandler[Any, Any, Any]], None],
    traces: Traces,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPAN_FILE", str(tmp_path / "spans"))
    work: TaskHandler[Any, Any, Any]
    if kind == "async":

        @handler("otel.async", queue="mail")
        async def coroutine() -> None:
            await asyncio.sleep(0)
            with traces.tracer.start_as_current_span("work"):
                pass

        work = coroutine
    elif kind == "plain":

        @handler("otel.plain", queue="mail")
        def plain() -> None:
            with traces.tracer.start_as_current_span("work"):
                pass

        work = plain
    else:
        work = otel_handlers.in_process.options(queue="mail")  # type: ignore[assignment] # the same submits
    client(otel_handlers.in_process if kind == "process" else work)
    with traces.tracer.start_as_current_span("request"):
        task = await work.submit_async()
    await harness.work(processes=1)
    name = f"otel.{kind}"
    (request,), (submit,), (attempt,) = map(traces.named, ("request", f"submit {name}", f"process {name}"))
    (wait,), (settle,) = map(traces.named, ("wait mail", f"settle {name}"))
    if kind == "process":
        (line,) = (tmp_path / "spans").read_text().splitlines()
        own = json.loads(line)
        assert (int(own["parent_id"], 16), int(own["context"]["trace_id"], 16)) == (id_of(attempt), trace_of(request))
    else:
        (own,) = traces.named("work")
        assert parent_of(own) == id_of(attempt)
    assert [parent_of(span) for span in (submit, wait, attempt, settle)] == [
        *(id_of(request), id_of(submit), id_of(submit), id_of(attempt)),
    ]
    assert {trace_of(span) for span in traces.spans} == {trace_of(request)}
    assert (submit.kind, attempt.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attempt.attributes == {
        messaging_attributes.MESSAGING_SYSTEM: "tasktui",
        messaging_attributes.MESSAGING_OPERATION_NAME: "process",
        messaging_attributes.MESSAGING_OPERATION_TYPE: "process",
        messaging_attributes.MESSAGING_DESTINATION_NAME: "mail",
        messaging_attributes.MESSAGING_MESSAGE_ID: str(task),
        "tasktui.handler": name,
        "tasktui.attempt": 1,
        "tasktui.outcome": "succeed",
    }
    times = [(span.start_time or 0, span.end_time or 0) for span in (wait, attempt, settle)]
    assert all(began <= ended for began, ended in times)
    assert times[0][1] == times[1][0]
    assert times[1][1] == times[2][0]


@on_sqlite
async def test_a_retry_links_to_the_first_attempt_and_a_failure_is_an_error_without_secrets(
    harness: Harness, traces: Traces
) -> None:
    @harness.handler("work", max_attempts=3)
    async def work(password: str) -> None:
        raise ValueError(f"wrong: {password}")

    await harness.submit("work", {"password": "hunter2-secret"}, headers=json.dumps({"traceparent": PARENT}))
    await harness.submit("work", {"password": "hunter2-secret"})
    await harness.work()
    for first, *retries in (
        [each for each in traces.named("process work") if trace_of(each) == one]
        for one in {trace_of(span) for span in traces.named("process work")}
    ):
        assert len(retries) == 2
        assert not first.links
        assert [[link.context.span_id for link in span.links] for span in retries] == [[id_of(first)]] * 2
        assert [(span.attributes or {})["tasktui.outcome"] for span in (first, *retries)] == ["retry", "retry", "die"]
    for span in traces.named("process work"):
        assert (span.status.is_ok, span.status.description) == (False, "ValueError: wrong: ***")
        assert (span.attributes or {})["error.type"] == "ValueError"
        assert [event.name for event in span.events] == ["exception"]
    assert "hunter2" not in "".join(span.to_json() for span in traces.spans)


@on_sqlite
@pytest.mark.parametrize("kind", ["snooze", "dead"])
async def test_an_outcome_of_the_handler_is_the_outcome_of_its_span(
    harness: Harness, traces: Traces, kind: str
) -> None:
    @harness.handler("work")
    async def work(ctx: Context) -> None:
        if kind == "dead":
            raise Dead("no such shop")
        if ctx.state is None:
            await ctx.checkpoint("again")
            raise Snooze(0)

    await harness.submit("work")
    await harness.work()
    outcomes = [
        ((span.attributes or {})["tasktui.outcome"], span.status.is_ok) for span in traces.named("process work")
    ]
    assert outcomes == ([("die", False)] if kind == "dead" else [("snooze", True), ("succeed", True)])


@sqlite_first
async def test_a_dependent_links_to_the_submits_of_its_parents(
    harness: Harness, client: Callable[[TaskHandler[Any, Any, Any]], None], traces: Traces
) -> None:
    @handler("otel.part")
    async def part() -> None: ...

    @handler("otel.sum")
    async def total() -> None: ...

    client(part)
    client(total)
    first, second = await part.submit_async(), await part.submit_async()
    await total.options(after=[first, second]).submit_async()
    await harness.work()
    (attempt,) = traces.named("process otel.sum")
    firsts = {id_of(span) for span in traces.named("submit otel.part")}
    assert {link.context.span_id for link in attempt.links} == firsts
    assert [dict(link.attributes or {}) for link in attempt.links] == [{"tasktui.link": "parent"}] * 2


@on_sqlite
async def test_a_task_of_a_schedule_begins_a_trace_and_links_to_that_of_its_schedule(
    harness: Harness, traces: Traces
) -> None:
    @harness.handler("work", max_attempts=2)
    async def work(ctx: Context) -> None:
        assert ctx.attempt > 1

    await harness.submit("work", headers=json.dumps({"traceparent": PARENT, "schedule": "nightly"}))
    await harness.work()
    first, second = traces.named("process work")
    assert [f"{link.context.trace_id:032x}" for link in first.links] == [PARENT.split("-")[1]]
    assert first.parent is None
    assert trace_of(first) == trace_of(second) != int(PARENT.split("-")[1], 16)
    assert [link.context.span_id for link in second.links] == [id_of(first)]


@on_sqlite
async def test_a_submit_inside_a_handler_and_one_with_its_own_position(
    harness: Harness, client: Callable[[TaskHandler[Any, Any, Any]], None], traces: Traces
) -> None:
    @handler("otel.child")
    async def child() -> None: ...

    @handler("otel.parent")
    async def parent() -> None:
        await child.submit_async()
        batch_of_two = [child.new(), child.options(headers={"traceparent": PARENT}).new()]
        await asyncio.to_thread(batch, batch_of_two)

    client(child)
    client(parent)
    await parent.submit_async()
    await harness.work()
    (attempt,) = traces.named("process otel.parent")
    submits = traces.named("submit otel.child")
    assert [parent_of(span) for span in submits] == [id_of(attempt)] * 2
    assert (submits[1].attributes or {})["messaging.batch.message_count"] == 2
    children = traces.named("process otel.child")
    assert sorted(f"{trace_of(span):x}" == PARENT.split("-")[1] for span in children) == [False, False, True]


@on_sqlite
async def test_an_unsampled_attempt_makes_no_span_and_its_handler_none_either(harness: Harness) -> None:
    traces, seen = Traces(ALWAYS_OFF), list[dict[str, str]]()

    @harness.handler("work")
    def work(ctx: Context) -> None:
        seen.append(dict(ctx.headers))
        with traces.tracer.start_as_current_span("work"):
            pass

    await harness.submit("work")
    await harness.work()
    assert (traces.spans, seen) == ([], [{}])


@on_sqlite
@pytest.mark.parametrize(("flags", "others"), [("00", {}), ("02", {}), ("00", {"baggage": "user=7"})])
@pytest.mark.parametrize("sampler", [ParentBased(ALWAYS_ON), ALWAYS_ON], ids=["parent-based", "own"])
async def test_the_sampler_decides_about_the_attempt_of_an_unsampled_submit(
    harness: Harness, flags: str, others: dict[str, str], sampler: Sampler
) -> None:
    traces, seen = Traces(sampler), list[dict[str, str]]()

    @harness.handler("work")
    async def work() -> None:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        seen.append(carrier)
        with traces.tracer.start_as_current_span("work"):
            pass

    headers = {"traceparent": f"{PARENT.removesuffix('01')}{flags}", **others}
    await harness.submit("work", headers=json.dumps(headers))
    await harness.work()
    names = {span.name for span in traces.spans}
    if sampler is ALWAYS_ON:
        assert names == {"work", "wait default", "process work", "settle work"}
    else:
        assert names == set()
        (carrier,) = seen
        version, trace_id, _, carried = carrier.pop("traceparent").split("-")
        assert (f"{version}-{trace_id}", int(carried, 16) & 1, carrier) == (PARENT[:35], 0, others)


@on_sqlite
async def test_headers_that_are_not_readable_cost_no_span(
    harness: Harness, traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    for headers in ('{"traceparent": 5, "first-attempt": {}}', '{"traceparent": "no", "first-attempt": "no"}'):
        table, task = harness.database.tables.task, await harness.submit("work")
        await harness.change(table.update().where(table.c.id == task).values(headers=headers))
    await harness.work()
    assert len(traces.named("process work")) == 2
    assert "no spans" not in caplog.text


class Broken(SpanProcessor):
    """Raises or blocks at each span."""

    def __init__(self, blocks: float) -> None:
        self.blocks, self.calls = blocks, 0

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self.calls += 1
        if not self.blocks:
            raise ConnectionError("collector is away")

        import time

        time.sleep(self.blocks)


@pytest.mark.slow
@on_sqlite
@pytest.mark.parametrize("blocks", [0.0, 0.03])
async def test_a_tracer_that_fails_or_blocks_costs_spans_and_no_task(
    harness: Harness, blocks: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "SLOW", 0.02)
    broken = Broken(blocks)
    Traces(ALWAYS_ON, broken)

    @harness.handler("work", max_attempts=1)
    async def work() -> None: ...

    tasks = [await harness.submit("work") for _ in range(20)]
    await harness.work()
    assert {await harness.state(task) for task in tasks} == {"succeeded"}
    assert broken.calls <= 8  # of the attempts that had begun
    lines = [record for record in caplog.records if record.name == "runner.traces"]
    assert [record.levelno for record in lines] == [logging.WARNING]
    assert ("collector is away" if not blocks else "does not block") in lines[0].getMessage()


@on_sqlite
async def test_a_task_without_room_in_its_headers_runs_without_a_position(
    harness: Harness, client: Callable[[TaskHandler[Any, Any, Any]], None], traces: Traces
) -> None:
    @handler("otel.full")
    async def full() -> None: ...

    client(full)
    await full.options(headers={f"h{number}": "" for number in range(32)}).submit_async()
    await harness.work()
    (attempt,) = traces.named("process otel.full")
    assert attempt.parent is None


async def export_to(
    harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> tuple[TracerProvider, list[int]]:
    """Run tasks with spans that a BatchSpanProcessor sends."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=64, max_export_batch_size=64))
    instrument(provider)

    @harness.handler("work")
    async def work() -> None: ...

    ids = [await harness.submit("work") for _ in range(tasks)]
    await harness.work()
    return provider, ids


@on_sqlite
async def test_a_collector_receives_the_spans(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector(ExportTraceServiceRequest) as (url, requests):
        provider, (task,) = await export_to(harness, url, monkeypatch, 1)
        await asyncio.to_thread(provider.shutdown)
        request = await asyncio.to_thread(requests.get, timeout=WAIT_SECONDS)
    ((scope,),) = (list(one.scope_spans) for one in request.resource_spans)
    assert scope.scope.name == "tasktui"
    assert {span.name for span in scope.spans} == {"wait default", "process work", "settle work"}
    ids = {texts(span.attributes).get("messaging.message.id") for span in scope.spans}
    assert ids == {str(task), None}


@pytest.mark.slow
@on_sqlite
async def test_a_collector_that_is_unreachable_costs_spans_and_no_task(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        provider, tasks = await export_to(harness, f"http://127.0.0.1:{closed.getsockname()[1]}", monkeypatch, 100)
    assert {await harness.state(task) for task in tasks} == {"succeeded"}
    await asyncio.to_thread(provider.shutdown)
