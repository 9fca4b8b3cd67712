"""Each HTTP executor passes one suite: the one in Python, and the one in Node (tests/node/executor.mjs)."""

import asyncio
import json
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.engine.serving.dispatch import Dispatch
from runner.model.task import NewTask, State
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.store.submit import submit_many
from tests.engine.harness import Harness, until, wait_for_event
from tests.engine.serving import FOLDER, SECRET, clean_environment, served, server_process, with_certificate

NAMES = ("echo", "fail", "die", "snooze", "steps", "notes", "gate")

TOKEN = f"conform={SECRET}@{'+'.join(f'conform.{name}' for name in NAMES)}"

PYTHON = (sys.executable, "-m", "runner", "work", "-H", "tests.engine.conformance_handlers", "--server")

COMMANDS = {"python": PYTHON, "node": ("node", "tests/node/conformance.mjs")}

TRUST = {"python": "SSL_CERT_FILE", "node": "NODE_EXTRA_CA_CERTS"}
"""The variables that name a file with an authority to trust."""

SLOTS = 4

VALUES = (None, "é 😀 \"'\\", 0, -1.5, [[{}], {"a": None}], {"deep": [1, {"b": True}]})

pytestmark = [
    pytest.mark.parametrize("language", COMMANDS),
    pytest.mark.skipif(shutil.which("node") is None, reason="There is no node on this machine."),
]


