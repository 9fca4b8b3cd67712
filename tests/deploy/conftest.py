"""Deployment: runners as real processes, started by a shell in the ways of hosts, containers and supervisors."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.task import NewTask
from runner.store.submit import submit_many
from tests.databases import use

WAIT_SECONDS = 90.0

HANDLERS = """
import logging, os, subprocess, threading, time
from pathlib import Path
from runner import handler

log = logging.getLogger("shop")

if life := os.environ.get("LIFE"):
    threading.Timer(float(life), os.kill, [os.getpid(), 9]).start()

def started():
    Path(f"started-{os.getpid()}").touch()

def wait():
    started()
    while not Path("go").exists():
        time.sleep(0.02)

@handler("quick")
def quick() -> str:
    return "done"

@handler("on_loop")
async def on_loop() -> str:
    return "done"

@handler("hold", max_attempts=2)
def hold() -> None:
    wait()

@handler("chatter")
def chatter(ctx, lines: int) -> None:
    for number in range(lines):
        ctx.logger.info("line %d %s", number, "x" * 100)
    wait()

@handler("prints")
def prints() -> None:
    print("Grüße", flush=True)

@handler("process", executor="process")
def process() -> str:
    return str(os.getpid())

@handler("orphan")
def orphan() -> None:
    subprocess.run(["sh", "-c", "(exit 3) & exit 0"], check=True)

@handler("files", max_attempts=1)
def files() -> None:
    kept = [open(os.devnull) for _ in range(1_000)]

@handler("memory", max_attempts=1)
def memory() -> None:
    bytearray(1 << 40)

@handler("short")
def short() -> None:
    time.sleep(0.2)

@handler("children")
def children() -> list:
    ends = [subprocess.run(["sh", "-c", f"exit {code}"]).returncode for code in range(5)]
    pid = os.fork()
    if not pid:
        os._exit(7)
    time.sleep(0.3)
    return [*ends, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
"""


class Deployment:
    """A database file, a module of handlers, and the processes of one test.

    Args:
        folder: their folder, and the working directory of the processes.
        url: URL of the database.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        (folder / "handlers.py").write_text(HANDLERS, encoding="utf-8")
        self.environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(folder),
            "TASKTUI_URL": url,
            "TASKTUI_HANDLERS": "handlers",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def submit(self, handler: str, payload: str = "{}", count: int = 1) -> list[int]:
        """Submit tasks of one handler."""
        tasks = [NewTask(handler, payload) for _ in range(count)]
        return use(self.url, lambda database: database.write(submit_many, tasks))

    def rows(self) -> dict[int, Any]:
        """All tasks by id, with state, attempt, error and result."""

        async def read(database: Database) -> dict[int, Any]:
            rows: dict[int, Any] = {}
            for table in (database.tables.task, database.tables.history):
                async with database.writing() as tx:
                    found = await tx.rows(sa.select(table))
                rows |= {row.id: row for row in found}
            return rows

        return use(self.url, read)

    def result(self, task: int) -> Any:
        """The result of a task."""
        result = self.rows()[task].result
        return json.loads(result) if isinstance(result, str) else result

    def states(self) -> set[str]:
        """The states of all tasks."""
        return {row.state for row in self.rows().values()}

    def start(self, script: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a shell script in a session of its own; its outputs are the files `out` and `err`."""
        streams: dict[str, Any] = {}
        for name, file in (("stdout", "out"), ("stderr", "err")):
            if name not in options:
                streams[name] = (self.folder / file).open("ab")
        environment = self.environment | options.pop("environment", {})
        process = subprocess.Popen(
            ["sh", "-c", script],
            cwd=options.pop("cwd", self.folder),
            env={name: value for name, value in environment.items() if value is not None},
            stdin=options.pop("stdin", subprocess.DEVNULL),
            start_new_session=True,
            **streams,
            **options,
        )
        for stream in streams.values():
            stream.close()
        self._processes.append(process)
        return process

    def run(self, script: str, **options: Any) -> int:
        """Run a shell script to its end; return its exit code."""
        return self.start(script, **options).wait(WAIT_SECONDS)

    def text(self, name: str = "err") -> str:
        """An output of the processes."""
        path = self.folder / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def await_start(self, count: int = 1) -> list[int]:
        """Wait until handlers that hold have begun; return the ids of their processes."""
        until(lambda: len(self._marks()) >= count, self)
        return [int(path.name.partition("-")[2]) for path in self._marks()]

    def _marks(self) -> list[Path]:
        return list(self.folder.glob("started-*"))

    def release(self) -> None:
        """Let the handlers that hold end."""
        (self.folder / "go").touch()

    def close(self) -> None:
        """End the processes and their children."""
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait(WAIT_SECONDS)


def until(condition: Callable[[], object], deployment: Deployment) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, deployment.text()
        time.sleep(0.1)


@pytest.fixture
def deployment(migrated_url: str, tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, migrated_url)
    yield made
    made.close()
