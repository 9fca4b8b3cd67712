"""One trace leads from a request of FastAPI or Django through a submit and its attempt to the SQL of the handler."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor

from runner import handler
from tests.conftest import on_postgresql
from tests.contrib.test_otel import Traces, id_of, parent_of, trace_of
from tests.engine.harness import Harness


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    PsycopgInstrumentor().instrument(tracer_provider=traces.provider)
    yield traces
    PsycopgInstrumentor().uninstrument()


@on_postgresql
@pytest.mark.both_databases
@pytest.mark.parametrize("kind", ["async", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("connected", "own_handlers")
async def test_fastapi(harness: Harness, migrated_url: str, traces: Traces, kind: str) -> None:
    from fastapi import FastAPI
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    url = migrated_url.partition("?")[0]
    work: Any
    if kind == "async":

        @handler("otel.request")
        async def coroutine() -> None:
            async with await psycopg.AsyncConnection.connect(url) as connection:
                await connection.execute("SELECT 1 AS charged")

        work = coroutine
    else:

        @handler("otel.request")
        def plain() -> None:
            with psycopg.connect(url) as connection:
                connection.execute("SELECT 1 AS charged")

        work = plain
    harness.handlers["otel.request"] = work
    app = FastAPI()

    @app.post("/orders")
    async def order() -> int:
        return int(await work.submit_async())

    FastAPIInstrumentor.instrument_app(app, tracer_provider=traces.provider)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as http:
        assert (await http.post("/orders")).status_code == 200
    await harness.work()
    (request,), (submit,), (attempt,) = map(
        traces.named, ("POST /orders", "submit otel.request", "process otel.request")
    )
    (query,) = [span for span in traces.spans if "charged" in str(span.attributes)]
    assert [parent_of(span) for span in (submit, attempt, query)] == list(map(id_of, (request, submit, attempt)))
    assert {trace_of(span) for span in (submit, attempt, query)} == {trace_of(request)}


DJANGO = """
import json, sys
import django
from django.conf import settings

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
django.setup()

import psycopg
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from opentelemetry import trace
from opentelemetry.instrumentation.django import DjangoInstrumentor
from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runner import handler
from runner.contrib.otel import instrument
from runner.testing import TaskStore

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
DjangoInstrumentor().instrument()
PsycopgInstrumentor().instrument()
instrument()

url = sys.argv[1]

@handler("shop.charge")
def charge() -> None:
    with psycopg.connect(url.partition("?")[0]) as connection:
        connection.execute("SELECT 1 AS charged")

def order(request):
    return HttpResponse(str(charge.submit()))

urlpatterns = [path("orders", order)]

with TaskStore(url) as store:
    assert Client().post("/orders").status_code == 200
    store.drain(charge)
print(json.dumps([json.loads(span.to_json()) for span in exporter.get_finished_spans()]))
"""


@on_postgresql
@pytest.mark.slow
@pytest.mark.both_databases
def test_django(migrated_url: str) -> None:
    program = [sys.executable, "-c", DJANGO, migrated_url]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spans = json.loads(done.stdout)
    names = ["POST orders", "submit shop.charge", "process shop.charge", "SELECT"]
    request, submit, attempt, query = (next(span for span in spans if span["name"] == name) for name in names)
    assert "charged" in str(query["attributes"])
    assert {span["context"]["trace_id"] for span in spans} == {request["context"]["trace_id"]}
    parents = [span["parent_id"] for span in (submit, attempt, query)]
    assert parents == [span["context"]["span_id"] for span in (request, submit, attempt)]
