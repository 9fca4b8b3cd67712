"""Serving: servers for HTTP executors, and an executor of the tests."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from runner.engine.runner import Engine
from runner.engine.serving.endpoints import ENDPOINTS
from runner.engine.serving.http_server import ServeAddress
from runner.engine.serving.service import Service
from runner.settings import Settings
from runner.urls import parse_url
from tests.engine.harness import QUICK, Harness, at_work

FOLDER = Path(__file__).parents[2]

SECRET, OTHER = "correct-horse-battery", "another-horse-battery"
TOKENS = (f"node={SECRET}@mail.send+sms.send", f"other={OTHER}@page.load")

REPLIES = {endpoint.name: endpoint.reply for endpoint in ENDPOINTS}

LOOPBACK = ServeAddress("127.0.0.1", 0)


class Client:
    """An executor of a test.

    Args:
        port: the port of the server.
    """

    def __init__(self, port: int, secret: str = SECRET, executor: str = "one") -> None:
        self.executor, self.port = executor, port
        url = f"http://127.0.0.1:{port}"
        self._http = httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {secret}"}, timeout=90)

    async def post(self, path: str, **body: Any) -> Any:
        answer = await self._http.post(f"/v1/{path}", json={"executor": self.executor} | body)
        assert answer.status_code == 200, answer.text
        REPLIES[path].model_validate_json(answer.content)
        return answer.json()

    async def raw(self, path: str, **arguments: Any) -> httpx.Response:
        return await self._http.post(f"/v1/{path}", **arguments)

    async def pull(self, free: int = 10, wait: float = 60, handlers: tuple[str, ...] = ("mail.send",)) -> list[Any]:
        tasks: list[Any] = (await self.post("pull", handlers=handlers, free=free, wait=wait))["tasks"]
        return tasks

    async def settle(self, task: Any, outcome: str = "succeed", **values: Any) -> Any:
        ending = {**key_of(task), "outcome": outcome} | values
        return (await self.post("settle", endings=[ending]))["endings"][0]

    async def heartbeat(self, *tasks: Any) -> Any:
        return await self.post("heartbeat", tasks=[key_of(task) for task in tasks])

    async def close(self) -> None:
        await self._http.aclose()


def key_of(task: Any) -> dict[str, Any]:
    """The attempt that a task or another message names."""
    return {name: task[name] for name in ("shard", "id", "fence") if name in task}


def with_certificate(folder: Path) -> tuple[ServeAddress, Path]:
    """An address with a certificate, and the file of the authority that has issued it."""
    import trustme

    authority = trustme.CA()
    made, files = authority.issue_cert("127.0.0.1"), [folder / name for name in ("chain.pem", "key.pem", "ca.pem")]
    folder.mkdir(exist_ok=True)
    made.cert_chain_pems[0].write_to_path(files[0])
    made.private_key_pem.write_to_path(files[1])
    authority.cert_pem.write_to_path(files[2])
    address = ServeAddress("127.0.0.1", 0, files[0], files[1])
    address.require()
    return address, files[2]


@asynccontextmanager
async def served(
    harness: Harness, address: ServeAddress = LOOPBACK, **settings: Any
) -> AsyncIterator[tuple[Engine, Client]]:
    """A server, and an executor."""
    values: dict[str, Any] = {"url": parse_url(harness.url), "serve_tokens": TOKENS} | QUICK | settings
    made = Settings(**values)
    ports: list[int] = []
    service = Service(made, address, ports.append)
    engine = Engine(made, service.handlers, pulled=service.database())
    async with service.around(engine.stop_requested()), at_work(engine):
        client = Client(ports[0])
        try:
            yield engine, client
        finally:
            engine.stop()
            await client.close()


class ServerProcess:
    """A process `runner serve`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        self.process, self._stderr, self.port, self.log = process, process.stderr, 0, ""
        self._reading: asyncio.Future[None] | None = None

    async def listens(self) -> None:
        """Wait until it listens."""
        while (match := re.search(r"executors on \w+://127\.0\.0\.1:(\d+)", self.log)) is None:
            line = await self._stderr.readline()
            assert line, f"the server ended: {self.log}"
            self.log += line.decode()
        self.port = int(match[1])
        self._reading = asyncio.ensure_future(self._read())

    async def kill(self) -> None:
        """End it, if it runs, without a chance to write anything."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        if self._reading is not None:
            await self._reading

    async def _read(self) -> None:
        while line := await self._stderr.readline():
            self.log += line.decode()


@asynccontextmanager
async def server_process(
    harness: Harness, token: str, port: int = 0, *arguments: str, **settings: str
) -> AsyncIterator[ServerProcess]:
    """A process `runner serve`, killed at the end of the block."""
    values = {"lease_timeout": "2s", "heartbeat_interval": "200ms", "drain_timeout": "20s", "retry": "1ms"} | settings
    values |= {"url": harness.url, "serve_tokens": token}
    environment = {f"TASKTUI_{name.upper()}": value for name, value in values.items()}
    command = [sys.executable, "-m", "runner", "serve", "--address", f"127.0.0.1:{port}", *arguments]
    server = ServerProcess(
        await asyncio.create_subprocess_exec(
            *command, env=clean_environment() | environment, cwd=FOLDER, stderr=asyncio.subprocess.PIPE
        )
    )
    try:
        await server.listens()
        yield server
    finally:
        await server.kill()


def clean_environment() -> dict[str, str]:
    """The environment without settings, for processes that import the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKTUI_")}
    return kept | {"PYTHONPATH": str(FOLDER)}
