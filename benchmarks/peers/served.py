"""This project with HTTP executors: a server, and workers that pull 100 tasks and settle them in one request.

The first worker starts the server, whose CPU counts as its own.
"""

import asyncio
import os
import socket
import sys
import threading
import time
from pathlib import Path
from subprocess import Popen

from benchmarks.contract import on_stop, record, run
from benchmarks.peers.ours import NOOP, Ours, database_url
from runner.engine.serving.server_client import ServerClient, ServerUnreachable

SECRET = "benchmark-executors"  # noqa: S105 - of a server on loopback, for the time of a measurement

BATCH = 100

WAIT = 1.0
"""Seconds for which a pull waits for a task."""

START_LIMIT = 30.0
"""Seconds for the server to start."""


class Served(Ours):
    """This project with HTTP executors."""

    async def work(self) -> None:
        """Pull and settle until SIGTERM."""
        stop, file = threading.Event(), Path(os.environ["BENCH_FILE"])
        on_stop(stop.set)
        place = file.with_name("server.port")
        server = start_server(place) if file.name == "worker0.bin" else None
        try:
            await asyncio.to_thread(execute, place, stop)
        finally:
            if server is not None:
                server.terminate()
                server.wait()
                place.unlink()


def start_server(place: Path) -> "Popen[bytes]":
    """Start the server on a free port, and write the port to a file."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {"TASKTUI_URL": database_url(), "TASKTUI_SERVE_TOKENS": f"bench={SECRET}@{NOOP.name}"}
    server = Popen([sys.executable, "-m", "runner", "serve", "--address", f"127.0.0.1:{port}"], env=os.environ | own)
    place.write_text(str(port))
    return server


def execute(place: Path, stop: threading.Event) -> None:
    """Pull, run and settle tasks."""
    while not place.exists():
        time.sleep(0.01)
    client, own = ServerClient(f"http://127.0.0.1:{place.read_text()}", SECRET), {"executor": f"bench-{os.getpid()}"}
    pull, end = own | {"handlers": [NOOP.name], "free": BATCH, "wait": WAIT}, time.monotonic() + START_LIMIT
    while not stop.is_set():
        try:
            tasks = client.post("pull", pull)["tasks"]
            for task in tasks:
                record(task["payload"]["i"], task["payload"]["t"])
            keys = [{"shard": task["shard"], "id": task["id"], "fence": task["fence"]} for task in tasks]
            if keys:
                client.post("settle", own | {"endings": [key | {"outcome": "succeed"} for key in keys]})
        except ServerUnreachable:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            end = time.monotonic() + WAIT
    client.close()


if __name__ == "__main__":
    run(Served())