class Executor:
    """A process of an executor."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        self.process, self._stderr, self.log = process, process.stderr, ""
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while line := await self._stderr.readline():
            self.log += line.decode()

    async def end(self) -> int:
        """Wait for its end, and return the exit code."""
        code = await self.process.wait()
        await self._reading
        return code

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def executing(language: str, port: int, authority: Path | None = None) -> AsyncIterator[Executor]:
    """An executor, killed at the end of the block if it runs.

    Args:
        authority: file with the authority to trust; None for a server without TLS.
    """
    environment = {"TASKTUI_SERVER_TOKEN": SECRET, "TASKTUI_THREADS": str(SLOTS)}
    if authority is not None:
        environment[TRUST[language]] = str(authority)
    process = await asyncio.create_subprocess_exec(
        *COMMANDS[language],
        f"http{'' if authority is None else 's'}://127.0.0.1:{port}",
        env=clean_environment() | environment,
        cwd=FOLDER,
        stderr=asyncio.subprocess.PIPE,
    )
    executor = Executor(process)
    try:
        yield executor
    finally:
        if process.returncode is None:
            process.kill()
        await executor.end()


@asynccontextmanager
async def conforming(harness: Harness, language: str, **settings: Any) -> AsyncIterator[tuple[Any, Executor]]:
    """A server in this process, and an executor."""
    values = {"serve_tokens": (TOKEN,), "drain_timeout": "60s"} | settings
    async with served(harness, **values) as (engine, client), executing(language, client.port) as executor:
        yield engine, executor


class Gate:
    """A task of conform.gate, which runs until its gate opens."""

    def __init__(self, harness: Harness, folder: Path) -> None:
        self._harness, self._begun, self._gate = harness, folder / "begun", folder / "gate"
        self.id = 0

    async def submit(self) -> int:
        self.id = await self._harness.submit("conform.gate", {"begun": str(self._begun), "gate": str(self._gate)})
        return self.id

    async def has_begun(self, times: int = 1) -> None:
        await until(lambda: self._begun.exists() and len(self._begun.read_text().splitlines()) >= times)

    def open(self) -> None:
        self._gate.touch()


async def result(harness: Harness, id: int) -> Any:
    """The result of a task that has ended."""
    row = await harness.row(id)
    assert row.state == State.SUCCEEDED
    return json.loads(row.result) if isinstance(row.result, str) else row.result


async def test_results_are_stored_as_the_handlers_return_them(harness: Harness, language: str) -> None:
    ids = [await harness.submit("conform.echo", {"value": value}) for value in VALUES * 3]
    async with conforming(harness, language):
        await harness.wait_for(*ids)
    for id, value in zip(ids, VALUES * 3, strict=True):
        assert await result(harness, id) == value


async def test_tasks_may_come_before_the_reply_to_a_settle(
    harness: Harness, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, heartbeat = Dispatch.settle, Dispatch.heartbeat
    is_settled, most = asyncio.Event(), [0]

    async def answer_late(dispatch: Dispatch, token: Any, request: Any) -> str:
        if not is_settled.is_set():
            await until(lambda: bool(dispatch._pulls))
        reply = await settle(dispatch, token, request)
        is_settled.set()
        await until(lambda: most[0] > SLOTS)
        return reply

    def count(dispatch: Dispatch, token: Any, request: Any) -> Any:
        most[0] = max(most[0], len(request.tasks))
        return heartbeat(dispatch, token, request)

    monkeypatch.setattr(Dispatch, "settle", answer_late)
    monkeypatch.setattr(Dispatch, "heartbeat", count)
    tasks = [NewTask("conform.echo", json.dumps({"value": n})) for n in range(SLOTS)]
    async with conforming(harness, language) as (_, executor):
        first = await harness.submit("conform.echo", {"value": "first"})
        await wait_for_event(is_settled)
        others = await harness.database.write(submit_many, tasks)
        await harness.wait_for(first, *others)
        executor.send(signal.SIGTERM)
        assert await executor.end() == 0, executor.log


@pytest.mark.slow
async def test_errors_are_stored_and_the_last_attempt_dies(harness: Harness, language: str) -> None:
    failing = await harness.submit("conform.fail", max_attempts=2)
    dying = await harness.submit("conform.die", max_attempts=5)
    async with conforming(harness, language):
        await harness.wait_for(failing, dying)
    attempts = await harness.attempts(failing)
    assert [(each.error_type, each.message) for each in attempts] == [("TypeError", "no luck")] * 2
    assert all("conform" in each.traceback for each in attempts)
    assert await harness.state(failing) == State.DEAD
    row = await harness.row(dying)
    assert (row.state, row.attempt) == (State.DEAD, 1)


@pytest.mark.slow
async def test_a_snooze_costs_no_attempt(harness: Harness, language: str) -> None:
    id = await harness.submit("conform.snooze", max_attempts=1)
    async with conforming(harness, language):
        await harness.wait_for(id)
    assert await result(harness, id) == 1


@pytest.mark.slow
async def test_the_next_attempt_receives_the_checkpoint(harness: Harness, language: str) -> None:
    id = await harness.submit("conform.steps", max_attempts=2)
    async with conforming(harness, language):
        await harness.wait_for(id)
    assert await result(harness, id) == 7


@pytest.mark.slow
async def test_progress_and_lines_are_stored(harness: Harness, language: str) -> None:
    id = await harness.submit("conform.notes")
    tables = harness.database.tables
    async with conforming(harness, language):
        await harness.wait_for(id)
        await until(lambda: _has(harness, tables.progress, tables.log))
    ((progress,), (line,)) = [await harness.rows(table.select()) for table in (tables.progress, tables.log)]
    assert (progress.done, progress.total, progress.unit) == (3, 4, "pages")
    assert (line.level, line.line) == ("warning", "slow relay")


async def _has(harness: Harness, *tables: Any) -> bool:
    return [await harness.count(table) for table in tables] == [1] * len(tables)


@pytest.mark.slow
async def test_a_terminated_task_ends_and_frees_its_slot(harness: Harness, language: str, tmp_path: Path) -> None:
    gate = Gate(harness, tmp_path)
    id = await gate.submit()
    async with conforming(harness, language, lease_timeout="2s"):
        await gate.has_begun()
        await harness.database.write(terminate, [Target(id, None)], Actor("ana", "desk", "wrong address"))
        await harness.wait_for(id)
        assert await harness.state(id) == State.CANCELLED
        others = [await harness.submit("conform.echo", {"value": 1}) for _ in range(2 * SLOTS)]
        await harness.wait_for(*others)


async def test_a_frozen_executor_is_refused_and_works_on(harness: Harness, language: str, tmp_path: Path) -> None:
    gate = Gate(harness, tmp_path)
    id = await gate.submit()
    async with conforming(harness, language, lease_timeout="2s") as (_, executor):
        await gate.has_begun()
        executor.send(signal.SIGSTOP)
        await until(lambda: _has_attempt(harness, id))
        executor.send(signal.SIGCONT)
        await gate.has_begun(times=2)
        gate.open()
        await harness.wait_for(id)
        await until(lambda: "its lease ran out" in executor.log)
    assert await result(harness, id) == 2
    (attempt,) = await harness.attempts(id)
    assert attempt.error_type == "WorkerLost"


async def _has_attempt(harness: Harness, id: int) -> bool:
    return len(await harness.attempts(id)) == 1


@pytest.mark.slow
async def test_a_killed_server_that_starts_again_gives_new_tasks(
    harness: Harness, language: str, tmp_path: Path
) -> None:
    gate = Gate(harness, tmp_path)
    id = await gate.submit()
    async with server_process(harness, TOKEN) as server, executing(language, server.port) as executor:
        await gate.has_begun()
        await server.kill()
        async with server_process(harness, TOKEN, server.port):
            await gate.has_begun(times=2)
            gate.open()
            later = await harness.submit("conform.echo", {"value": "later"})
            await harness.wait_for(id, later)
        assert executor.process.returncode is None
    assert await result(harness, id) == 2


@pytest.mark.slow
async def test_a_server_that_drains_has_the_outcomes_of_running_tasks(
    harness: Harness, language: str, tmp_path: Path
) -> None:
    gate = Gate(harness, tmp_path)
    await gate.submit()
    async with conforming(harness, language) as (engine, _):
        await gate.has_begun()
        engine.stop()
        later = await harness.submit("conform.echo", {"value": 1})
        gate.open()
        await harness.wait_for(gate.id)
    assert await result(harness, gate.id) == 1
    assert await harness.state(later) == State.WAITING


@pytest.mark.slow
async def test_an_executor_drains_at_a_signal(harness: Harness, language: str, tmp_path: Path) -> None:
    gate = Gate(harness, tmp_path)
    await gate.submit()
    async with conforming(harness, language) as (_, executor):
        await gate.has_begun()
        executor.send(signal.SIGTERM)
        later = await harness.submit("conform.echo", {"value": 1})
        gate.open()
        assert await executor.end() == 0, executor.log
        assert await result(harness, gate.id) == 1
        await until(lambda: _waits(harness, later))


async def _waits(harness: Harness, id: int) -> bool:
    row = await harness.row(id)
    return bool((row.state, row.attempt) == (State.WAITING, 0))


@pytest.mark.slow
async def test_an_executor_trusts_the_authority_that_its_environment_names(
    harness: Harness, language: str, tmp_path: Path
) -> None:
    address, authority = with_certificate(tmp_path)
    _, other = with_certificate(tmp_path / "other")
    id = await harness.submit("conform.echo", {"value": "secret"})
    async with served(harness, address, serve_tokens=(TOKEN,)) as (_, client):
        async with executing(language, client.port, other) as stranger:
            await until(lambda: re.search("certificate|VERIFY_LEAF_SIGNATURE", stranger.log) is not None)
            assert "Traceback" not in stranger.log
            assert await harness.state(id) == State.WAITING
        async with executing(language, client.port, authority):
            await harness.wait_for(id)
    assert await result(harness, id) == "secret"
