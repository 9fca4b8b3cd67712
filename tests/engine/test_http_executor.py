"""The HTTP executor, with servers that answer wrongly and outcomes that a server refuses."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import sqlalchemy as sa

from runner.engine.serving import http_server, server_client
from runner.engine.serving.http_executor import HttpExecutor
from runner.engine.serving.server_client import ServerClient, ServerUnreachable
from runner.model.duration import parse_duration
from runner.model.outcome import RESULT_NOT_KEPT, Done
from runner.model.task import State
from runner.settings import Settings
from runner.urls import parse_url
from tests.engine.harness import Harness
from tests.engine.serving import FOLDER, SECRET, Client, clean_environment, key_of, served

Answer = Callable[[str], bytes]
"""Returns the body of a reply to a path."""

TASK = {"shard": "", "id": 1, "fence": 1, "handler": "far.add", "queue": "default", "key": None, "priority": 5}
TASK |= {"payload": {"a": 1, "b": 2}, "attempt": 1, "max_attempts": 5, "timeout": None, "headers": {}}
TASK |= {"checkpoint": None}


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """A server that answers each request with 200, and its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            body = answer(self.path.rpartition("/")[2])
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.one_database
@pytest.mark.parametrize(
    "body", ["<html>one moment</html>", "[]", '{"message": "one moment"}', '{"lost": 9' + 6_000 * "0" + "}"]
)
def test_a_reply_that_is_not_of_the_protocol_is_an_outage(body: str) -> None:
    with answering(lambda _: body.encode()) as url:
        client = ServerClient(url, SECRET)
        with pytest.raises(ServerUnreachable, match=f"{url} answered with no reply of the protocol"):
            client.post("log", {})
        client.close()


@pytest.mark.representatives(1)
@pytest.mark.one_database
@pytest.mark.parametrize("thread", ["pull", "settle", "heartbeat"])
async def test_an_executor_with_a_failed_thread_exits_with_an_error(thread: str) -> None:
    pull = {"tasks": [TASK], "lease": 2, "heartbeat": 0.1, "draining": False}
    replies: dict[str, Any] = {"pull": pull, "settle": {"endings": [{"status": "settled"}]}}
    replies["heartbeat"] = {"stop": [], "lost": []}
    broken = {"pull": pull | {"tasks": [{}]}, "settle": {"endings": []}, "heartbeat": {"stop": [{}], "lost": []}}
    # A pending outcome keeps its task, so that heartbeats follow.
    replies |= {"settle": {"endings": [{"status": "pending"}]}} if thread == "heartbeat" else {}
    replies[thread] = broken[thread]
    with answering(lambda path: json.dumps(replies[path]).encode()) as url:
        command = [sys.executable, "-m", "runner", "work", "-H", "tests.engine.external_handlers", "--server", url]
        environment = clean_environment() | {"TASKTUI_SERVER_TOKEN": SECRET, "TASKTUI_DRAIN_TIMEOUT": "1s"}
        worker = await asyncio.create_subprocess_exec(
            *command, env=environment, cwd=FOLDER, stderr=asyncio.subprocess.PIPE
        )
        _, log = await worker.communicate()
    assert worker.returncode == 1
    assert f"runner-{thread} failed" in log.decode()


async def settle(client: Client, executor: HttpExecutor, *endings: dict[str, Any]) -> list[int]:
    """Let an executor settle tasks that it pulls, one for each ending, and return them."""
    puller = Client(client.port, executor=executor.name)
    tasks = await puller.pull(len(endings))
    await puller.close()
    batch = [
        {"number": n, **key_of(task), **ending} for n, (task, ending) in enumerate(zip(tasks, endings, strict=True))
    ]
    await asyncio.to_thread(executor._settle, batch)
    return [task["id"] for task in tasks]


def executor_of(client: Client) -> HttpExecutor:
    settings = Settings(url=parse_url("sqlite:///x.db"))
    return HttpExecutor(settings, {}, ServerClient(f"http://127.0.0.1:{client.port}", SECRET))


