"""Compare process handlers with pebble alone: `uv run --with pebble python -m tests.bench.processes`.

Both run the same function in as many warm processes, in turns. pebble takes calls from memory and returns results to
memory; ours are tasks in a database, from before their submit until every outcome is stored. Compare the ratios.
"""

import argparse
import asyncio
import importlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa

from runner import connect, disconnect
from runner.db.database import Database
from runner.engine.hosting.embedded import Runner
from runner.settings import Settings
from runner.urls import parse_url
from tests.engine.process_handlers import compute, spin

NAP = 0.02
"""Seconds between two counts of the live tasks."""


def turns(ms: float, tasks: int, count: int, pool: Any, work: Any) -> Iterator[tuple[float, float]]:
    """Seconds of ours and of pebble for the same tasks, turn by turn."""
    for _ in range(count):
        began = time.perf_counter()
        work([{"ms": ms}] * tasks)
        between = time.perf_counter()
        for future in [pool.schedule(spin, args=(ms,)) for _ in range(tasks)]:
            future.result()
        yield between - began, time.perf_counter() - between


async def done(database: Database) -> None:
    """Wait until no task is live."""
    while True:
        async with database.reading() as tx:
            if not await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.task)):
                return
        await asyncio.sleep(NAP)


def compare(url: str, processes: int, tasks: int, reps: int) -> None:
    """Print a line for each length of a task."""
    settings = Settings(url=parse_url(url), processes=processes)
    pool = importlib.import_module("pebble").ProcessPool(max_workers=processes)
    connect(settings)
    with asyncio.Runner() as loop, Runner([compute], settings=settings):
        database = Database.of(settings)

        def work(calls: list[dict[str, Any]]) -> None:
            compute.submit_many(calls)
            loop.run(done(database))

        list(turns(1.0, 4 * processes, 1, pool, work))
        print(f"{processes} processes, load {os.getloadavg()[0]:.1f}, {tasks} tasks a turn, {reps} turns")
        for ms in (0.0, 1.0, 10.0, 100.0):
            number = max(20, int(tasks / max(1.0, ms)))
            pairs = list(turns(ms, number, reps, pool, work))
            ours, alone = (1_000 * median(times) / number for times in zip(*pairs, strict=True))
            ratios = [first / second for first, second in pairs]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"{ms:5.0f} ms: ours {ours:7.2f}, pebble {alone:7.2f} ms per task: {median(ratios):.2f} ({spread})")
        loop.run(database.dispose())
    disconnect()
    pool.stop()
    pool.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--reps", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.url or f"sqlite:///{Path(folder) / 'tasks.db'}"
        compare(url, arguments.processes, arguments.tasks, arguments.reps)
