"""HTTP executors pull the tasks of a server, and settle them: over real HTTP on loopback."""

import asyncio
import json
import os
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from runner.engine.serving.dispatch import Dispatch
from runner.engine.serving.http_server import ServeAddress
from runner.engine.serving.protocol import MOST_BYTES
from runner.engine.serving.server_client import ServerClient, ServerUnreachable
from runner.engine.serving.service import Service
from runner.errors import InvalidInput, InvalidSettings
from runner.model.task import State
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.settings import Settings
from runner.text.redact import mask
from runner.urls import parse_url
from tests.engine.harness import Harness, until
from tests.engine.serving import FOLDER, OTHER, SECRET, TOKENS, Client, served, with_certificate
from tests.ports import free_port


async def has_runner(harness: Harness) -> bool:
    return await harness.count(harness.database.tables.runner) == 1


async def test_an_executor_pulls_a_task_and_its_result_is_stored(harness: Harness) -> None:
    payload: dict[str, Any] = {"to": 'ä "quoted" \\ \n', "n": [None, 1.5, {}]}
    headers = '{"trace": "\\u00e4 \\"b\\""}'
    id = await harness.submit("mail.send", payload, priority=2, key='k "é"\\', headers=headers)
    async with served(harness) as (_, client):
        (task,) = await client.pull()
        assert (task["id"], task["handler"], task["payload"], task["attempt"]) == (id, "mail.send", payload, 1)
        assert (task["key"], task["headers"]) == ('k "é"\\', {"trace": 'ä "b"'})
        settled = await client.settle(task, result={"sent": [1, 2]})
        assert (settled["status"], settled["move"]) == ("settled", "succeed")
        row = await harness.row(id)
        assert row.state == State.SUCCEEDED, "the reply follows the write"
        assert (json.loads(row.result) if isinstance(row.result, str) else row.result) == {"sent": [1, 2]}
        assert await client.settle(task, result="again") == settled, "an executor may lose the reply"


@pytest.mark.slow
async def test_a_pull_takes_the_highest_priority_first(harness: Harness) -> None:
    low, high = [await harness.submit("mail.send", priority=number) for number in (1, 9)]
    async with served(harness) as (_, client):
        assert [task["id"] for task in await client.pull()] == [high, low]


async def test_a_failed_attempt_is_retried_with_its_error(harness: Harness) -> None:
    id = await harness.submit("mail.send", max_attempts=2)
    async with served(harness) as (_, client):
        error = {"type": "TypeError", "message": "to is undefined", "traceback": "at send (mail.js:3)"}
        for attempt, move in ((1, "retry"), (2, "die")):
            (task,) = await client.pull()
            assert task["attempt"] == attempt
            assert (await client.settle(task, "retry", error=error))["move"] == move
        first, _ = await harness.attempts(id)
        assert (first.error_type, first.message) == ("TypeError", "to is undefined")


async def test_a_pull_waits_for_a_submit_and_takes_by_priority(harness: Harness) -> None:
    async with served(harness) as (_, client):
        pull = asyncio.ensure_future(client.pull(free=1))
        await until(lambda: has_runner(harness))
        late = await harness.submit("mail.send")
        (task,) = await pull
        assert task["id"] == late
        assert await client.pull(free=1, wait=0) == []
        await client.settle(task)


async def test_a_frozen_executor_loses_its_task_and_its_settle_is_refused(harness: Harness) -> None:
    id = await harness.submit("mail.send")
    async with served(harness, lease_timeout="1s") as (_, client):
        (task,) = await client.pull()
        (again,) = await client.pull()  # no heartbeat comes
        assert again["id"] == id
        assert again["fence"] > task["fence"]
        refused = await client.settle(task, result="late")
        assert refused["status"] == "refused"
        assert "its lease ran out" in refused["why"]
        assert (await client.heartbeat(task, again))["lost"] == [{"shard": "", "id": id, "fence": task["fence"]}]
        await client.settle(again, result="in time")
        (attempt,) = await harness.attempts(id)
        assert attempt.error_type == "WorkerLost"


async def test_heartbeats_keep_a_task_and_report_its_termination(harness: Harness) -> None:
    id = await harness.submit("mail.send")
    async with served(harness, lease_timeout="60s") as (_, client):
        (task,) = await client.pull()
        refused = await client.settle(task, "stopped")
        assert refused["status"] == "refused"
        await harness.database.write(terminate, [Target(id, None)], Actor("ana", "desk", "wrong address"))

        async def is_stopped() -> bool:
            reply = await client.heartbeat(task)
            assert reply["lost"] == []
            return bool(reply["stop"] == [{"shard": "", "id": id, "fence": task["fence"], "terminated": True}])

        await until(is_stopped)
        assert (await client.settle(task, "stopped"))["status"] == "settled"
        assert await harness.state(id) == State.CANCELLED