async def test_an_outcome_that_the_server_refuses_costs_no_other(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = {"outcome": "succeed"}, {"outcome": "snooze", "delay": -1}
    for _ in range(7):
        await harness.submit("mail.send")
    async with served(harness) as (_, client):
        executor = executor_of(client)
        ids = await settle(client, executor, good, good, bad, good, bad, good, good)
        states = [await harness.state(id) for id in ids]
        executor._client.close()
    assert [state == State.SUCCEEDED for state in states] == [True, True, False, True, False, True, True]
    log = [record.getMessage() for record in caplog.records if record.module == "http_executor"]
    assert len(log) == 2
    assert all("snooze.delay: Input should be greater than or equal to 0" in line for line in log)


@pytest.mark.parametrize("outcome", ["retry", "die"])
async def test_an_outcome_that_the_server_refuses_fails_its_attempt_with_the_refusal(
    harness: Harness, outcome: str
) -> None:
    await harness.submit("mail.send")
    error = {"type": "9Lives", "message": "no mouse \udc80", "traceback": ""}
    async with served(harness) as (_, client):
        executor = executor_of(client)
        (id,) = await settle(client, executor, {"outcome": outcome, "why": "as asked", "error": error})
        executor._client.close()
    row, (attempt,) = await harness.row(id), await harness.attempts(id)
    assert (row.state == State.DEAD, attempt.error_type) == (outcome == "die", "OutcomeRefused")
    for part in ("(422)", "Invalid JSON", f"The outcome was {outcome}", "9Lives: no mouse \\udc80", "as asked"):
        assert part in attempt.message


async def test_a_result_that_the_server_refuses_is_not_kept_and_its_task_succeeds(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (http_server, server_client):
        monkeypatch.setattr(module, "MOST_BYTES", 10_000, raising=False)
    await harness.submit("mail.send")
    async with served(harness) as (_, client):
        executor = executor_of(client)
        (id,) = await settle(client, executor, {"outcome": "succeed", "result": 40_000 * "x"})
        executor._client.close()
    row = await harness.row(id)
    assert row.state == State.SUCCEEDED
    assert row.error == (
        f"{RESULT_NOT_KEPT}: The server http://127.0.0.1:{client.port} refused the request (413): "
        "the body exceeds 10,000 bytes."
    )


async def test_an_executor_reports_why_it_did_not_keep_a_result(harness: Harness) -> None:
    await harness.submit("mail.send")
    async with served(harness) as (_, client):
        executor = executor_of(client)
        ending = executor._ending(1, Done(why=f"{RESULT_NOT_KEPT}: it is no JSON"))
        (id,) = await settle(client, executor, ending)
        executor._client.close()
    assert (await harness.row(id)).error == f"{RESULT_NOT_KEPT}: it is no JSON"


async def test_outcomes_that_are_too_large_for_one_request_are_settled(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (http_server, server_client):
        monkeypatch.setattr(module, "MOST_BYTES", 10_000, raising=False)
    for _ in range(8):
        await harness.submit("mail.send")
    async with served(harness) as (_, client):
        executor = executor_of(client)
        ids = await settle(client, executor, *(8 * [{"outcome": "succeed", "result": 4_000 * "x"}]))
        states = [await harness.state(id) for id in ids]
        executor._client.close()
    assert set(states) == {State.SUCCEEDED}


async def test_the_longest_duration_of_a_handler_is_one_of_the_protocol(harness: Harness) -> None:
    await harness.submit("mail.send")
    async with served(harness) as (_, client):
        (task,) = await client.pull()
        settled = await client.settle(task, "retry", delay=parse_duration("36524d").total_seconds())
    assert settled["move"] == "retry"


async def test_a_payload_that_python_cannot_read_ends_its_task_and_no_other(harness: Harness) -> None:
    table = harness.database.tables.task
    for payload in ('{"number": 9' + 6_000 * "0" + "}", '{"ctx": 1, "payload": {"self": []}}'):
        await harness.change(sa.insert(table).values(handler="mail.send", payload=payload))
    async with served(harness) as (_, client):
        (task,) = await client.pull()
        assert task["payload"] == {"ctx": 1, "payload": {"self": []}}
        await harness.wait_for(1)
    row, (attempt,) = await harness.row(1), await harness.attempts(1)
    assert (row.state, row.attempt, attempt.error_type) == (State.DEAD, 1, "InvalidPayload")
