"""Resident memory of a runner after many tasks: `python -m tests.bench.memory --kind thread --tasks 100000`.

Half of the tasks fail, with a large local variable and a long message. The memory of worker processes counts. A runner
that keeps nothing of an attempt has the same memory after all tasks as after the first 1,000.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from runner import connect, disconnect, handler
from runner.db.database import Database
from runner.engine.resource_meter import resident_memory
from runner.settings import Settings
from runner.urls import parse_url

FIRST = 1_000
"""Tasks after which the memory is compared."""

CHUNK = 5_000
"""Tasks per measurement."""

SETTLED = 1.0
"""Seconds without a task before a measurement."""


def work(fails: bool, local: int) -> int:
    """Fail or succeed with a local variable of a number of bytes."""
    data = bytearray(local)
    data[::4096] = b"x" * len(data[::4096])
    if fails:
        raise ValueError("bad row " * 200)
    return len(data)


@handler("memory.coroutine", max_attempts=1)
async def coroutine(fails: bool, local: int) -> int:
    """A coroutine."""
    return work(fails, local)


@handler("memory.thread", max_attempts=1)
def thread(fails: bool, local: int) -> int:
    """A plain function."""
    return work(fails, local)


@handler("memory.process", max_attempts=1, executor="process")
def process(fails: bool, local: int) -> int:
    """A process handler."""
    return work(fails, local)


def memory(pid: int) -> float:
    """Resident memory of a runner and its worker processes in MB."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return sum(resident_memory(each) or 0 for each in (pid, *map(int, children))) / 2**20


async def execute(database: Database, kind: str, tasks: int, local: int) -> None:
    """Submit tasks, of which every second one fails, and wait for their end."""
    handlers: dict[str, Any] = {"coroutine": coroutine, "thread": thread, "process": process}
    await asyncio.to_thread(
        handlers[kind].submit_many, [{"fails": bool(number % 2), "local": local} for number in range(tasks)]
    )
    while True:
        async with database.reading() as tx:
            if not await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.task)):
                return
        await asyncio.sleep(0.1)


async def measure(url: str, kind: str, tasks: int, local: int) -> None:
    """Run one runner, and print its memory."""
    settings = Settings(url=parse_url(url))
    database = Database.of(settings)
    await database.migrate()
    connect(settings)
    command = [str(Path(sys.executable).parent / "runner"), "work", "-H", "tests.bench.memory", "--processes", "1"]
    with tempfile.TemporaryFile() as log:
        runner = subprocess.Popen(command, env=os.environ | {"TASKTUI_URL": url}, stdout=log, stderr=log)
        try:
            done, size, first = 0, FIRST, 0.0
            while done < tasks:
                await execute(database, kind, size, local)
                await asyncio.sleep(SETTLED)
                done, now = done + size, memory(runner.pid)
                first = first or now
                print(f"{kind} {done:>8,} tasks {now:7.1f} MB {now - first:+7.1f}", flush=True)
                size = min(CHUNK if done >= CHUNK else CHUNK - FIRST, tasks - done) or 1
        finally:
            runner.terminate()
            runner.wait()
            await database.dispose()
            disconnect()


def main() -> None:
    """Read the options and measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kind", choices=["coroutine", "thread", "process"], default="coroutine")
    options.add_argument("--tasks", type=int, default=200_000)
    options.add_argument("--local", type=int, default=20_000, help="bytes of the local variable")
    options.add_argument("--url", help="URL of a database without other tasks; default: a temporary file")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(given.url or f"sqlite:///{folder}/tasks.db", given.kind, given.tasks, given.local))


if __name__ == "__main__":
    main()