async def test_a_task_whose_executor_is_gone_at_the_reply_costs_no_attempt(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake = Dispatch._wake
    async with served(harness) as (_, client):
        body = json.dumps({"executor": "two", "handlers": ["mail.send"], "free": 1, "wait": 60})
        head = f"POST /v1/pull HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SECRET}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        lost = socket.create_connection(("127.0.0.1", client.port))
        lost.sendall((head + body).encode())
        closed: list[Any] = []

        def wake_and_close(dispatch: Dispatch, handler: str) -> None:
            wake(dispatch, handler)
            closed.extend(call for _, call in dispatch.databases[""].waiting[handler])
            lost.close()

        monkeypatch.setattr(Dispatch, "_wake", wake_and_close)
        id = await harness.submit("mail.send")
        await until(lambda: _is_true(closed))
        (task,) = await client.pull()
        assert (task["id"], task["attempt"]) == (id, 1)
        assert task["fence"] > closed[0].task.fence, "the first claim had reached the pull"
        await client.settle(task)


async def test_an_executor_that_asks_for_no_more_tasks_has_no_free_slots(harness: Harness) -> None:
    await harness.submit("mail.send")
    async with served(harness) as (engine, client):
        (task,) = await client.pull(free=1)
        assert await client.pull(free=0) == []
        await client.settle(task)
        assert engine.worker.in_flight.capacity == 0


async def test_a_free_slot_is_one_slot_over_all_handlers(harness: Harness) -> None:
    both = ("mail.send", "sms.send")
    for handler in both * 5:
        await harness.submit(handler)
    async with served(harness) as (_, client):
        tasks: list[Any] = []
        while len(tasks) < 3:
            tasks += await client.pull(free=3 - len(tasks), handlers=both)
        assert await _running(harness) == 3


@pytest.mark.slow
async def test_a_backlog_takes_no_slots_of_executors_that_do_not_run_it(harness: Harness) -> None:
    for _ in range(20):
        await harness.submit("mail.send")
    async with served(harness) as (_, client):
        other = Client(client.port, OTHER, "two")
        waiting = asyncio.ensure_future(other.pull(free=8, handlers=("page.load",)))
        (task,) = await client.pull(free=1)
        assert await _running(harness) == 1
        page = await harness.submit("page.load")
        assert [each["id"] for each in await waiting] == [page]
        await client.settle(task)
        await other.close()


async def _running(harness: Harness) -> int:
    task = harness.database.tables.task
    return await harness.count(task, task.c.state == State.RUNNING)


async def test_a_later_pull_ends_the_wait_of_an_earlier_one(harness: Harness) -> None:
    async with served(harness) as (engine, client):
        capacity = engine.worker.in_flight.capacity
        waiting = asyncio.ensure_future(client.pull(free=3))
        await until(lambda: engine.worker.in_flight.capacity == capacity + 3)
        assert await client.pull(free=0) == []
        assert await waiting == []
        assert engine.worker.in_flight.capacity == capacity


async def _is_true(value: object) -> bool:
    return bool(value)


async def test_a_server_with_a_certificate_serves_an_executor_that_trusts_it(harness: Harness, tmp_path: Path) -> None:
    address, authority = with_certificate(tmp_path)
    await harness.submit("mail.send", {"to": "ada"})
    body = {"executor": "one", "handlers": ["mail.send"], "free": 1, "wait": 60}
    async with served(harness, address) as (_, client):
        url = f"https://127.0.0.1:{client.port}"
        async with httpx.AsyncClient() as stranger:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.post(f"{url}/v1/pull", json=body)
        trust = ssl.create_default_context(cafile=str(authority))
        async with httpx.AsyncClient(
            verify=trust, headers={"authorization": f"Bearer {SECRET}"}, timeout=90
        ) as trusting:
            (task,) = (await trusting.post(f"{url}/v1/pull", json=body)).json()["tasks"]
            assert task["payload"] == {"to": "ada"}
            ending = {"id": task["id"], "fence": task["fence"], "outcome": "succeed"}
            reply = await trusting.post(f"{url}/v1/settle", json={"executor": "one", "endings": [ending]})
            assert reply.json()["endings"][0]["status"] == "settled"


async def test_a_server_that_drains_waits_for_its_executors(harness: Harness) -> None:
    first = await harness.submit("mail.send")
    async with served(harness, drain_timeout="60s") as (engine, client):
        (task,) = await client.pull(free=1)
        waiting = asyncio.ensure_future(client.post("pull", handlers=["sms.send"], free=1, wait=60))
        second = await harness.submit("mail.send")
        engine.stop()
        assert (await waiting)["draining"] is True
        assert (await client.settle(task))["status"] == "settled"
    assert await harness.state(first) == State.SUCCEEDED
    row = await harness.row(second)
    assert (row.state, row.attempt) == (State.WAITING, 0)


async def test_tasks_without_an_executor_wait_for_any_runner(harness: Harness) -> None:
    id = await harness.submit("page.load")
    async with served(harness) as (_, client):
        mail = await harness.submit("mail.send")
        (task,) = await client.pull()
        assert task["id"] == mail, "the other handler has no executor, and delays none"
        await client.settle(task)
        assert await harness.state(id) == State.WAITING


async def test_limits_that_code_has_declared_stay(harness: Harness) -> None:
    @harness.handler("mail.send", limits={"max_running": 3})
    def send() -> None: ...

    await harness.work()
    handler = harness.database.tables.handler
    query = sa.select(handler.c.max_running, handler.c.signature).where(handler.c.name == "mail.send")
    before = await harness.rows(query)
    async with served(harness) as (_, client):
        assert await client.pull(wait=0) == []
        await until(lambda: has_runner(harness))
    assert await harness.rows(query) == before
    assert before[0][0] == 3


async def test_requests_that_are_not_part_of_the_protocol_are_refused(harness: Harness) -> None:
    kind = {"content-type": "application/json"}
    async with served(harness) as (_, client):
        body: dict[str, Any] = {"executor": "one", "handlers": ["page.load"], "free": 1}

        async def problem(status: int, path: str = "pull", **arguments: Any) -> str:
            answer = await client.raw(path, **arguments)
            assert answer.status_code == status, answer.text
            return str(answer.json()["error"])

        text = await problem(403, json=body)
        assert text == "token node may not pull 'page.load'; its handlers are mail.send, sms.send"
        wrong = {"authorization": "Bearer wrong"}
        text = await problem(401, json=body, headers=wrong)
        assert mask(text) == text == "the server does not know the bearer secret of the request"
        assert await problem(422, content=b"{", headers=kind)
        assert "free" in await problem(422, json=body | {"free": -1})
        assert "text/plain" in await problem(415, content=b"{}", headers={"content-type": "text/plain"})
        assert "not part of" in await problem(404, path="push", json=body)

        head = f"POST /v1/pull HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SECRET}\r\n"
        head += "content-type: application/json\r\n"
        too_large = b"%x\r\n%b\r\n" % (MOST_BYTES + 1, b" " * (MOST_BYTES + 1))
        for rest in (b"content-length: 1000000000\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n" + too_large):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(head.encode() + rest)
            assert b" 413 " in await reader.readline()
            writer.close()
        unknown = await client.settle({"id": 77, "fence": 1})
        assert unknown["status"] == "refused"


@pytest.mark.slow
async def test_a_handler_stores_progress_lines_and_checkpoints(harness: Harness) -> None:
    id = await harness.submit("mail.send")
    tables = harness.database.tables
    async with served(harness) as (_, client):
        (task,) = await client.pull()
        key = {"shard": "", "id": id, "fence": task["fence"]}
        assert (await client.post("checkpoint", **key, state={"page": 7}))["lost"] == []
        assert (await client.post("progress", progress=[key | {"done": 1, "total": 4}]))["lost"] == []
        assert (await client.post("log", lines=[key | {"level": 30, "text": "slow relay"}]))["lost"] == []

        async def is_stored() -> bool:
            return [await harness.count(table) for table in (tables.progress, tables.log)] == [1, 1]

        await until(is_stored)
        await client.settle(task, "retry", delay=0)
        (again,) = await client.pull()
        assert (again["attempt"], again["checkpoint"]) == (2, {"page": 7})
        assert (await client.post("checkpoint", **key, state={"page": 8}))["lost"] == [key]


async def test_runner_work_runs_the_tasks_of_a_server(harness: Harness) -> None:
    added = await harness.submit("far.add", {"a": 1, "b": 2})
    noted, failed = await harness.submit("far.notes"), await harness.submit("far.fail", max_attempts=1)
    token = f"far={SECRET}@far.add+far.notes+far.fail"
    async with served(harness, serve_tokens=(token,)) as (_, client):
        command = [sys.executable, "-m", "runner", "work", "-H", "tests.engine.external_handlers", "--until-idle"]
        command += ["--server", f"http://127.0.0.1:{client.port}", "--only", "far.add,far.notes,far.fail"]
        environment = os.environ | {"TASKTUI_SERVER_TOKEN": SECRET, "PYTHONPATH": str(FOLDER)}
        while await harness.count(harness.database.tables.history) < 3:  # it leaves before a retry that is late
            worker = await asyncio.create_subprocess_exec(*command, env=environment, cwd=FOLDER)
            assert await worker.wait() == 0
    rows = [await harness.row(id) for id in (added, noted, failed)]
    assert [row.state for row in rows] == [State.SUCCEEDED, State.SUCCEEDED, State.DEAD]
    assert json.dumps(rows[1].result).strip('"') == "7"
    (attempt,) = await harness.attempts(failed)
    assert (attempt.error_type, attempt.message) == ("ValueError", "no luck")
    assert "external_handlers.py" in attempt.traceback


@pytest.mark.parametrize(
    ("url", "problem"), [("http://example.org", "in the clear"), ("ftp://example.org", "no address such as")]
)
def test_an_executor_refuses_an_address_that_is_not_safe(url: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        ServerClient(url, SECRET)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_executor_refuses_a_file_without_authorities(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with pytest.raises(InvalidInput, match=r"ca\.pem, whose certificates cannot be read"):
        ServerClient("https://example.org", SECRET)


def test_an_executor_without_tls_is_told_of_a_server_that_closes_its_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def close_after_request() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)

        closing = threading.Thread(target=close_after_request)
        closing.start()
        client = ServerClient(f"http://127.0.0.1:{listening.getsockname()[1]}", SECRET)
        with pytest.raises(ServerUnreachable, match="a server with a certificate needs https"):
            client.post("pull", {})
        closing.join()


def test_an_executor_names_a_server_that_is_away() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerUnreachable, match=rf"no answer from {url}: ConnectionRefusedError"):
        ServerClient(url, SECRET).post("pull", {})


def test_a_request_over_a_connection_that_the_server_has_closed_is_sent_again() -> None:
    answer = b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"lost": []}'
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve_once_per_connection() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        serving = threading.Thread(target=serve_once_per_connection)
        serving.start()
        client = ServerClient(f"http://127.0.0.1:{listening.getsockname()[1]}", SECRET)
        assert [client.post("log", {}), client.post("log", {})] == [{"lost": []}, {"lost": []}]
        serving.join()
    client.close()


async def test_a_client_ends_the_requests_that_wait_and_closes_its_connections(harness: Harness) -> None:
    async with served(harness) as (engine, other):
        client, body = ServerClient(f"http://127.0.0.1:{other.port}", SECRET), {"executor": "two", "wait": 60}
        pull = asyncio.ensure_future(
            asyncio.to_thread(client.post, "pull", body | {"handlers": ["mail.send"], "free": 3})
        )
        capacity = engine.worker.in_flight.capacity
        await until(lambda: engine.worker.in_flight.capacity == capacity + 3)
        client.interrupt("pull")
        with pytest.raises(ServerUnreachable):
            await pull
        await until(lambda: engine.worker.in_flight.capacity == capacity)
        await asyncio.to_thread(client.post, "heartbeat", {"executor": "two", "tasks": []})
        assert len(client._idle) == 1
        client.close()
        assert client._idle == []


def test_a_server_needs_tls_beyond_loopback() -> None:
    with pytest.raises(InvalidInput, match=r"0\.0\.0\.0 is not a loopback address"):
        ServeAddress("0.0.0.0", 0).require()


def test_a_server_names_an_address_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(InvalidInput, match=r"Address already in use \(errno"):
            ServeAddress("127.0.0.1", other.getsockname()[1]).listen()


def test_a_server_needs_tokens() -> None:
    with pytest.raises(InvalidSettings, match="no executor could pull"):
        Service(Settings(url=parse_url("sqlite:///x.db")), ServeAddress("127.0.0.1", 0))


def test_settings_hide_the_secrets_of_tokens() -> None:
    settings = Settings(url=parse_url("sqlite:///x.db"), serve_tokens=TOKENS)
    lines = " ".join(str(line) for line in settings.describe())
    assert "node=***@mail.send+sms.send" in lines
    assert SECRET not in lines + repr(settings)


async def test_replies_are_sent_at_once() -> None:
    accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = writer.get_extra_info("socket")
        accepted.set_result(bool(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        writer.close()

    listening = ServeAddress("127.0.0.1", 0).listen()
    async with await asyncio.start_server(note, sock=listening):
        with socket.create_connection(listening.getsockname()):
            assert await accepted
